"""Keys and values of one call of decode, apart from the cache until its end.

While it samples, decode only reads the cache, and writes into a small array of
the positions that it adds. On a TPU a cache that changes at each token costs
more than its reading: XLA moves segments into on-chip memory for a write of one
position and all of them back, and keeps the cache in an order that suits the
write. At the end of the call, what is new enters the cache in one pass.

Over a mesh each device works on the slots and heads that it holds.

Shapes: B slots, N most new tokens, S positions of a segment, K kv heads,
H heads, P head_dim.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rods_jax.device import axes
from rods_jax.device import cache as cache_lib
from rods_jax.device.cache import Segment


def empty(cache: cache_lib.Cache, max_new: int) -> list[Segment]:
  """One segment of N positions per layer, laid out like the cache."""
  made = cache_lib.empty(
      len(cache), cache[0][0].k.shape[:3], (max_new,), cache[0][0].k.dtype, None
  )
  place = lambda x: axes.constrain(x, 'batch', 'kv_heads', None, None)
  return [jax.tree.map(place, layer[0]) for layer in made]


def step(
    segments: Sequence[Segment],
    recent: Segment,
    q: Float[Array, 'B 1 H P'],
    k: Float[Array, 'B 1 K P'],
    v: Float[Array, 'B 1 K P'],
    last: Int[Array, 'B'],
    column: Int[Array, 'B'],
) -> tuple[Segment, Float[Array, 'B 1 H P']]:
  """Stores one position of each row, then attends over cache and new ones.

  Args:
    segments: the cache of one layer.
    recent: the new positions of that layer.
    q: queries.
    k: keys of the same tokens.
    v: their values.
    last: last position of the row in the cache; -1 for none.
    column: where in `recent` the token belongs; -1 stores nothing and sees
      nothing new.

  Returns:
    `recent` with the position, and the attention's output.
  """

  def run(segments, recent, q, k, v, last, column):
    rows = jnp.arange(column.shape[0])
    (recent,) = cache_lib.write([recent], rows, column, k[:, 0], v[:, 0])
    out = cache_lib.attention(
        q, segments, last[:, None], recent=recent, last_recent=column[:, None]
    )
    return recent, out

  arguments = list(segments), recent, q, k, v, last, column
  if not axes.is_spread():
    return run(*arguments)
  rows, cache = axes.partition('batch'), _cache_partition()
  heads, kv_heads = (
      axes.partition('batch', None, name, None)
      for name in ('heads', 'kv_heads')
  )
  return jax.shard_map(
      run, in_specs=(cache, cache, heads, kv_heads, kv_heads, rows, rows),
      out_specs=(cache, heads), check_vma=False,
  )(*arguments)


def _cache_partition() -> jax.sharding.PartitionSpec:
  return axes.partition('batch', 'kv_heads', None, None)


def absorb(
    cache: cache_lib.Cache,
    recent: Sequence[Segment],
    starts: Int[Array, 'B'],
    counts: Int[Array, 'B'],
) -> cache_lib.Cache:
  """The cache with the first `counts` new positions of each row.

  Args:
    cache: of all slots.
    recent: the new positions of each layer.
    starts: position of a row's first new one.
    counts: new positions of a row.
  """

  def run(cache, recent, starts, counts):
    put_row = lambda row, cache: [
        _put_row(row, segments, new, starts[row], counts[row])
        for segments, new in zip(cache, recent, strict=True)
    ]
    return jax.lax.fori_loop(0, starts.shape[0], put_row, cache)

  if not axes.is_spread():
    return run(cache, recent, starts, counts)
  place, rows = _cache_partition(), axes.partition('batch')
  return jax.shard_map(
      run, in_specs=(place, place, rows, rows), out_specs=place,
      check_vma=False,
  )(cache, recent, starts, counts)


def _put_row(row, segments, new: Segment, start, count) -> list[Segment]:
  """The segments of one layer with the new positions of one row."""
  result, begin = [], 0
  for segment in segments:
    k, v = (
        _put(old, x, row, start - begin, count, axis)
        for old, x, axis in zip(segment, new, (3, 2))
    )
    result.append(Segment(k, v))
    begin += segment.k.shape[-1]
  return result


def _put(old, new, row, offset, count, axis: int):
  """old, whose row has new[row, 0:count] from `offset` on where they overlap.

  Only a window that holds the overlap is read and written.
  """
  size, extra = old.shape[axis], new.shape[axis]
  width = min(size, extra)
  start = jnp.clip(offset, 0, size - width)
  shift = start - offset  # window[i] takes new[i + shift]
  place = [row] + [0] * (old.ndim - 1)
  place[axis] = start
  shape = [1, *old.shape[1:]]
  shape[axis] = width
  padding = [(0, 0)] * old.ndim
  padding[axis] = (width, width)
  added = jax.lax.dynamic_index_in_dim(new, row)
  moved = jax.lax.dynamic_slice_in_dim(
      jnp.pad(added, padding), width + jnp.clip(shift, -width, extra), width,
      axis,
  )
  index = jnp.arange(width) + shift
  inside = ((index >= 0) & (index < count)).reshape(
      [-1 if i == axis else 1 for i in range(old.ndim)]
  )
  window = jax.lax.dynamic_slice(old, place, shape)
  return jax.lax.dynamic_update_slice(
      old, jnp.where(inside, moved, window), place
  )
