"""Where the episodes of a rollout live: in this process, or in a few others.

Both kinds give the same results. A pool spreads episodes over its processes
and, for each, keeps what was done so far. A process that dies, or whose call
runs past its time limit where not even the alarm inside stops it (one endless
C operation), is killed and replaced; the episode whose request it was working
on is lost and must end with ENV_TIMEOUT; the others are played again up to
where they were, which works because an episode is a function of its calls.

Results never depend on which process is faster: who waits, waits for all.
"""

import collections
from collections.abc import Sequence
import contextlib
import logging
from multiprocessing import connection
import time
from typing import Any, Protocol

from rods_jax import errors
from rods_jax.host import env
from rods_jax.host import env_process
from rods_jax.host import rewards
from rods_jax.types import Call, Task, TurnScore

Batch = Sequence[tuple[env.Book, Sequence[Call]]]

_GRACE_S = 5.0  # beyond a call's limit: the alarm inside comes first
# A ground truth is played at an episode's start, each call within 5 seconds.
_REPLAY_S = 60.0
_MAX_LOST = 5  # processes in a row that ended before they answered


class Environments(Protocol):
  """Makes episodes and runs their calls."""

  def start(self, task: Task, limits: env.Limits) -> Any:
    """A new episode: an env.Episode or one that looks the same."""

  def execute(self, batch: Batch) -> list[list[env.ToolResult]]:
    """Runs messages of different episodes; the results of each."""

  def close(self) -> None:
    """Ends what was started."""


class InProcess:
  """Episodes in this process, one call after the other."""

  def start(self, task: Task, limits: env.Limits) -> env.Episode:
    return env.Episode(task, limits)

  def execute(self, batch: Batch) -> list[list[env.ToolResult]]:
    return [episode.execute(calls) for episode, calls in batch]

  def close(self) -> None:
    """Nothing to end."""


class PooledEpisode(env.Book):
  """An episode whose world lives in a process of the pool.

  Attributes:
    broken: a call timed out or the process was lost; abandon the episode.
    lost: why the process was lost, else empty.
    number: its name in the process.
    history: finished requests, to play them again elsewhere.
  """

  def __init__(self, task: Task, limits: env.Limits, pool: 'EnvPool', number):
    super().__init__(task, limits)
    self.broken = False
    self.lost = ''
    self.number: int = number
    self.history: list[env_process.Request] = []
    self._pool = pool

  def request(
      self, kind: str, args: tuple, num_replies: int
  ) -> env_process.Request:
    limit = self.limits.call_timeout_s + self._pool.grace_s
    if kind == 'start':
      limit = max(limit, _REPLAY_S)
    return env_process.Request(self, kind, args, num_replies, limit)

  def begin(self, calls: Sequence[Call]) -> env_process.Request:
    self._count_message()
    return self.request('execute', (list(calls),), len(calls))

  def finish(self, request: env_process.Request) -> list[env.ToolResult]:
    """The results, with what stands for those that were lost."""
    results = list(request.replies)
    while len(results) < request.num_replies:
      results.append(env.ToolResult(self.lost or env.NOT_EXECUTED, False, True))
      self.lost = ''  # said once
    for result in results:
      self._count_result(result.ok)
      self.broken |= result.timeout
    return results

  def execute(self, calls: Sequence[Call]) -> list[env.ToolResult]:
    """As env.Episode.execute."""
    return self._pool.execute([(self, calls)])[0]

  def end_turn(self, forced: bool = False) -> TurnScore:
    """As env.Episode.end_turn."""
    self._check_live()
    score = TurnScore(False, False, rewards.TIMEOUT)
    if not self.broken:
      request = self.request('end_turn', (forced,), 1)
      self._pool.run([request])
      score = request.replies[0] if request.replies else score
    self._close_turn(score, forced)
    if self.done:
      self._pool.forget(self)
    return score

  def abandon(self, reason: str) -> None:
    super().abandon(reason)
    self._pool.forget(self)


