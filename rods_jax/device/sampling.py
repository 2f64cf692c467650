"""Sampling of one token per row, each row from a random stream of its own.

The key of a token is fold_in(fold_in(base, uid), position): it depends on the
trajectory and on the place in its row, never on the slot, the batch, the
chunking or the neighbours.

A token is drawn by inverting the cumulative distribution with one uniform
number. The Gumbel trick needs V random numbers per row and costs four times
as much on CPU at V = 2048.

With top-k or top-p the log-probabilities are those of the cut distribution, of
which the token was drawn. Training does not cut: its ratio would need the
same cut at parameters that have moved on (settings.check_training).

Shapes: B rows, V vocab.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt


# Divides a shard of the known vocabularies, cut in up to four: else XLA would
# move weights of half a block between devices.
_BLOCK = 32


class Sampler(NamedTuple):
  """How to sample; every field is traced.

  Attributes:
    key: base key of this policy version.
    temperature: divides the logits, above 0. Unused when greedy.
    greedy: take the most likely token; logprobs then at temperature 1, and
      of the whole distribution.
    top_k: keep the k most likely tokens; 0 keeps all.
    top_p: of these, keep the fewest whose share is at least p; 1 keeps all.
  """

  key: jax.Array
  temperature: Float[Array, '']
  greedy: Bool[Array, '']
  top_k: Int[Array, '']
  top_p: Float[Array, '']


def token_keys(
    key: jax.Array, uids: UInt[Array, 'B'], positions: Int[Array, 'B']
) -> jax.Array:
  """One key per row, from the trajectory's uid and the token's position."""

  def one(uid, position):
    return jax.random.fold_in(jax.random.fold_in(key, uid), position)

  return jax.vmap(one)(uids, positions)


def uniforms(
    key: jax.Array, uids: UInt[Array, 'B'], positions: Int[Array, 'B N']
) -> Float[Array, 'B N']:
  """The number in [0, 1) that decides each row's token at each position."""
  keys = jax.vmap(token_keys, (None, None, 1), 1)(key, uids, positions)
  return jax.vmap(jax.vmap(jax.random.uniform))(keys)


def invert(
    probs: Float[Array, 'B V'], uniform: Float[Array, 'B']
) -> Int[Array, 'B']:
  """The token whose share of the cumulative distribution holds `uniform`.

  First the block of tokens that holds it, then the token of that block: a
  cumulative sum over the whole vocabulary is four times as much work.

  Args:
    probs: not negative; need not be normalized.
    uniform: in [0, 1).

  Returns:
    Ids; never one of probability 0.
  """
  missing = -probs.shape[-1] % _BLOCK
  blocks = jnp.pad(probs, ((0, 0), (0, missing)))
  blocks = blocks.reshape(len(probs), -1, _BLOCK)
  sums = blocks.sum(axis=-1)
  ends = jnp.cumsum(sums, axis=-1)
  threshold = uniform * ends[:, -1]
  pick = lambda x, index: jnp.take_along_axis(x, index[:, None], axis=1)[:, 0]
  block = _crossing(sums, ends, threshold)
  before = pick(ends, block) - pick(sums, block)
  inside = pick(blocks, block[:, None])
  token = _crossing(inside, jnp.cumsum(inside, axis=-1), threshold - before)
  return block * _BLOCK + token


def _crossing(
    weights: Float[Array, 'B N'],
    cumulative: Float[Array, 'B N'],
    threshold: Float[Array, 'B'],
) -> Int[Array, 'B']:
  """The first place of weight above 0 where `cumulative` passes `threshold`.

  The last of weight above 0 where rounding leaves none; 0 where all is NaN.
  """
  index = jnp.arange(weights.shape[-1], dtype=jnp.int32)
  last = jnp.where(weights > 0, index, 0).max(axis=-1)
  passed = (cumulative > threshold[:, None]) & (weights > 0)
  return jnp.minimum(_first(passed), last)


def most_likely(scores: Float[Array, 'B V']) -> Int[Array, 'B']:
  """argmax, the first of equals; the last token where all is NaN."""
  found = _first(scores == scores.max(axis=-1, keepdims=True))
  return jnp.minimum(found, scores.shape[-1] - 1)


def _first(which: Bool[Array, 'B V']) -> Int[Array, 'B']:
  """The first index that is True; V if there is none.

  A plain minimum: XLA's CPU backend runs an argmax, which reduces pairs, one
  element after the other, and five times slower.
  """
  size = which.shape[-1]
  index = jnp.where(which, jnp.arange(size, dtype=jnp.int32), size)
  return index.min(axis=-1)


def cut(
    logprobs: Float[Array, 'B V'],
    top_k: Int[Array, ''],
    top_p: Float[Array, ''],
) -> Float[Array, 'B V']:
  """Log-probabilities of what top-k, then top-p, leave; -inf for the rest.

  Tokens as likely as the last one kept are kept, too, so that no order among
  equals decides.
  """
  falling = -jnp.sort(-logprobs, axis=-1)
  rank = jnp.arange(falling.shape[-1])
  among = jnp.where((top_k == 0) | (rank < top_k), jnp.exp(falling), 0.0)
  before = jnp.cumsum(among, axis=-1) - among
  share = before / among.sum(axis=-1, keepdims=True)
  kept = (among > 0) & ((share < top_p) | (top_p >= 1)) | (rank == 0)
  last = jnp.min(jnp.where(kept, falling, jnp.inf), axis=-1, keepdims=True)
  return jax.nn.log_softmax(
      jnp.where(logprobs >= last, logprobs, -jnp.inf), axis=-1
  )


def sample(
    logits: Float[Array, 'B V'],
    sampler: Sampler,
    uniform: Float[Array, 'B'],
) -> tuple[Int[Array, 'B'], Float[Array, 'B']]:
  """Draws one token per row.

  Args:
    logits: float32.
    sampler: how to sample.
    uniform: of `uniforms`; unused when greedy.

  Returns:
    Tokens and their float32 log_softmax(logits / temperature), cut.
  """
  scaled = logits / jnp.where(sampler.greedy, 1.0, sampler.temperature)
  is_cut = ~sampler.greedy & ((sampler.top_k > 0) | (sampler.top_p < 1))
  scaled = jax.lax.cond(  # a sort that nobody asked for costs nothing
      is_cut,
      lambda x: cut(jax.nn.log_softmax(x), sampler.top_k, sampler.top_p),
      lambda x: x,
      scaled,
  )
  top = scaled.max(axis=-1, keepdims=True)
  weights = jnp.exp(scaled - top)

  tokens = jax.lax.cond(
      sampler.greedy,
      lambda: most_likely(scaled),
      lambda: invert(weights, uniform),
  )
  chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=-1)
  return tokens, (chosen - top)[:, 0] - jnp.log(weights.sum(axis=-1))
