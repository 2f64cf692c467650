"""The active pool: which tasks are trained on, and what became of each.

Life cycle of an epoch, in the order in which the training loop calls it:

  order      shuffled ids of the active tasks
  record     statistics of the visits, read from the device once per epoch
  retire     generated tasks that are mastered or hopeless leave
  inject     variants made during the epoch enter, at most a fifth of the pool
  choose_seeds   tasks that synthesis starts from during the next epoch

Ids are int32 and never used again. Everything that happens becomes an event of
pool_log.EventLog.
"""

import dataclasses
import logging
import math
from typing import Any, Mapping, Sequence

import numpy as np

from rods_jax import types
from rods_jax.host import boundary as boundary_lib
from rods_jax.host import pool_log
from rods_jax.host import pool_records

PoolConfig = pool_records.PoolConfig
Entry = pool_records.Entry


class Pool:
  """Human tasks plus at most `max_generated` generated ones.

  Attributes:
    config: limits and thresholds.
    boundary: thresholds of the zones.
    waiting: generated tasks over the injection cap, first come first served.
      At most max_generated of them are kept: over that the oldest, made from
      the statistics that are furthest from now, are dropped.
    log: what happened to each task.
    num_duplicates: injected tasks refused because their content was seen.
    num_dropped: waiting tasks dropped over the bound.
  """

  def __init__(
      self,
      tasks_human: Sequence[types.Task],
      config: PoolConfig,
      boundary: boundary_lib.BoundaryConfig,
      selector: boundary_lib.Selector | None = None,
  ):
    """An unvisited pool of `tasks_human`, added at epoch 0, ids from 0.

    Args:
      tasks_human: the tasks that are there from the start.
      config: limits and thresholds.
      boundary: thresholds of the zones.
      selector: rule that chooses seeds; RODS' own where None.

    Raises:
      ValueError: no task, the same task twice, or thresholds that would retire
        tasks of the boundary.
    """
    self._configure(config, boundary, selector)
    if not tasks_human:
      raise ValueError('the pool needs at least one task.')
    for task in tasks_human:
      if task.content_hash() in self._hashes:
        raise ValueError(f'the pool was given task {task.task_id} twice.')
      self._add(0, task)

  def _configure(self, config, boundary, selector):
    if (
        config.retire_below > boundary.hard_below
        or config.retire_above < boundary.mastered_above
    ):
      raise ValueError(
          f'pool.retire_below={config.retire_below} and pool.retire_above='
          f'{config.retire_above} must not lie inside the boundary, '
          f'{boundary.hard_below} to {boundary.mastered_above}: its tasks '
          'would be retired.'
      )
    self.config = config
    self.boundary = boundary
    self._select = selector or boundary_lib.make_selector('rods', boundary)
    self._entries: dict[int, Entry] = {}
    self._hashes: dict[str, None] = {}  # of everything ever seen, in order
    self._latest: dict[int, tuple[float, float]] = {}  # of the last epoch
    self._epoch = -1  # of the last statistics
    self._next_id = 0
    self.waiting: list[types.Task] = []
    self.log = pool_log.EventLog()
    self.num_duplicates = 0
    self.num_dropped = 0

  # Reading.

  def __len__(self) -> int:
    return len(self._entries)

  @property
  def active_ids(self) -> list[int]:
    """Ids of the active tasks, ascending."""
    return sorted(self._entries)

  @property
  def num_generated(self) -> int:
    return sum(e.generated for e in self._entries.values())

  @property
  def events(self) -> list[dict[str, Any]]:
    """Events since the start or the last restore, append-only."""
    return self.log.events

  def task(self, task_id: int) -> types.Task:
    """The active task with this id; KeyError for any other."""
    return self._entries[task_id].task

  def entry(self, task_id: int) -> Entry:
    """The active task with its last statistics; KeyError for any other."""
    return self._entries[task_id]

  def hashes(self) -> frozenset[str]:
    """Content hashes of all tasks ever added or waiting."""
    return frozenset(self._hashes)

  def order(self, rng: np.random.Generator) -> np.ndarray:
    """Active ids in random order, int32 [pool size]."""
    return rng.permutation(np.asarray(self.active_ids, np.int32))

  def injection_cap(self) -> int:
    """Tasks that `inject` would add now at most."""
    # The small term keeps 0.29 * 100 = 28.999999999999996 at 29.
    cap = math.floor(self.config.inject_fraction * len(self) + 1e-9)
    return min(cap, self.config.max_generated)

  def partition(self) -> dict[str, list[int]]:
    """Zone -> ids of the active tasks, by the last visit of each.

    Tasks that were never visited are in no zone.
    """
    zones = {zone: [] for zone in boundary_lib.ZONES}
    for task_id in self.active_ids:
      mean = self._entries[task_id].mean
      if mean is not None:
        zones[boundary_lib.zone(mean, self.boundary)].append(task_id)
    return zones

  def zone_variance(self) -> dict[str, float | None]:
    """Zone -> mean over its groups of the last epoch of their variance.

    Also counts tasks that were retired since; None for a zone without visit.
    """
    groups = {zone: [] for zone in boundary_lib.ZONES}
    for mean, variance in self._latest.values():
      groups[boundary_lib.zone(mean, self.boundary)].append(variance)
    return {z: sum(v) / len(v) if v else None for z, v in groups.items()}

  # The life cycle.

  def record(
      self, epoch: int, stats: Mapping[int, types.SeedStats]
  ) -> None:
    """Takes the statistics of an epoch's visits.

    A task that is missing or has count 0 was not visited: its statistics stay
    what they were.

    Raises:
      ValueError: statistics of a task that isn't active, outside [0, 1], or of
        an epoch before the last.
    """
    if epoch < self._epoch:
      raise ValueError(
          f'statistics of epoch {epoch} after those of epoch {self._epoch}.'
      )
    visited = {int(i): s for i, s in sorted(stats.items()) if s.count}
    for task_id, s in visited.items():
      if task_id not in self._entries:
        raise ValueError(f'statistics of task id {task_id}: not active.')
      # Written so that NaN fails too.
      if not -boundary_lib.TOLERANCE <= s.mean <= 1 + boundary_lib.TOLERANCE:
        raise ValueError(
            f'mean progress of task id {task_id} is {s.mean}: not in [0, 1].'
        )
    if epoch > self._epoch:
      self._epoch, self._latest = epoch, {}
    for task_id, s in visited.items():
      self._visit(epoch, task_id, s)

  def _visit(self, epoch: int, task_id: int, stats: types.SeedStats):
    entry = self._entries[task_id]
    mean = min(max(float(stats.mean), 0.0), 1.0)
    variance = float(stats.variance)
    self._entries[task_id] = dataclasses.replace(
        entry,
        visits=entry.visits + 1,
        count=int(stats.count),
        mean=mean,
        variance=variance,
        last_visit=epoch,
    )
    self._latest[task_id] = (mean, variance)
    self.log.append(
        'visit',
        epoch,
        task_id,
        count=int(stats.count),
        mean=mean,
        variance=variance,
        zone=boundary_lib.zone(mean, self.boundary),
    )

  def retire(self, epoch: int) -> list[tuple[int, str]]:
    """Removes what the last visits showed to be of no more use.

    Returns:
      (id, reason) of each: 'mastered', 'hard', or 'burn_in' for a generated
      task that is hard at its first visit. The last task of a pool stays.
    """
    leaving = []
    for task_id in self.active_ids:
      reason = self._verdict(self._entries[task_id])
      if reason:
        leaving.append((task_id, reason))
    if len(leaving) == len(self):
      best = min(self.active_ids, key=self._rank)
      logging.warning('All tasks would retire; id %d stays.', best)
      leaving = [(i, r) for i, r in leaving if i != best]
    for task_id, reason in leaving:
      self._remove(epoch, task_id, reason)
    return leaving

  def _verdict(self, entry: Entry) -> str | None:
    if entry.mean is None:
      return None
    if not (entry.generated or self.config.retire_human):
      return None
    if boundary_lib.above(entry.mean, self.config.retire_above):
      return 'mastered'
    if boundary_lib.below(entry.mean, self.config.retire_below):
      return 'burn_in' if entry.generated and entry.visits == 1 else 'hard'
    return None

  def _rank(self, task_id: int) -> tuple[float, int]:
    return boundary_lib.rank(self._entries[task_id].mean, task_id)

  def inject(self, epoch: int, tasks: Sequence[types.Task]) -> list[int]:
    """Adds waiting and new generated tasks up to the cap.

    Tasks whose content was ever seen are refused and counted. Over
    max_generated the generated task with the lowest phi leaves first; those
    without statistics leave last, ties by id.

    Returns:
      The ids of the added tasks.

    Raises:
      ValueError: a task without a parent.
    """
    for task in tasks:
      if task.parent is None:
        raise ValueError(
            f'task {task.task_id} has no parent: only generated tasks can be '
            'injected.'
        )
    cap = self.injection_cap()
    for task in tasks:
      if task.content_hash() in self._hashes:
        self.num_duplicates += 1
        continue
      self._hashes[task.content_hash()] = None
      self.waiting.append(task)
    entering, self.waiting = self.waiting[:cap], self.waiting[cap:]
    surplus = max(0, len(self.waiting) - self.config.max_generated)
    if surplus:
      self.num_dropped += surplus
      self.waiting = self.waiting[surplus:]
    self._make_room(epoch, len(entering))
    return [self._add(epoch, task) for task in entering]

  def _make_room(self, epoch: int, num_new: int):
    """Retires generated tasks so that `num_new` fit under max_generated."""

    def key(entry):
      if entry.mean is None:
        return (1, 0.0, entry.id)
      return (0, round(boundary_lib.priority(entry.mean), 6), entry.id)

    over = self.num_generated + num_new - self.config.max_generated
    generated = [e for e in self._entries.values() if e.generated]
    for entry in sorted(generated, key=key)[: max(over, 0)]:
      self._remove(epoch, entry.id, 'capacity')

  def choose_seeds(self, epoch: int) -> list[int]:
    """Ids that synthesis starts from: at most one per task it may inject."""
    rested = [
        e
        for e in self._entries.values()
        if boundary_lib.rested(
            e.last_seeded, epoch, self.config.cooldown_epochs
        )
    ]
    candidates = [e.candidate for e in sorted(rested, key=lambda e: e.id)]
    chosen = self._select(candidates, self.injection_cap(), epoch)
    for task_id in chosen:
      entry = self._entries[task_id]
      self._entries[task_id] = dataclasses.replace(entry, last_seeded=epoch)
      phi = None if entry.mean is None else boundary_lib.priority(entry.mean)
      self.log.append('seed', epoch, task_id, priority=phi)
    return chosen

  # Bookkeeping.

  def _add(self, epoch: int, task: types.Task) -> int:
    task_id = self._next_id
    self._next_id += 1
    self._entries[task_id] = Entry(task_id, task)
    content = task.content_hash()
    self._hashes[content] = None
    self.log.append(
        'added',
        epoch,
        task_id,
        task_id=task.task_id,
        origin=task.origin,
        parent=task.parent,
        category=task.category,
        scenario=task.scenario,
        hash=content,
    )
    return task_id

  def _remove(self, epoch: int, task_id: int, reason: str):
    entry = self._entries.pop(task_id)
    self.log.append('retired', epoch, task_id, reason=reason, mean=entry.mean)

  # Saving.

  def state_dict(self) -> dict[str, Any]:
    """JSON-serializable state; thresholds and past events are not in it."""
    return {
        'entries': [self._entries[i].to_json() for i in self.active_ids],
        'hashes': list(self._hashes),
        'latest': [[i, *values] for i, values in self._latest.items()],
        'epoch': self._epoch,
        'next_id': self._next_id,
        'waiting': [task.to_json() for task in self.waiting],
        'num_events': len(self.log),
        'num_duplicates': self.num_duplicates,
        'num_dropped': self.num_dropped,
    }

  @classmethod
  def from_state(
      cls,
      state: Mapping[str, Any],
      config: PoolConfig,
      boundary: boundary_lib.BoundaryConfig,
      selector: boundary_lib.Selector | None = None,
  ) -> 'Pool':
    """The pool that state_dict described; `events` starts empty."""
    pool = cls.__new__(cls)
    pool._configure(config, boundary, selector)
    for row in state['entries']:
      pool._entries[row['id']] = Entry.from_json(row)
    pool._hashes = dict.fromkeys(state['hashes'])
    pool._latest = {i: (mean, var) for i, mean, var in state['latest']}
    pool._epoch = state['epoch']
    pool._next_id = state['next_id']
    pool.waiting = [types.Task.from_json(t) for t in state['waiting']]
    pool.log = pool_log.EventLog(num_past=state['num_events'])
    pool.num_duplicates = state['num_duplicates']
    pool.num_dropped = state['num_dropped']
    return pool
