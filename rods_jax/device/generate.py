"""Prefill and decoding over slots with a cache that outlives turns.

A slot's row only grows. The cache holds row[:-1]; `pending` is row[-1], so a
decode step feeds `pending`, reads its logits, samples, appends. Padding tokens
and idle slots get position -1, at which the cache writes and sees nothing.

Shapes: B slots, R lanes, C tokens of a chunk, N most new tokens.
"""

import functools
import operator
from typing import Any, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from rods_jax.device import cache as cache_lib
from rods_jax.device import model
from rods_jax.device import recent as recent_lib
from rods_jax.device import rope
from rods_jax.device import sampling


class Lanes(NamedTuple):
  """Pieces of rows to prefill. Pieces of one row stand in order.

  Attributes:
    tokens: the pieces, right padded.
    slots: slot of each piece.
    starts: position of each piece's first token.
    counts: tokens in each piece; 0 for an unused lane.
    previous: the token before each piece; 0 at the start of a row.
    used: lanes in use, from the first; those behind cost nothing.
  """

  tokens: Int[Array, 'R C']
  slots: Int[Array, 'R']
  starts: Int[Array, 'R']
  counts: Int[Array, 'R']
  previous: Int[Array, 'R']
  used: Int[Array, '']


class Slots(NamedTuple):
  """What decode needs to know of each slot.

  Attributes:
    pending: last token of the row.
    previous: the token before it; 0 if there is none.
    lengths: tokens in the row, `pending` included.
    budgets: most tokens to sample now; 0 for a slot that does not run.
    uids: random stream of the row.
  """

  pending: Int[Array, 'B']
  previous: Int[Array, 'B']
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


def extend(
    graphdef: nnx.GraphDef,
    params: Any,
    cache: cache_lib.Cache,
    lanes: Lanes,
    *,
    block_rows: int,
) -> cache_lib.Cache:
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
  rotations = decoder.rotations(cache_lib.capacity(cache))

  def run_block(block, cache):
    tokens, slots, starts, counts, previous = (
        jax.lax.dynamic_slice_in_dim(x, block * block_rows, block_rows)
        for x in lanes[:-1]
    )
    index = jnp.arange(chunk)
    valid = index < counts[:, None]
    positions = jnp.where(valid, starts[:, None] + index, -1)
    cache = list(cache)

    def attend(layer, q, k, v):
      cache[layer], out = cache_lib.step(
          cache[layer], q, k, v, positions, slots
      )
      return out

    tokens = jnp.where(valid, tokens, 0)
    decoder.forward(
        tokens,
        model.shift(tokens, previous),
        rope.look_up(rotations, jnp.maximum(positions, 0)),
        attend,
    )
    return cache

  num_blocks = (lanes.used + block_rows - 1) // block_rows
  return jax.lax.fori_loop(0, num_blocks, run_block, cache)


class _Given(NamedTuple):
  """What every step of a decode call reads."""

  slots: Slots
  sampler: sampling.Sampler
  uniforms: Float[Array, 'B N']  # one of each row and step
  rotations: rope.Rotation
  cache: cache_lib.Cache | None  # that is only read; None if it is written


class _Loop(NamedTuple):
  """State of the decoding loop."""

  step: Int[Array, '']
  cache: cache_lib.Cache | list[cache_lib.Segment]  # or what is new to it
  pending: Int[Array, 'B']
  previous: Int[Array, 'B']
  running: Bool[Array, 'B']
  sampled: Sampled


