"""Masked reductions, their gradients, and what the naive forms give."""

import jax
import jax.numpy as jnp
import numpy as np

from rods_jax.device import masked

NAN = jnp.nan
X = jnp.array([[1.0, 2.0, NAN], [4.0, NAN, NAN]])
MASK = jnp.array([[True, True, False], [True, False, False]])


def test_total_ignores_nan():
  """1 + 2 + 4 = 7. The bug, x * mask, gives NaN because 0 * NaN is NaN."""
  assert masked.total(X, MASK) == 7
  np.testing.assert_array_equal(masked.total(X, MASK, 1), [3, 4])
  assert jnp.isnan(jnp.sum(X * MASK.astype(jnp.float32)))


def test_gradient_through_exp_is_finite():
  """d/dx sum(exp x) = exp x where the mask holds, exactly 0 elsewhere.

  The bug masks after exp only: exp(1000) is inf, and 0 * inf is NaN.
  """
  x, mask = jnp.array([0.0, 1000.0]), jnp.array([True, False])
  good = jax.grad(lambda x: masked.total(jnp.exp(masked.keep(x, mask)), mask))
  bad = jax.grad(lambda x: jnp.sum(jnp.where(mask, jnp.exp(x), 0)))
  np.testing.assert_array_equal(good(x), [1, 0])
  assert jnp.isnan(bad(x)[1])


def test_largest_and_ratio():
  assert masked.largest(X, MASK) == 4
  assert masked.largest(X, jnp.zeros_like(MASK)) == 0
  np.testing.assert_array_equal(
      masked.ratio(jnp.array([6.0, 0.0]), jnp.array([4, 0])), [1.5, 0]
  )


def test_sum_and_count_do_not_depend_on_the_split():
  """7 / 3 tokens; the bug, a mean of row means, gives (1.5 + 4) / 2 = 2.75."""
  split = [masked.total(X[i], MASK[i]) for i in range(2)]
  assert masked.ratio(sum(split), MASK.sum()) == np.float32(7 / 3)
