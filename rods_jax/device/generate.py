"""Prefill, decoding and copying over slots with a cache that outlives turns.

The cache is a list of layers, each a list of segments: segment i holds the
positions from bucket i - 1 to bucket i of every slot. Attention reads only the
segments that its rows reach into, which is decided on the device at each step:
short contexts don't pay for long ones, nothing is reallocated or moved, and
one program serves every length. Separate arrays also decode 2 to 2.4 times
faster on CPU than one stacked array.

A slot's row only grows. The cache holds row[:-1]; `pending` is row[-1], so a
decode step feeds `pending`, reads its logits, samples, appends. What stands in
the cache at or after a row's cached length is never read.

Writes go by scatter with out-of-range indices dropped: a padding token or an
idle slot gets such an index. Nothing is clamped.

Shapes: B slots, R lanes, C tokens of a chunk, S positions, K kv heads,
H heads, P head_dim, N most new tokens.
"""

import functools
from typing import Any, NamedTuple, Sequence

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from rods_jax.device import sampling

_MASKED = -1e30  # finite, so that no difference of two scores is NaN
_TINY = 1e-30  # keeps a row that sees nothing at 0 instead of NaN


class Segment(NamedTuple):
  """Keys and values of a range of positions. Keys are stored transposed."""

  k: Float[Array, 'B K P S']
  v: Float[Array, 'B K S P']


Cache = list[list[Segment]]  # [layer][segment]


class Lanes(NamedTuple):
  """Pieces of rows to prefill. Pieces of one row stand in order.

  Attributes:
    tokens: the pieces, right padded.
    slots: slot of each piece.
    starts: position of each piece's first token.
    counts: tokens in each piece; 0 for an unused lane.
    used: lanes in use, from the first; those behind cost nothing.
  """

  tokens: Int[Array, 'R C']
  slots: Int[Array, 'R']
  starts: Int[Array, 'R']
  counts: Int[Array, 'R']
  used: Int[Array, '']


class Slots(NamedTuple):
  """What decode needs to know of each slot.

  Attributes:
    pending: last token of the row.
    lengths: tokens in the row, `pending` included.
    budgets: most tokens to sample now; 0 for a slot that does not run.
    uids: random stream of the row.
  """

  pending: Int[Array, 'B']
  lengths: Int[Array, 'B']
  budgets: Int[Array, 'B']
  uids: UInt[Array, 'B']


class Sampled(NamedTuple):
  """What decode sampled.

  Attributes:
    tokens: new tokens of each slot, from the left; then padding.
    logprobs: theirs, at the sampler's temperature; then 0.
    counts: new tokens of each slot.
    finished: the slot's last new token is the end token.
  """

  tokens: Int[Array, 'B N']
  logprobs: Float[Array, 'B N']
  counts: Int[Array, 'B']
  finished: Bool[Array, 'B']


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


