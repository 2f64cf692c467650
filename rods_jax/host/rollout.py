"""Multi-turn rollouts: the policy's messages against live environments.

Slots of the generator are filled from a queue of jobs and refilled as
trajectories end (continuous batching). A row is append-only: token, loss mask
and log-probability are written together. The first piece of a group's prompt
is prefilled once and copied to its siblings. The generator is an argument, so
all of this runs and is tested without a model.

With Budgets.overlap_tokens the generator is already at work on the other rows
while messages are parsed and tools run. How far it gets is a number of tokens,
never a time, so that no result depends on which side is faster.
"""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import time
from typing import Protocol

import numpy as np

from rods_jax import types
from rods_jax.host import chat_format
from rods_jax.host import env
from rods_jax.host import env_pool
from rods_jax.host import rewards
from rods_jax.host import row as row_lib
from rods_jax.host import tool_calls

OUT_OF_TOKENS = 'the token budget ran out'


class Generated(Protocol):
  """What a decode call returns for one slot."""

  tokens: np.ndarray  # int32 [n]
  logprobs: np.ndarray  # float32 [n]
  finished: bool  # the last token is the end token


class Generator(Protocol):
  """The device side of a rollout; see rods_jax.engine.Engine."""

  num_slots: int
  capacity: int  # most tokens in a row

  def start(self, slot: int, uid: int) -> None: ...

  def extend(self, rows: Mapping[int, np.ndarray]) -> None: ...

  def copy(self, src: int, dsts: Sequence[int], length: int) -> None: ...

  def begin_decode(
      self, budgets: Mapping[int, int], min_running: int
  ) -> Callable[[], Mapping[int, Generated]]: ...


@dataclasses.dataclass(frozen=True)
class Job:
  """One trajectory to play; uid names its random stream."""

  task: types.Task
  sample: int
  uid: int


@dataclasses.dataclass(frozen=True)
class Budgets:
  """Limits of a rollout, in tokens and in the environment's units."""

  max_message_tokens: int
  limits: env.Limits
  refill_below: float = 0.25  # decode returns at this share of running slots
  overlap_tokens: int = 0  # decoded per row while messages are played; 0: none


@dataclasses.dataclass(frozen=True)
class Result:
  """Trajectories in the order of the jobs, and where the time went.

  Attributes:
    total_s: seconds of the whole rollout.
    generate_s: with a generator at work; of several at work, counted once.
    host_s: of host work: tools, rewards, tokenizing, bookkeeping. With several
      generators, or overlap_tokens, a generator may be at work meanwhile.
    sampled_tokens: tokens the policy sampled.
    row_tokens: tokens of all rows.
  """

  trajectories: list[types.Trajectory]
  total_s: float
  generate_s: float
  host_s: float
  sampled_tokens: int
  row_tokens: int