class EnvPool:
  """Episodes in processes of their own.

  Attributes:
    grace_s: seconds beyond a call's own limit until its process is killed.
    num_restarts: processes that were replaced.
  """

  def __init__(self, num_workers: int, grace_s: float = _GRACE_S):
    self.grace_s = grace_s
    self.num_restarts = 0
    self._count = 0
    self._workers: list[env_process.Process] = []
    with contextlib.ExitStack() as unless_all:  # one that fails ends the others
      unless_all.callback(self.close)
      for _ in range(num_workers):
        self._workers.append(env_process.Process())
      unless_all.pop_all()

  @property
  def pids(self) -> list[int]:
    return [worker.process.pid for worker in self._workers]

  def start(self, task: Task, limits: env.Limits) -> PooledEpisode:
    """A new episode, in the process with the fewest; returns at once."""
    worker = min(self._workers, key=lambda w: len(w.live))
    episode = PooledEpisode(task, limits, self, self._count)
    self._count += 1
    worker.live[episode.number] = episode
    worker.queue.append(self._start_request(episode))
    self._send_next(worker)
    return episode

  def _start_request(self, episode: PooledEpisode) -> env_process.Request:
    args = (episode.task, episode.limits)
    return episode.request('start', args, 1).fresh(again=True)

  def execute(self, batch: Batch) -> list[list[env.ToolResult]]:
    """Runs messages of different episodes; the results of each."""
    requests = [episode.begin(calls) for episode, calls in batch]
    self.run(requests)
    return [
        episode.finish(request)
        for (episode, _), request in zip(batch, requests, strict=True)
    ]

  def run(self, requests: Sequence[env_process.Request]) -> None:
    """Waits until all requests are answered, or their episodes are lost."""
    for request in requests:
      worker = self._worker_of(request.episode)
      if worker is None or request.episode.broken or not request.num_replies:
        request.done = True
      else:
        worker.queue.append(request)
    for worker in self._workers:
      self._send_next(worker)
    while not all(request.done for request in requests):
      self._receive()

  def forget(self, episode: PooledEpisode) -> None:
    """Frees an episode that is over. Safe to repeat."""
    worker = self._worker_of(episode)
    if worker is None:
      return
    del worker.live[episode.number]
    worker.forgotten.append(episode.number)
    at_work = list(worker.queue)[: worker.sent]
    worker.queue = collections.deque(
        r for r in worker.queue if r.episode is not episode or r in at_work
    )

  def close(self) -> None:
    for worker in self._workers:
      worker.close()

  def __enter__(self) -> 'EnvPool':
    return self

  def __exit__(self, *exc_info) -> None:
    self.close()

  def _worker_of(self, episode: PooledEpisode) -> env_process.Process | None:
    for worker in self._workers:
      if episode.number in worker.live:
        return worker
    return None

  def _send_next(self, worker: env_process.Process) -> None:
    """One request at a time, so that neither side blocks in sending."""
    while worker.queue and not worker.sent:
      try:
        worker.send()
      except OSError:
        self._replace(worker, 'died')

  def _receive(self) -> None:
    """Takes what has come; replaces processes that are late or gone."""
    busy = [worker for worker in self._workers if worker.sent]
    wait_s = min(worker.deadline for worker in busy) - time.monotonic()
    channels = {worker.channel: worker for worker in busy}
    for channel in connection.wait(list(channels), max(0.0, wait_s)):
      try:
        self._take(channels[channel], *channel.recv())
      except (EOFError, OSError):
        self._replace(channels[channel], 'died')
    for worker in busy:
      late = worker.sent and time.monotonic() > worker.deadline
      if late and not worker.channel.poll():
        self._replace(worker, 'hangs')

  def _take(self, worker: env_process.Process, good: bool, value: Any) -> None:
    request = worker.queue[0]
    if not good:
      raise RuntimeError(f'An environment process reports:\n{value}')
    worker.deadline = time.monotonic() + request.timeout_s
    worker.num_lost = 0
    request.replies.append(value)
    if len(request.replies) < request.num_replies:
      return
    worker.queue.popleft()
    worker.sent, request.done = False, True
    if request.kind != 'start':
      self._remember(request)
    self._send_next(worker)

  def _remember(self, request: env_process.Request) -> None:
    """For a later process; or checks that history repeated itself."""
    episode = request.episode
    if not request.again:
      episode.history.append(request.fresh(again=True))
    elif any(getattr(reply, 'timeout', False) for reply in request.replies):
      self._lose(episode, 'stopped while it was played again')

  def _lose(self, episode: PooledEpisode, what: str) -> None:
    """The episode is over; nobody waits for it any more."""
    episode.broken = True
    episode.lost = f'{env.ERROR}{what}'
    for worker in self._workers:
      kept = [r for r in worker.queue if r.episode is not episode]
      for request in worker.queue:
        request.done |= request.episode is episode
      worker.queue = collections.deque(kept)

  def _replace(self, worker: env_process.Process, what: str) -> None:
    """A fresh process, where all but the episode at work are played again."""
    guilty = worker.queue[0].episode if worker.sent else None
    logging.warning(
        'An environment process %s (exit code %s); %s.',
        what, worker.process.poll(),
        f'{guilty.task.task_id} ends as ENV_TIMEOUT' if guilty else
        'no call was running',
    )  # pyformat: disable
    self.num_restarts += 1
    worker.num_lost += 1
    if worker.num_lost >= _MAX_LOST:
      raise errors.UserError(
          f'A process of the environment ended {_MAX_LOST} times in a row '
          'without an answer; see its messages above, or set '
          '--config.rollout.env_workers=0.'
      )
    worker.kill()
    worker.sent = False
    worker.forgotten.clear()
    if guilty is not None:
      limit = guilty.limits.call_timeout_s
      self._lose(
          guilty,
          f'stopped after {limit:g} seconds' if what == 'hangs' else
          'the process of the environment ended',
      )
    waiting = [r for r in worker.queue if not r.again]
    for request in waiting:
      request.replies.clear()
    worker.queue = collections.deque()
    for episode in worker.live.values():
      if not episode.broken:
        worker.queue.append(self._start_request(episode))
        worker.queue += [r.fresh(again=True) for r in episode.history]
    worker.queue += waiting
    worker.spawn()
    self._send_next(worker)
