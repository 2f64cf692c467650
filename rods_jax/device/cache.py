"""The key-value cache of the slots: its form, reads, writes, copies.

The cache is a list of layers, each a list of segments: segment i holds the
positions from bucket i - 1 to bucket i of every slot. Attention reads only the
segments that its rows reach into, which is decided on the device at each step:
short contexts don't pay for long ones, nothing is reallocated or moved, and
one program serves every length. Separate arrays also decode 2 to 2.4 times
faster on CPU than one stacked array.

What stands at or after a row's cached length is never read. Writes go by
scatter with out-of-range indices dropped; nothing is clamped.

Shapes: B slots, R rows, T queries of a row, Q = T * H/K, S positions,
K kv heads, H heads, P head_dim.
"""

import functools
from typing import NamedTuple, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rods_jax.device import axes

_MASKED = -1e30  # finite, so that no difference of two scores is NaN
_TINY = 1e-30  # keeps a row that sees nothing at 0 instead of NaN


class Segment(NamedTuple):
  """Keys and values of a range of positions. Keys are stored transposed."""

  k: Float[Array, 'B K P S']
  v: Float[Array, 'B K S P']


Cache = list[list[Segment]]  # [layer][segment]


def empty(
    num_layers: int,
    shape: tuple[int, int, int],
    buckets: Sequence[int],
    dtype: str,
    device: jax.sharding.Sharding | None,
) -> Cache:
  """A cache of zeros.

  Args:
    num_layers: layers.
    shape: (B, K, P).
    buckets: where the segments end, rising.
    dtype: of keys and values.
    device: where each array lives.
  """
  b, k, p = shape
  zeros = functools.partial(jnp.zeros, dtype=dtype, device=device)
  sizes = [end - start for start, end in zip((0, *buckets), buckets)]
  return [
      [Segment(zeros((b, k, p, s)), zeros((b, k, s, p))) for s in sizes]
      for _ in range(num_layers)
  ]


def capacity(cache: Cache) -> int:
  """Positions of a row."""
  return sum(segment.v.shape[2] for segment in cache[0])


class _Partial(NamedTuple):
  """Attention over part of the positions, before it is normalized."""

  top: Float[Array, 'R K Q 1']  # greatest score
  total: Float[Array, 'R K Q 1']  # sum of exp(score - top)
  out: Float[Array, 'R K Q P']  # values weighted by exp(score - top)


def _attend_segment(
    q: Float[Array, 'R K Q P'],
    segment: Segment,
    start: int,
    last: Int[Array, 'R Q'],
) -> _Partial:
  """Attention over the positions of a segment that are at most `last`."""
  scores = jnp.einsum(
      'rkqp,rkps->rkqs', q, segment.k, preferred_element_type=jnp.float32
  )
  index = start + jnp.arange(segment.k.shape[-1])
  visible = index <= last[:, None, :, None]
  scores = jnp.where(visible, scores, _MASKED)
  top = scores.max(axis=-1, keepdims=True)
  weights = jnp.where(visible, jnp.exp(scores - top), 0.0)
  out = jnp.einsum('rkqs,rksp->rkqp', weights.astype(q.dtype), segment.v)
  return _Partial(
      top, weights.sum(axis=-1, keepdims=True), out.astype(jnp.float32)
  )


