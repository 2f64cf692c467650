"""Reductions over masked arrays that stay free of NaN, also in gradients.

0 * NaN is NaN: what does not count is replaced by where, never multiplied away.
Means are kept as (sum, count) until everything has been summed, because a mean
of means depends on how rows were split.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped


def keep(
    x: Shaped[Array, '...'], mask: Bool[Array, '...']
) -> Shaped[Array, '...']:
  """x where mask, else 0. Apply it before exp and log, not only after."""
  return jnp.where(mask, x, jnp.zeros_like(x))


def total(
    x: Float[Array, '...'], mask: Bool[Array, '...'], axis: int | None = None
) -> Float[Array, '...']:
  """Sum of x where mask."""
  return jnp.sum(keep(x, mask), axis=axis)


def largest(
    x: Float[Array, '...'], mask: Bool[Array, '...']
) -> Float[Array, '']:
  """Largest x where mask; 0 where nothing counts. For x >= 0."""
  return jnp.max(keep(x, mask))


def ratio(
    numerator: Float[Array, '...'], count: Shaped[Array, '...']
) -> Float[Array, '...']:
  """numerator / count; 0 where count is 0."""
  return jnp.where(count > 0, numerator / jnp.maximum(count, 1), 0.0)