class Rollout:
  """All jobs of one generator: `begin` and `end` in turn, until it is done.

  Between the two the generator is at work.
  """

  def __init__(
      self,
      jobs: Sequence[Job],
      generator: Generator,
      fmt: chat_format.ChatFormat,
      budgets: Budgets,
      policy_version: int,
      environments: env_pool.Environments,
  ):
    self.generator, self.fmt, self.budgets = generator, fmt, budgets
    self.environments, self.policy_version = environments, policy_version
    self.queue = collections.deque(enumerate(jobs))
    self.free = list(range(generator.num_slots))[::-1]
    self.index: dict[int, int] = {}  # slot -> position in jobs
    self.rows: dict[int, row_lib.Row] = {}  # slot -> row
    self.heard: dict[int, row_lib.Row] = {}  # whose message is to be played
    self.made: dict[int, types.Trajectory] = {}  # position in jobs -> it
    self.finish_decode: Callable[[], Mapping[int, Generated]] = dict
    self.generate_s = 0.0  # within calls of the generator

  @property
  def done(self) -> bool:
    return not self.queue and not self.rows

  @property
  def trajectories(self) -> list[types.Trajectory]:
    """In the order of the jobs, once all are done."""
    return [self.made[i] for i in range(len(self.made))]

  def begin(self) -> None:
    """Fills free slots and lets the generator sample.

    With overlap_tokens: what was said in the step before is played meanwhile.
    """
    self.refill()
    before, self.heard = self.heard, {}
    self.finish_decode = self.begin_decode(bool(before), before.keys())
    self.play_all(before.values())

  def end(self) -> None:
    """Takes what was sampled, and plays what was said."""
    for slot, part in self.timed(self.finish_decode).items():
      self.take(slot, part)
    if not self.budgets.overlap_tokens:
      self.play_all(self.heard.values())
      self.heard = {}
    self.extend([slot for slot, row in self.rows.items() if row.pending])
    for slot, row in list(self.rows.items()):
      if row.status is not None:
        trajectory = row.trajectory(self.policy_version)
        self.made[self.index[slot]] = trajectory
        del self.rows[slot]
        self.free.append(slot)

  def timed(self, function, *args):
    start = time.perf_counter()
    result = function(*args)
    self.generate_s += time.perf_counter() - start
    return result

  def refill(self) -> None:
    """Starts waiting jobs in free slots."""
    slots, jobs = [], []
    while self.free and self.queue:
      slots.append(self.free.pop())
      self.index[slots[-1]], job = self.queue.popleft()
      jobs.append(job)
    if jobs:
      self.start(slots, jobs)

  def open_turn(self, row: row_lib.Row) -> list[int]:
    """The tokens that open the current turn: new tools and user text."""
    turn = row.task.turns[row.episode.turn]
    first = row.episode.turn == 0
    tools = row.episode.on_offer() if first else turn.new_tools
    if tools:
      row.log('system', ' '.join(sorted(tools)))
    row.log('user', turn.user)
    if first:
      return self.fmt.prompt(tools, turn.user)
    return self.fmt.turn(turn.user, tools)

  def start(self, slots: Sequence[int], jobs: Sequence[Job]) -> None:
    """Fills free slots; a group's prompt is prefilled once."""
    donors = {
        row.task.task_id: slot for slot, row in self.rows.items()
    }
    own, copies = [], collections.defaultdict(list)
    for slot, job in zip(slots, jobs, strict=True):
      episode = self.environments.start(job.task, self.budgets.limits)
      row = row_lib.Row(job.task, job.sample, episode)
      row.append(self.open_turn(row))
      self.rows[slot] = row
      self.timed(self.generator.start, slot, job.uid)
      donor = donors.setdefault(job.task.task_id, slot)
      if donor == slot or len(row.tokens) >= self.generator.capacity:
        own.append(slot)
      else:
        copies[donor].append(slot)
    self.extend(own)
    for donor, dsts in copies.items():
      prompt = self.rows[dsts[0]].tokens
      self.timed(self.generator.copy, donor, dsts, len(prompt))
      for slot in dsts:
        self.rows[slot].pending.clear()

  def extend(self, slots: Sequence[int]) -> None:
    """Sends pending tokens; a row without room ends here."""
    batch = {}
    for slot in slots:
      row = self.rows[slot]
      if len(row.tokens) >= self.generator.capacity:
        self.stop(row, types.Status.MAX_TOKENS, OUT_OF_TOKENS)
      elif row.pending:
        batch[slot] = np.array(row.pending, np.int32)
        row.pending.clear()
    if batch:
      self.timed(self.generator.extend, batch)

  def stop(self, row: row_lib.Row, status: types.Status, reason: str) -> None:
    row.episode.abandon(reason)
    self.finish(row, status)

  def finish(self, row: row_lib.Row, status: types.Status) -> None:
    row.status = status
    row.drop_pending()

  def begin_decode(self, waiting: bool, silent: Collection[int]):
    """Lets all slots but the silent ones sample; a function that waits.

    Args:
      waiting: other rows are played meanwhile, and are to go on soon.
      silent: slots whose messages have ended.
    """
    limit, capacity = self.budgets.max_message_tokens, self.generator.capacity
    budgets = {
        slot: min(limit - len(row.message), capacity - len(row.tokens))
        for slot, row in self.rows.items()
        if row.status is None and slot not in silent
    }
    if not budgets:
      return dict
    running = int(len(budgets) * self.budgets.refill_below)
    if waiting:
      running, most = 0, self.budgets.overlap_tokens
      budgets = {slot: min(n, most) for slot, n in budgets.items()}
    return self.timed(self.generator.begin_decode, budgets, running)

  def take(self, slot: int, part: Generated) -> None:
    """Appends what a slot sampled; a message that ended is heard."""
    row = self.rows[slot]
    row.append_sampled(part.tokens, part.logprobs)
    row.ended = part.finished
    if part.finished or len(row.message) >= self.budgets.max_message_tokens:
      self.heard[slot] = row
    elif len(row.tokens) >= self.generator.capacity:
      row.log('assistant', self.fmt.text(row.message))
      self.stop(row, types.Status.MAX_TOKENS, OUT_OF_TOKENS)

  def play_all(self, rows: Collection[row_lib.Row]) -> None:
    """Answers messages that ended: calls, errors, the end of a turn."""
    for row in rows:
      (self.play if row.ended else self.close_message)(row)
    self.execute(rows)

  def close_message(self, row: row_lib.Row) -> None:
    """Ends a message at its token cap: an error, never a silent cut."""
    text = self.fmt.text(row.message)
    row.append([self.fmt.end_id])  # written here, so it is not trained on
    self.parse_error(row, text, 'message too long')

  def play(self, row: row_lib.Row) -> None:
    """Parses a finished message; ends the turn, or leaves its calls."""
    text = self.fmt.text(row.message)
    try:
      calls = self.fmt.parse(text)
    except tool_calls.ParseError as error:
      self.parse_error(row, text, str(error))
      return
    row.end_message(text)
    if not calls:
      self.end_turn(row)
    elif not row.episode.rounds_left:
      self.end_turn(row, forced=True)  # these calls are not executed
    else:
      row.calls = calls

  def execute(self, rows: Collection[row_lib.Row]) -> None:
    """Runs the calls of all messages that ended, and answers them."""
    rows = [row for row in rows if row.calls]
    results = self.environments.execute(
        [(row.episode, row.calls) for row in rows]
    )
    for row, found in zip(rows, results, strict=True):
      row.calls = []
      self.answer(row, [result.text for result in found])
      self.check_world(row)

  def check_world(self, row: row_lib.Row) -> None:
    if row.episode.broken:
      self.stop(row, types.Status.ENV_TIMEOUT, rewards.TIMEOUT)

  def parse_error(self, row: row_lib.Row, text: str, reason: str) -> None:
    row.end_message(text)
    last = not row.episode.rounds_left  # before this message is counted
    row.episode.parse_error(reason)
    if last:
      self.end_turn(row, forced=True)
    else:
      self.answer(row, [f'Error: {reason}'])

  def answer(self, row: row_lib.Row, texts: Sequence[str]) -> None:
    for text in texts:
      row.log('tool', text)
    row.append(self.fmt.results(texts))

  def end_turn(self, row: row_lib.Row, forced: bool = False) -> None:
    row.episode.end_turn(forced=forced)
    row.forced |= forced
    self.check_world(row)
    if row.status is not None:
      return
    if row.episode.done:
      self.finish(
          row, types.Status.MAX_ROUNDS if row.forced else types.Status.DONE
      )
    else:
      row.append(self.open_turn(row))


