"""A rollout over several generators, each at work in a thread of its own.

While the host plays what one of them sampled, the others go on: on a CPU two of
them use the cores that one leaves idle. All host work stays in the caller's
thread, one message after the other. Which generator plays which group is fixed
beforehand, and no call to one depends on another, so nothing that they sample
depends on which is faster.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import contextlib
import itertools
import time
from typing import Any

import numpy as np

from rods_jax import types
from rods_jax.host import chat_format
from rods_jax.host import env_pool
from rods_jax.host import rollout as rollout_lib


def rollout(
    jobs: Sequence[rollout_lib.Job],
    generators: Sequence[rollout_lib.Generator],
    fmt: chat_format.ChatFormat,
    budgets: rollout_lib.Budgets,
    policy_version: int = 0,
    environments: env_pool.Environments = env_pool.InProcess(),
) -> rollout_lib.Result:
  """Plays all jobs, the groups of siblings dealt out in turn.

  Args:
    jobs: trajectories to play; siblings of a group stand together.
    generators: one or more; each as in rollout.rollout.
    fmt: the chat format.
    budgets: limits per message, turn and trajectory.
    policy_version: written into the trajectories.
    environments: where the episodes live; it changes no result.

  Returns:
    As rollout.rollout.
  """
  common = fmt, budgets, policy_version, environments
  if len(generators) == 1:
    return rollout_lib.rollout(jobs, generators[0], *common)
  start = time.perf_counter()
  shares = deal(jobs, len(generators))
  with contextlib.ExitStack() as stack:
    workers = [
        stack.enter_context(contextlib.closing(Worker(g))) for g in generators
    ]
    runs = [
        rollout_lib.Rollout([jobs[i] for i in share], worker, *common)
        for share, worker in zip(shares, workers)
    ]
    waited_s = _drive(list(zip(runs, workers)))
  made: list[types.Trajectory | None] = [None] * len(jobs)
  for share, run in zip(shares, runs):
    for i, trajectory in zip(share, run.trajectories, strict=True):
      made[i] = trajectory
  total_s = time.perf_counter() - start
  waited_s += sum(run.generate_s for run in runs)
  return rollout_lib.result_of(
      made,
      total_s=total_s,
      generate_s=union([span for worker in workers for span in worker.spans]),
      host_s=total_s - waited_s,
  )


def deal(jobs: Sequence[rollout_lib.Job], number: int) -> list[list[int]]:
  """Positions of each generator's jobs: whole groups, in turn."""
  shares: list[list[int]] = [[] for _ in range(number)]
  groups = itertools.groupby(
      range(len(jobs)), key=lambda i: jobs[i].task.task_id
  )
  for share, (_, group) in zip(itertools.cycle(shares), groups):
    share += group
  return shares


def _drive(runs: Sequence[tuple[rollout_lib.Rollout, 'Worker']]) -> float:
  """Ends whichever decode is ready, and begins the next one of that run.

  Returns:
    Seconds in which none was ready.
  """
  waited_s = 0.0
  active = [(run, worker) for run, worker in runs if not run.done]
  for run, _ in active:
    run.begin()
  while active:
    ready = [pair for pair in active if not pair[1].at_work]
    for run, worker in ready:
      run.end()
      if run.done:
        active.remove((run, worker))
      else:
        run.begin()
    if not ready:
      start = time.perf_counter()
      futures.wait(
          [worker.decoding for _, worker in active],
          return_when=futures.FIRST_COMPLETED,
      )
      waited_s += time.perf_counter() - start
  for _, worker in runs:
    worker.check()
  return waited_s


class Worker:
  """A generator behind a thread that does its calls in order.

  What fails there is raised where its next decode is waited for, or by `check`.

  Attributes:
    decoding: the decode that was begun last.
    spans: (start, end) of each call, in seconds of time.perf_counter.
  """

  def __init__(self, generator: rollout_lib.Generator):
    self.num_slots, self.capacity = generator.num_slots, generator.capacity
    self.decoding: futures.Future | None = None
    self.spans: list[tuple[float, float]] = []
    self._generator = generator
    self._failure: BaseException | None = None
    self._thread = futures.ThreadPoolExecutor(1)

  @property
  def at_work(self) -> bool:
    return self.decoding is not None and not self.decoding.done()

  def check(self) -> None:
    """Waits for all calls; raises what failed."""
    self._submit(lambda: None).result()

  def close(self) -> None:
    """Waits for the call at work; drops those behind it."""
    self._thread.shutdown(cancel_futures=True)

  def start(self, slot: int, uid: int) -> None:
    self._submit(self._generator.start, slot, uid)

  def extend(self, rows: Mapping[int, np.ndarray]) -> None:
    self._submit(self._generator.extend, rows)

  def copy(self, src: int, dsts: Sequence[int], length: int) -> None:
    self._submit(self._generator.copy, src, dsts, length)

  def begin_decode(
      self, budgets: Mapping[int, int], min_running: int
  ) -> Callable[[], Mapping[int, rollout_lib.Generated]]:
    decode = lambda: self._generator.begin_decode(budgets, min_running)()
    self.decoding = self._submit(decode)
    return self.decoding.result

  def _submit(self, call: Callable[..., Any], *args) -> futures.Future:
    return self._thread.submit(self._run, call, *args)

  def _run(self, call: Callable[..., Any], *args) -> Any:
    if self._failure is not None:
      raise self._failure
    start = time.perf_counter()
    try:
      return call(*args)
    except BaseException as error:
      self._failure = error
      raise
    finally:
      self.spans.append((start, time.perf_counter()))


def union(spans: Sequence[tuple[float, float]]) -> float:
  """The length of what (start, end) pairs cover together."""
  total, reached = 0.0, -float('inf')
  for start, end in sorted(spans):
    total += max(0.0, end - max(start, reached))
    reached = max(reached, end)
  return total
