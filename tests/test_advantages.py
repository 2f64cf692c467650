"""Group advantages and reward statistics, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax.device import advantages


def group(rewards, valid=None, normalize=True):
  rewards = jnp.array([rewards], jnp.float32)
  valid = jnp.ones(rewards.shape, bool) if valid is None else [valid]
  return np.asarray(advantages.group_advantages(
      rewards, jnp.array(valid), normalize
  )[0])


def test_by_hand():
  """Rewards 0, 0, 1, 1: mean 1/2, deviation 1/2, so -1, -1, 1, 1."""
  np.testing.assert_array_equal(group([0, 0, 1, 1]), [-1, -1, 1, 1])
  np.testing.assert_array_equal(
      group([0, 0, 1, 1], normalize=False), [-0.5, -0.5, 0.5, 0.5]
  )


def test_population_deviation():
  """Rewards 0, 1, 2: variance 2/3, so 1 / sqrt(2/3) = 1.2247 at the ends.

  The sample deviation would be 1, and the advantage 1.
  """
  np.testing.assert_allclose(
      group([0, 1, 2]), [-np.sqrt(1.5), 0, np.sqrt(1.5)], rtol=1e-6
  )


@pytest.mark.parametrize('value', [0.35, 0.1, 1 / 3, 0.7])
@pytest.mark.parametrize('size', [3, 8, 16])
@pytest.mark.parametrize('normalize', [True, False])
def test_equal_rewards_give_exactly_zero(value, size, normalize):
  """Users saw 0.35, 0.35, 0.35 turn into advantages in the thousands.

  The float32 mean of equal numbers is not always that number, and the residue
  was divided by a deviation of its own tiny size.
  """
  np.testing.assert_array_equal(group([value] * size, None, normalize), 0)


def test_the_bug_of_equal_rewards_exists():
  """Some size has a residue that a division blows up to order one."""
  def naive(x):
    mean = np.float32(0)
    for value in x:
      mean += value
    mean /= np.float32(len(x))
    deviation = np.sqrt(np.mean((x - mean) ** 2))
    return np.abs(x - mean).max() / (deviation + 1e-12)

  worst = max(naive(np.full(n, 0.35, np.float32)) for n in range(2, 17))
  assert worst > 0.9


def test_tiny_spread_stays_bounded():
  """|advantage| <= sqrt(G - 1), however small the spread: here sqrt(3)."""
  out = group([0.35, 0.35, 0.35, np.nextafter(np.float32(0.35), 1)])
  assert np.all(np.isfinite(out)) and np.abs(out).max() <= 2.0


@pytest.mark.parametrize('missing', [np.nan, np.inf, 0.0])
def test_missing_rewards(missing):
  """Of 0, 1, missing the first two count: -1, 1 and exactly 0.

  With the missing one as 0 the mean would be 1/3; as NaN, all would be NaN.
  """
  out = group([0, 1, missing], [True, True, False])
  np.testing.assert_array_equal(out, [-1, 1, 0])


@pytest.mark.parametrize('valid', [[False, True, False], [False] * 3])
def test_fewer_than_two_scored(valid):
  np.testing.assert_array_equal(group([0, 1, np.nan], valid), [0, 0, 0])
  np.testing.assert_array_equal(group([0, 1, np.nan], valid, False), [0, 0, 0])


def test_statistics_by_hand():
  """Slot 2 gets 0.5 and 1; slot 0 gets 0.25 from each of two groups.

  A missing reward (NaN) and an empty group (slot -1) add nothing; -1 taken as
  an index would have added to the last slot.
  """
  rewards = jnp.array([[0.5, 1], [0.25, jnp.nan], [0.25, 9], [1, 1]])
  valid = jnp.array([[1, 1], [1, 0], [1, 0], [1, 1]], bool)
  stats = advantages.add_rewards(
      advantages.empty_stats(3), rewards, valid, jnp.array([2, 0, 0, -1])
  )
  np.testing.assert_array_equal(stats.count, [2, 0, 2])
  np.testing.assert_array_equal(stats.total, [0.5, 0, 1.5])
  np.testing.assert_array_equal(stats.square, [0.125, 0, 1.25])
