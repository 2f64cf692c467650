"""Tests of the zones, the priority and the choice of seeds."""

import numpy as np
import pytest

from rods_jax.host import boundary

CONFIG = boundary.BoundaryConfig(hard_below=0.20, mastered_above=0.85)


def _candidates(*rows):
  """(id, category, mean) rows."""
  return [boundary.Candidate(i, c, count=8, mean=m) for i, c, m in rows]


@pytest.mark.parametrize(
    'mean, zone',
    [
        (0.0, 'hard'),
        (0.19, 'hard'),
        (0.20, 'boundary'),
        (0.5, 'boundary'),
        (0.85, 'boundary'),
        (0.86, 'mastered'),
        (1.0, 'mastered'),
    ],
)
def test_zone_holds_both_ends(mean, zone):
  assert boundary.zone(mean, CONFIG) == zone


def test_zone_of_a_float32_mean_on_the_threshold():
  """Thirty rewards of 1/5 summed in float32 have a mean under 0.2.

  A plain r < 0.20 called such tasks hard and retired them at their first
  visit, although every trajectory made exactly the 0.20 that still counts.
  """
  total = np.float32(0)
  for _ in range(30):
    total += np.float32(0.2)
  for mean in (float(total) / 30, 0.2 - 6e-8, 0.2 + 6e-8):
    assert boundary.zone(mean, CONFIG) == 'boundary'
  assert 0.2 - 6e-8 < CONFIG.hard_below  # the plain comparison says hard
  assert boundary.zone(0.85 + 6e-8, CONFIG) == 'boundary'


@pytest.mark.parametrize(
    'hard, mastered', [(0.85, 0.2), (0.5, 0.5), (0, 0.5), (0.2, 1), (-1, 0.5)]
)
def test_crossed_thresholds_are_refused(hard, mastered):
  with pytest.raises(ValueError, match='hard_below < mastered_above') as e:
    boundary.BoundaryConfig(hard, mastered)
  assert '\n' not in str(e.value)


def test_priority_is_the_variance_bound_over_its_maximum():
  assert boundary.priority(0.5) == 1.0
  assert boundary.priority(0.25) == 0.75  # 4 * 1/4 * 3/4
  assert boundary.priority(0.0) == boundary.priority(1.0) == 0.0


def test_highest_phi_of_the_boundary_only():
  rows = _candidates(
      (0, 'base', 0.1),  # hard
      (1, 'base', 0.25),  # phi 0.75
      (2, 'base', 0.5),  # phi 1
      (3, 'base', 0.9),  # mastered: trains on, is no seed
      (4, 'base', 0.8),  # phi 0.64
  ) + [boundary.Candidate(5, 'base')]  # never visited
  assert boundary.choose_seeds(rows, 2, CONFIG) == [2, 1]
  assert boundary.choose_seeds(rows, 9, CONFIG) == [2, 1, 4]
  assert boundary.choose_seeds(rows, 0, CONFIG) == []


def test_quotas_are_equal_and_unused_quota_flows_on():
  # 6 base tasks better than everything else, 3 of miss_func, 1 of miss_param.
  rows = _candidates(
      *((i, 'base', 0.5) for i in range(6)),
      *((10 + i, 'miss_func', 0.4) for i in range(3)),
      (20, 'miss_param', 0.3),
  )
  # 6 / 3 = 2 each; miss_param uses 1 of its 2, the spare one goes to base,
  # whose next phi (1.0) beats miss_func's (0.96). Without quotas: all base.
  chosen = boundary.choose_seeds(rows, 6, CONFIG)
  assert chosen == [0, 1, 2, 10, 11, 20]
  # Budget 9: base 5, miss_func all its 3, miss_param its 1.
  assert boundary.choose_seeds(rows, 9, CONFIG) == [
      0, 1, 2, 3, 4, 10, 11, 12, 20,
  ]


def test_ties_go_by_id():
  """Equal priorities crashed a heap that then compared the tasks.

  Means of 0.3 and 0.7 tie as well: phi is 0.84 for both, but in floats
  4 * 0.7 * 0.3 and 4 * 0.3 * 0.7 need not be equal.
  """
  rows = _candidates(
      (7, 'base', 0.7), (3, 'base', 0.3), (5, 'base', 0.7000001)
  )
  assert boundary.choose_seeds(rows, 3, CONFIG) == [3, 5, 7]


def test_cooldown_counts_epochs():
  assert boundary.rested(None, 4, 1)
  assert not boundary.rested(3, 4, 1)
  assert boundary.rested(3, 5, 1)
  assert not boundary.rested(3, 3, 0) and boundary.rested(3, 4, 0)


def test_random_selector_ignores_statistics_and_repeats():
  rows = _candidates(*((i, 'base', 0.0) for i in range(20)))
  select = boundary.make_selector('random', CONFIG, rng_seed=1)
  first = select(rows, 5, 0)
  assert len(set(first)) == 5 and set(first) <= set(range(20))
  assert first == select(rows[::-1], 5, 0)  # not of the order of candidates
  assert first != select(rows, 5, 1)
  assert boundary.make_selector('rods', CONFIG)(rows, 5, 0) == []


def test_unknown_selector():
  with pytest.raises(ValueError) as caught:
    boundary.make_selector('best', CONFIG)
  assert str(caught.value) == (
      "no seed selector 'best'; use one of rods, random."
  )