def cached_attention(
    q: Float[Array, 'R T H P'],
    segments: Sequence[Segment],
    last: Int[Array, 'R T'],
    slots: Int[Array, 'R'] | None = None,
) -> Float[Array, 'R T H P']:
  """Attention of queries over the cached positions 0 to `last`, inclusive.

  Args:
    q: queries.
    segments: the cache of one layer.
    last: last visible position; -1 gives zeros.
    slots: slot of each row; None when row i is slot i.

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
  top = functools.reduce(jnp.maximum, [part.top for part in parts])
  scales = [jnp.exp(part.top - top) for part in parts]
  total = sum(s * part.total for s, part in zip(scales, parts))
  out = sum(s * part.out for s, part in zip(scales, parts))
  out = (out / jnp.maximum(total, _TINY)).astype(q.dtype)
  out = out.reshape(r, kv, t, group, p).transpose(0, 2, 1, 3, 4)
  return out.reshape(r, t, h, p)


def _write(
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


def extend(
    graphdef: nnx.GraphDef,
    params: Any,
    cache: Cache,
    lanes: Lanes,
    *,
    block_rows: int,
) -> Cache:
  """Prefills pieces of rows into their slots.

  Lanes are worked on in blocks of `block_rows`, and only the blocks in use. A
  layer writes a block's keys and values before it reads, so pieces of one row
  may stand in one block.

  Args:
    graphdef: of model.create.
    params: of model.create.
    cache: of all slots. Donated.
    lanes: the pieces; R is a multiple of block_rows.
    block_rows: lanes per block.

  Returns:
    The cache.
  """
  decoder = nnx.merge(graphdef, params)
  chunk = lanes.tokens.shape[1]

  def run_block(block, cache):
    cut = lambda x: jax.lax.dynamic_slice_in_dim(
        x, block * block_rows, block_rows
    )
    slots, starts, counts = cut(lanes.slots), cut(lanes.starts), cut(lanes.counts)
    index = jnp.arange(chunk)
    valid = index < counts[:, None]
    positions = jnp.where(valid, starts[:, None] + index, -1)
    cache = list(cache)

    def attend(layer, q, k, v):
      flat = lambda x: x.reshape(-1, *x.shape[2:])
      cache[layer] = _write(
          cache[layer], jnp.repeat(slots, chunk), positions.reshape(-1),
          flat(k), flat(v),
      )
      return cached_attention(q, cache[layer], positions, slots)

    tokens = jnp.where(valid, cut(lanes.tokens), 0)
    decoder.forward(tokens, jnp.maximum(positions, 0), attend)
    return cache

  num_blocks = (lanes.used + block_rows - 1) // block_rows
  return jax.lax.fori_loop(0, num_blocks, run_block, cache)


class _Loop(NamedTuple):
  """State of the decoding loop."""

  step: Int[Array, '']
  cache: Cache
  pending: Int[Array, 'B']
  running: Bool[Array, 'B']
  sampled: Sampled


def decode(
    graphdef: nnx.GraphDef,
    params: Any,
    cache: Cache,
    slots: Slots,
    sampler: sampling.Sampler,
    min_running: Int[Array, ''],
    *,
    max_new: int,
    end_id: int,
    pad_id: int,
) -> tuple[Cache, Sampled]:
  """Samples one token per running slot and step.

  Stops when every running slot has emitted the end token or used its budget,
  or, after at least one step, when at most `min_running` slots still run.

  Args:
    graphdef: of model.create.
    params: of model.create.
    cache: of all slots; holds position length + budget - 2 of every running
      slot. Donated.
    slots: state of the B slots.
    sampler: key, temperature, greedy.
    min_running: see above.
    max_new: N, at least every budget.
    end_id: the end token.
    pad_id: fills the unused part of the tokens.

  Returns:
    The cache and what was sampled.
  """
  decoder = nnx.merge(graphdef, params)
  num_slots = slots.pending.shape[0]
  rows = jnp.arange(num_slots)

  def proceed(state: _Loop):
    count = state.running.sum()
    return (count > min_running) | ((state.step == 0) & (count > 0))

  def step(state: _Loop) -> _Loop:
    done = state.sampled
    lengths = slots.lengths + done.counts
    position = jnp.where(state.running, lengths - 1, -1)
    cache = list(state.cache)

    def attend(layer, q, k, v):
      cache[layer] = _write(cache[layer], rows, position, k[:, 0], v[:, 0])
      return cached_attention(q, cache[layer], position[:, None])

    x = decoder.forward(
        state.pending[:, None], jnp.maximum(position, 0)[:, None], attend
    )
    tokens, logprobs = sampling.sample(
        decoder.logits(x[:, 0]), sampler, slots.uids, lengths
    )
    # An idle slot's column is out of range: dropped.
    column = jnp.where(state.running, done.counts, max_new)
    counts = done.counts + state.running
    ended = state.running & (tokens == end_id)
    return _Loop(
        step=state.step + 1,
        cache=cache,
        pending=jnp.where(state.running, tokens, state.pending),
        running=state.running & ~ended & (counts < slots.budgets),
        sampled=Sampled(
            done.tokens.at[rows, column].set(tokens, mode='drop'),
            done.logprobs.at[rows, column].set(logprobs, mode='drop'),
            counts,
            done.finished | ended,
        ),
    )

  final = jax.lax.while_loop(
      proceed, step, _start(cache, slots, max_new, pad_id)
  )
  return final.cache, final.sampled


def _start(cache: Cache, slots: Slots, max_new: int, pad_id: int) -> _Loop:
  num_slots = slots.pending.shape[0]
  return _Loop(
      step=jnp.int32(0),
      cache=cache,
      pending=slots.pending,
      running=slots.budgets > 0,
      sampled=Sampled(
          jnp.full((num_slots, max_new), pad_id, jnp.int32),
          jnp.zeros((num_slots, max_new), jnp.float32),
          jnp.zeros(num_slots, jnp.int32),
          jnp.zeros(num_slots, bool),
      ),
  )


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