def rollout(
    jobs: Sequence[Job],
    generator: Generator,
    fmt: chat_format.ChatFormat,
    budgets: Budgets,
    policy_version: int = 0,
    environments: env_pool.Environments = env_pool.InProcess(),
) -> Result:
  """Plays all jobs; the result does not depend on the number of slots.

  Args:
    jobs: trajectories to play; siblings of a group stand together.
    generator: an engine that was reset for this policy version.
    fmt: the chat format.
    budgets: limits per message, turn and trajectory.
    policy_version: written into the trajectories.
    environments: where the episodes live; it changes no result.
  """
  begin = time.perf_counter()
  run = Rollout(jobs, generator, fmt, budgets, policy_version, environments)
  while not run.done:
    run.begin()
    run.end()
  total_s = time.perf_counter() - begin
  return result_of(
      run.trajectories,
      total_s=total_s,
      generate_s=run.generate_s,
      host_s=total_s - run.generate_s,
  )


def result_of(
    trajectories: list[types.Trajectory], **seconds: float
) -> Result:
  """With what is counted of the trajectories."""
  return Result(
      trajectories=trajectories,
      **seconds,
      sampled_tokens=sum(int(t.loss_mask.sum()) for t in trajectories),
      row_tokens=sum(len(t.tokens) for t in trajectories),
  )