def decode(
    graphdef: nnx.GraphDef,
    params: Any,
    cache: cache_lib.Cache,
    slots: Slots,
    sampler: sampling.Sampler,
    min_running: Int[Array, ''],
    *,
    max_new: int,
    end_id: int | tuple[int, ...],
    pad_id: int,
    apart: bool = False,
) -> tuple[cache_lib.Cache, Sampled]:
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
    end_id: the end token, or several.
    pad_id: fills the unused part of the tokens.
    apart: only read the cache while sampling (recent.py): for devices where a
      write costs more than one of its positions.

  Returns:
    The cache and what was sampled.
  """
  decoder = nnx.merge(graphdef, params)

  def proceed(state: _Loop):
    count = state.running.sum()
    return (count > min_running) | ((state.step == 0) & (count > 0))

  given = _given(decoder, cache, slots, sampler, max_new, apart)
  changing = recent_lib.empty(cache, max_new) if apart else cache
  final = jax.lax.while_loop(
      proceed,
      lambda state: _step(decoder, given, state, end_id),
      _start(changing, slots, max_new, pad_id),
  )
  if apart:
    cache = recent_lib.absorb(
        cache, final.cache, slots.lengths - 1, final.sampled.counts
    )
  else:
    cache = final.cache
  return cache, final.sampled


def _given(
    decoder: model.Decoder,
    cache: cache_lib.Cache,
    slots: Slots,
    sampler: sampling.Sampler,
    max_new: int,
    apart: bool,
) -> _Given:
  # The numbers of all steps at once: on CPU a step's own take as long.
  positions = slots.lengths[:, None] + jnp.arange(max_new)
  return _Given(
      slots,
      sampler,
      sampling.uniforms(sampler.key, slots.uids, positions),
      decoder.rotations(cache_lib.capacity(cache)),
      cache if apart else None,
  )


def _step(
    decoder: model.Decoder,
    given: _Given,
    state: _Loop,
    end_id: int | tuple[int, ...],
) -> _Loop:
  """Feeds the pending token of every running slot and samples the next."""
  slots, done = given.slots, state.sampled
  num_slots, max_new = done.tokens.shape
  rows = jnp.arange(num_slots)
  lengths = slots.lengths + done.counts
  position = jnp.where(state.running, lengths - 1, -1)
  cache = list(state.cache)
  last = jnp.where(state.running, slots.lengths - 2, -1)
  column = jnp.where(state.running, done.counts, -1)

  def attend(layer, q, k, v):
    if given.cache is None:
      cache[layer], out = cache_lib.step(
          cache[layer], q, k, v, position[:, None]
      )
    else:
      cache[layer], out = recent_lib.step(
          given.cache[layer], cache[layer], q, k, v, last, column
      )
    return out

  x = decoder.forward(
      state.pending[:, None],
      state.previous[:, None],
      rope.look_up(given.rotations, jnp.maximum(position, 0)[:, None]),
      attend,
  )
  tokens, logprobs = sampling.sample(
      decoder.logits(x[:, 0]),
      given.sampler,
      # A running slot has sampled at every step so far.
      jax.lax.dynamic_index_in_dim(given.uniforms, state.step, 1, False),
  )
  # An idle slot is out of range: dropped.
  end = jnp.where(state.running, done.counts, max_new)
  counts = done.counts + state.running
  end_ids = (end_id,) if isinstance(end_id, int) else end_id
  ends = functools.reduce(operator.or_, [tokens == i for i in end_ids])
  ended = state.running & ends
  return _Loop(
      step=state.step + 1,
      cache=cache,
      pending=jnp.where(state.running, tokens, state.pending),
      previous=jnp.where(state.running, state.pending, state.previous),
      running=state.running & ~ended & (counts < slots.budgets),
      sampled=Sampled(
          done.tokens.at[rows, end].set(tokens, mode='drop'),
          done.logprobs.at[rows, end].set(logprobs, mode='drop'),
          counts,
          done.finished | ended,
      ),
  )


def _start(
    cache: cache_lib.Cache, slots: Slots, max_new: int, pad_id: int
) -> _Loop:
  """Nothing sampled yet; every slot with a budget runs."""
  num_slots = slots.pending.shape[0]
  return _Loop(
      step=jnp.int32(0),
      cache=cache,
      pending=slots.pending,
      previous=slots.previous,
      running=slots.budgets > 0,
      sampled=Sampled(
          jnp.full((num_slots, max_new), pad_id, jnp.int32),
          jnp.zeros((num_slots, max_new), jnp.float32),
          jnp.zeros(num_slots, jnp.int32),
          jnp.zeros(num_slots, bool),
      ),
  )
