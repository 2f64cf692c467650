"""Group-relative advantages, and the reward statistics of each task.

GRPO (arXiv 2402.03300): reward minus the mean of its group, divided by the
group's deviation or not (arXiv 2503.20783 leaves the division out).
"""

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rods_jax.device import masked


@flax.struct.dataclass
class TaskStats:
  """Running sums over the progress rewards of each task.

  Attributes:
    count: float32 [slots], trajectories with a reward.
    total: float32 [slots], sum of their rewards.
    square: float32 [slots], sum of the squares.
  """

  count: Float[Array, 'slots']
  total: Float[Array, 'slots']
  square: Float[Array, 'slots']


def empty_stats(num_slots: int) -> TaskStats:
  """Statistics of nothing yet."""
  return TaskStats(*(jnp.zeros(num_slots, jnp.float32) for _ in range(3)))


def add_rewards(
    stats: TaskStats,
    rewards: Float[Array, 'N G'],
    valid: Bool[Array, 'N G'],
    slots: Int[Array, 'N'],
) -> TaskStats:
  """Adds the valid rewards of each group to its slot; slot -1 adds nothing."""
  # A negative index would wrap around to the last task.
  slots = jnp.where(slots < 0, stats.count.shape[0], slots)
  count = valid.sum(axis=1).astype(jnp.float32)
  total = masked.total(rewards, valid, axis=1)
  square = masked.total(masked.keep(rewards, valid) ** 2, valid, axis=1)
  return TaskStats(
      stats.count.at[slots].add(count, mode='drop'),
      stats.total.at[slots].add(total, mode='drop'),
      stats.square.at[slots].add(square, mode='drop'),
  )


def group_advantages(
    rewards: Float[Array, 'N G'],
    valid: Bool[Array, 'N G'],
    normalize: bool,
) -> Float[Array, 'N G']:
  """Advantage of each trajectory within its group.

  Args:
    rewards: what the policy is trained for; anything where not valid.
    valid: False for a missing reward.
    normalize: divide by the group's population deviation.

  Returns:
    Exactly zero where not valid, where fewer than two rewards of the group are
    valid, and where all of them are equal. Equality decides: the float32
    mean of seven times 0.35 is not 0.35, and dividing the residue by a
    deviation of its own size gives advantages near 1.
  """
  count = valid.sum(axis=1, keepdims=True)
  low = jnp.min(jnp.where(valid, rewards, jnp.inf), axis=1, keepdims=True)
  high = jnp.max(jnp.where(valid, rewards, -jnp.inf), axis=1, keepdims=True)
  learns = valid & (low < high)
  mean = masked.ratio(masked.total(rewards, valid, 1)[:, None], count)
  centred = masked.keep(rewards - mean, learns)
  if not normalize:
    return centred
  variance = masked.ratio(jnp.sum(centred**2, axis=1, keepdims=True), count)
  # No epsilon: with unequal rewards |centred| <= sqrt(count) * deviation.
  return centred / jnp.sqrt(jnp.where(variance > 0, variance, 1.0))
