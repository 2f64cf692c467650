"""The capability boundary: zones of tasks and the choice of synthesis seeds.

For a reward in [0, 1] with mean r the variance is at most r (1 - r)
(Bhatia-Davis), so the tasks near r = 1/2 carry the most gradient of a GRPO
group. Tasks are cut into hard, boundary and mastered by r, ranked by
phi(r) = 4 r (1 - r), and the best of each category become seeds.

A rule that chooses seeds is a `Selector`. A baseline with another rule is one
function here and one line in SELECTORS.
"""

import collections
import dataclasses
from typing import Callable, Mapping, Protocol, Sequence

from rods_jax import rng as rng_lib

ZONES = ('hard', 'boundary', 'mastered')

# Means come from float32 sums: eight rewards of 0.2 may sum to 1.5999999. A
# mean this close to a threshold is on it. Rewards are k/N for N <= 8 turns, so
# distinct means of one group size are at least 1e-3 apart.
TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class BoundaryConfig:
  """Thresholds on the mean progress reward r of a task's group.

  Attributes:
    hard_below: r under it is hard.
    mastered_above: r over it is mastered. Both ends belong to the boundary.
  """

  hard_below: float
  mastered_above: float

  def __post_init__(self):
    if not 0 < self.hard_below < self.mastered_above < 1:
      raise ValueError(
          'boundary thresholds must satisfy 0 < hard_below < mastered_above '
          f'< 1; got hard_below={self.hard_below}, '
          f'mastered_above={self.mastered_above}.'
      )


@dataclasses.dataclass(frozen=True)
class Candidate:
  """What a selector may know about one active task.

  Attributes:
    id: the pool's id.
    category: BFCL category.
    count: trajectories of the last visit; 0 before the first.
    mean: mean progress at the last visit; None before the first.
    variance: variance of progress at the last visit; None before the first.
    last_visit: epoch of the last visit; None before the first.
  """

  id: int
  category: str
  count: int = 0
  mean: float | None = None
  variance: float | None = None
  last_visit: int | None = None


class Selector(Protocol):
  """Statistics of the rested active tasks -> ids of at most `budget` seeds.

  Must be a pure function of its arguments, so that a resumed run chooses the
  same seeds.
  """

  def __call__(
      self, candidates: Sequence[Candidate], budget: int, epoch: int
  ) -> list[int]:
    ...


def below(mean: float, threshold: float) -> bool:
  """mean < threshold, with a mean on the threshold not below it."""
  return mean < threshold - TOLERANCE


def above(mean: float, threshold: float) -> bool:
  """mean > threshold, with a mean on the threshold not above it."""
  return mean > threshold + TOLERANCE


def zone(mean: float, config: BoundaryConfig) -> str:
  """The zone of a task with this mean progress: one of ZONES."""
  if below(mean, config.hard_below):
    return 'hard'
  if above(mean, config.mastered_above):
    return 'mastered'
  return 'boundary'


def priority(mean: float) -> float:
  """phi(r) = 4 r (1 - r): 1 at r = 1/2, 0 at both ends."""
  return 4 * mean * (1 - mean)


def rank(mean: float, task_id: int) -> tuple[float, int]:
  """Sort key: highest phi first, equal phi by id.

  phi is rounded so that r and 1 - r tie in spite of float32 noise.
  """
  return (-round(priority(mean), 6), task_id)


def rested(last_seeded: int | None, epoch: int, cooldown: int) -> bool:
  """Whether a seed used in epoch `last_seeded` may be used again.

  With a cooldown of 1 a seed of epoch 3 rests in epoch 4.
  """
  return last_seeded is None or epoch - last_seeded > cooldown


def choose_seeds(
    candidates: Sequence[Candidate], budget: int, config: BoundaryConfig
) -> list[int]:
  """RODS: the top phi of the boundary inside equal quotas of the categories.

  Categories take turns, each its best remaining candidate, until the budget is
  spent. That gives equal quotas, hands what a poor category can't use to the
  others, and gives the remainder of the division to the highest phi.

  Args:
    candidates: rested active tasks.
    budget: number of seeds wanted.
    config: thresholds of the boundary.

  Returns:
    At most `budget` distinct ids, highest phi first, ties by id.
  """
  queues = collections.defaultdict(list)
  for c in candidates:
    if c.mean is not None and zone(c.mean, config) == 'boundary':
      queues[c.category].append(rank(c.mean, c.id))
  for queue in queues.values():
    queue.sort()
  chosen = []
  depth = 0
  while len(chosen) < budget:
    row = sorted(q[depth] for q in queues.values() if depth < len(q))
    if not row:
      break
    chosen += row[: budget - len(chosen)]
    depth += 1
  return [task_id for _, task_id in sorted(chosen)]


def _rods(config: BoundaryConfig, rng_seed: int) -> Selector:
  del rng_seed  # draws nothing
  return lambda candidates, budget, epoch: choose_seeds(
      candidates, budget, config
  )


def _random(config: BoundaryConfig, rng_seed: int) -> Selector:
  """Seeds by chance from all active tasks, whatever their statistics."""
  del config

  def select(candidates, budget, epoch):
    ids = sorted(c.id for c in candidates)
    rng = rng_lib.host(rng_seed, 'seed_selection', epoch)
    return [int(i) for i in rng.permutation(ids)[: max(budget, 0)]]

  return select


SELECTORS: Mapping[str, Callable[[BoundaryConfig, int], Selector]] = {
    'rods': _rods,
    'random': _random,
}


def make_selector(
    name: str, config: BoundaryConfig, rng_seed: int = 0
) -> Selector:
  """The selector called `name`; `rng_seed` feeds those that draw."""
  if name not in SELECTORS:
    raise ValueError(
        f'no seed selector {name!r}; use one of {", ".join(SELECTORS)}.'
    )
  return SELECTORS[name](config, rng_seed)
