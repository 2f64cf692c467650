"""Records of the active pool: its limits and one active task.

Used as replay.PoolConfig and replay.Entry.
"""

import dataclasses
from typing import Any, Mapping

from rods_jax import types
from rods_jax.host import boundary


@dataclasses.dataclass(frozen=True)
class PoolConfig:
  """Limits of the pool and of its life cycle.

  Attributes:
    max_generated: P_max, generated tasks that are active at one time.
    inject_fraction: of the pool's size, that one epoch may add at most.
    retire_above: mean progress over it retires; 1.0 never does.
    retire_below: mean progress under it retires; 0.0 never does.
    retire_human: whether human tasks retire too.
    cooldown_epochs: epochs that a seed rests after it was used.
  """

  max_generated: int
  inject_fraction: float
  retire_above: float
  retire_below: float
  retire_human: bool
  cooldown_epochs: int

  def __post_init__(self):
    for valid, rule in (
        (self.max_generated >= 0, 'max_generated >= 0'),
        (0 <= self.inject_fraction <= 1, '0 <= inject_fraction <= 1'),
        (
            0 <= self.retire_below < self.retire_above <= 1,
            '0 <= retire_below < retire_above <= 1',
        ),
        (self.cooldown_epochs >= 0, 'cooldown_epochs >= 0'),
    ):
      if not valid:
        raise ValueError(f'pool must satisfy {rule}; got {self}.')


@dataclasses.dataclass(frozen=True)
class Entry:
  """An active task and its last statistics, None before the first visit."""

  id: int
  task: types.Task
  visits: int = 0
  count: int = 0
  mean: float | None = None
  variance: float | None = None
  last_visit: int | None = None
  last_seeded: int | None = None

  @property
  def generated(self) -> bool:
    return self.task.origin == 'generated'

  @property
  def candidate(self) -> boundary.Candidate:
    """What a seed selector sees of it."""
    return boundary.Candidate(
        id=self.id,
        category=self.task.category,
        count=self.count,
        mean=self.mean,
        variance=self.variance,
        last_visit=self.last_visit,
    )

  def to_json(self) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(self))
    fields = {name: getattr(self, name) for name in names}
    return {**fields, 'task': self.task.to_json()}

  @classmethod
  def from_json(cls, data: Mapping[str, Any]) -> 'Entry':
    """Inverse of to_json, also after a round trip through JSON text."""
    return cls(**{**data, 'task': types.Task.from_json(data['task'])})
