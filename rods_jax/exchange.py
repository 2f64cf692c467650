"""The exchange: the only seam between device statistics and host ids.

At the start of an epoch the ids of the pool go to the device loop; at its end
the reward statistics of each come back, in one transfer. Both have a fixed
shape, N = the pool's capacity, so that a growing pool compiles nothing anew:
position k of the statistics belongs to the task at position k of the ids, and
-1 fills the rest. Text never crosses here.

Both methods also work where a program spans several processes: process 0 owns
the pool, every process calls them at the same time and gets the ids and the
statistics of all. A training run itself is one process.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jaxtyping import Array, Float32
import numpy as np

from rods_jax import types
from rods_jax.device import advantages

PADDING = -1
_FIELDS = ('count', 'total', 'square')


@jax.jit
def _pack(count, total, square) -> Float32[Array, '3 N']:
  return jnp.stack((count, total, square))


class Exchange:
  """Hands ids to the device loop and statistics back to the pool."""

  def __init__(self, capacity: int):
    """A seam for at most `capacity` tasks: human plus max_generated."""
    if capacity < 1:
      raise ValueError(f'exchange capacity must be 1 or more, got {capacity}.')
    self.capacity = capacity

  def begin_epoch(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """The epoch's ids in fixed shape, the same in every process.

    Args:
      ids: distinct ids of at most `capacity` tasks, in the order in which they
        are visited. Only process 0's count.

    Returns:
      int32 [N], filled up with PADDING.

    Raises:
      ValueError: too many, doubled or negative ids.
    """
    ids = np.asarray(ids, np.int32).reshape(-1)
    if len(ids) > self.capacity:
      raise ValueError(
          f'{len(ids)} tasks do not fit the exchange of {self.capacity}.'
      )
    if len(np.unique(ids)) < len(ids) or (ids < 0).any():
      raise ValueError('task ids must be distinct and 0 or more.')
    padded = np.full((self.capacity,), PADDING, np.int32)
    padded[: len(ids)] = ids
    if jax.process_count() > 1:
      padded = np.asarray(multihost_utils.broadcast_one_to_all(padded))
    return padded

  def gather(
      self, stats: advantages.TaskStats, ids: np.ndarray
  ) -> dict[int, types.SeedStats]:
    """Reads the epoch's statistics: one device-to-host transfer.

    Args:
      stats: of the epoch, on device, with N slots. Counts are exact up to
        2**24.
      ids: what begin_epoch returned.

    Returns:
      id -> statistics of every task of the epoch; count 0 where no trajectory
      was played.

    Raises:
      ValueError: another shape than [N].
    """
    fields = [getattr(stats, name) for name in _FIELDS]
    for name, field in zip(_FIELDS, fields):
      if np.shape(field) != (self.capacity,):
        raise ValueError(
            f'statistics {name} have shape {np.shape(field)}, not '
            f'({self.capacity},).'
        )
    packed = _pack(*fields)
    if jax.process_count() > 1:
      packed = multihost_utils.process_allgather(packed, tiled=True)
    count, total, square = np.asarray(jax.device_get(packed))
    return {
        int(task_id): types.SeedStats(
            int(count[k]), float(total[k]), float(square[k])
        )
        for k, task_id in enumerate(np.asarray(ids))
        if task_id != PADDING
    }