def _attend_where_needed(
    q: Float[Array, 'R K Q P'],
    segment: Segment,
    start: int,
    last: Int[Array, 'R Q'],
    slots: Int[Array, 'R'] | None,
) -> _Partial:
  """`_attend_segment` at the cost of the rows that reach into the segment.

  None reaches it: nothing is read. Few do: only those rows are. A segment is
  read at full cost only when more than a quarter of the rows reach it.
  """
  num_rows, few = q.shape[0], max(1, q.shape[0] // 4)
  needed = last.max(axis=1) >= start
  nothing = _Partial(
      jnp.full((*q.shape[:3], 1), _MASKED),
      jnp.zeros((*q.shape[:3], 1)),
      jnp.zeros(q.shape, jnp.float32),
  )

  def attend_few():
    rows = jnp.nonzero(needed, size=few, fill_value=num_rows)[0]
    clipped = jnp.minimum(rows, num_rows - 1)
    where = clipped if slots is None else slots[clipped]
    part = _attend_segment(
        q[clipped], Segment(segment.k[where], segment.v[where]), start,
        last[clipped],
    )
    # The filling is out of range: dropped.
    put = lambda base, x: base.at[rows].set(x, mode='drop')
    return jax.tree.map(put, nothing, part)

  def attend_all():
    rows = segment
    if slots is not None:
      rows = Segment(segment.k[slots], segment.v[slots])
    return _attend_segment(q, rows, start, last)

  if start == 0:
    return attend_all()
  count = needed.sum()
  choice = (count > 0).astype(jnp.int32) + (count > few)
  return jax.lax.switch(choice, [lambda: nothing, attend_few, attend_all])


def attention(
    q: Float[Array, 'R T H P'],
    segments: Sequence[Segment],
    last: Int[Array, 'R T'],
    slots: Int[Array, 'R'] | None = None,
    recent: Segment | None = None,
    last_recent: Int[Array, 'R T'] | None = None,
) -> Float[Array, 'R T H P']:
  """Attention of queries over the cached positions 0 to `last`, inclusive.

  Args:
    q: queries.
    segments: the cache of one layer.
    last: last visible position; -1 gives zeros.
    slots: slot of each row; None when row i is slot i.
    recent: further positions of each row, behind `last` (recent.py).
    last_recent: last visible one of them; -1 for none.

  Returns:
    The attention's output; softmax in float32.
  """
  r, t, h, p = q.shape
  kv, group = segments[0].k.shape[1], h // segments[0].k.shape[1]
  # [R K T*G P]: one matrix per row and kv head.
  flat = q.reshape(r, t, kv, group, p).transpose(0, 2, 1, 3, 4) * p**-0.5
  flat = flat.reshape(r, kv, t * group, p)
  last = jnp.repeat(last, group, axis=1)
  parts, start = [], 0
  for segment in segments:
    parts.append(_attend_where_needed(flat, segment, start, last, slots))
    start += segment.k.shape[-1]
  if recent is not None:
    last_recent = jnp.repeat(last_recent, group, axis=1)
    parts.append(_attend_segment(flat, recent, 0, last_recent))
  top = functools.reduce(jnp.maximum, [part.top for part in parts])
  scales = [jnp.exp(part.top - top) for part in parts]
  total = sum(s * part.total for s, part in zip(scales, parts))
  out = sum(s * part.out for s, part in zip(scales, parts))
  out = (out / jnp.maximum(total, _TINY)).astype(q.dtype)
  out = out.reshape(r, kv, t, group, p).transpose(0, 2, 1, 3, 4)
  return out.reshape(r, t, h, p)


def write(
    segments: Sequence[Segment],
    slots: Int[Array, 'R'],
    positions: Int[Array, 'R'],
    k: Float[Array, 'R K P'],
    v: Float[Array, 'R K P'],
) -> list[Segment]:
  """Stores one position per entry; a position of -1 is dropped."""
  result, start = [], 0
  for s in segments:
    size = s.k.shape[-1]
    local = positions - start
    # jnp wraps negative indices, so they are sent out of range, too.
    local = jnp.where((local >= 0) & (local < size), local, size)
    result.append(
        Segment(
            s.k.at[slots, :, :, local].set(k, mode='drop'),
            s.v.at[slots, :, local].set(v, mode='drop'),
        )
    )
    start += size
  return result


def step(
    segments: Sequence[Segment],
    q: Float[Array, 'R T H P'],
    k: Float[Array, 'R T K P'],
    v: Float[Array, 'R T K P'],
    positions: Int[Array, 'R T'],
    slots: Int[Array, 'R'] | None = None,
) -> tuple[list[Segment], Float[Array, 'R T H P']]:
  """Stores keys and values of one layer, then attends up to each position.

  Rows may stand in any slot, so over a mesh each device works on the rows whose
  slot it holds, and on its heads: left to the compiler, the rows' segments
  would be gathered from all devices.

  Args:
    segments: the cache of one layer.
    q: queries.
    k: keys of the same tokens.
    v: their values.
    positions: of the tokens; -1 stores nothing and sees nothing.
    slots: slot of each row; None when row i is slot i.

  Returns:
    The cache and the attention's output.
  """
  if slots is None or not axes.is_spread():
    return _step(segments, q, k, v, positions, slots)
  cache = axes.partition('batch', 'kv_heads', None, None)
  heads, kv_heads = (
      axes.partition(None, None, name, None) for name in ('heads', 'kv_heads')
  )
  everywhere = axes.partition()
  return jax.shard_map(
      _step_of_held,
      in_specs=(cache, heads, kv_heads, kv_heads, everywhere, everywhere),
      out_specs=(cache, heads), check_vma=False,
  )(list(segments), q, k, v, positions, slots)


def _step_of_held(segments, q, k, v, positions, slots):
  """`step` on one device, which holds the slots of some of the rows."""
  mesh_axes = axes.RULES['batch']
  held = segments[0].k.shape[0]
  local = slots - jax.lax.axis_index(mesh_axes) * held
  mine = (local >= 0) & (local < held)
  segments, out = _step(
      segments, q, k, v, jnp.where(mine[:, None], positions, -1),
      jnp.where(mine, local, 0),
  )
  return segments, jax.lax.psum(out, mesh_axes)  # zeros where nothing is seen


def _step(segments, q, k, v, positions, slots):
  r, t = positions.shape
  rows = jnp.arange(r) if slots is None else slots
  flat = lambda x: x.reshape(-1, *x.shape[2:])
  segments = write(
      segments, jnp.repeat(rows, t), positions.reshape(-1), flat(k), flat(v)
  )
  return segments, attention(q, segments, positions, slots)


def copy(
    cache: Cache,
    src: Int[Array, ''],
    dsts: Int[Array, 'B'],
    count: Int[Array, ''],
    length: Int[Array, ''],
) -> Cache:
  """Slots dsts[:count] get the first `length` cached positions of slot src.

  Whole segments are copied; what lies behind `length` is never read. The
  cache is donated.
  """

  def copy_array(x):
    row = jax.lax.dynamic_index_in_dim(x, src, keepdims=False)

    def one(i, x):
      return jax.lax.dynamic_update_index_in_dim(x, row, dsts[i], 0)

    return one

  def copy_segment(segment, start):
    ones = [copy_array(x) for x in segment]
    used = jnp.where(length > start, count, 0)
    return jax.lax.fori_loop(
        0, used,
        lambda i, seg: Segment(*(one(i, x) for one, x in zip(ones, seg))),
        segment,
    )

  result = []
  for segments in cache:
    edges = [0]
    for s in segments:
      edges.append(edges[-1] + s.k.shape[-1])
    result.append([copy_segment(s, e) for s, e in zip(segments, edges)])
  return result
