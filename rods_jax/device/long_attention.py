"""Causal attention whose memory does not grow with the square of the row.

One pair of a block of queries and a block of keys at a time gets its scores,
and only pairs of which a query sees a key: (N + 1) / 2N of all scores, where
1/2 would do. The softmax goes along with the keys (arXiv 2112.05682); the
backward pass computes the scores again from the logarithm of each row's
normalizer. All pairs are one loop, so one program is compiled for any length.

This is plain JAX and no fused kernel.

Shapes: N blocks, B rows, K kv heads, P head_dim, S = BLOCK keys of a block, and
Q = G * BLOCK queries of a block, with the G query heads of a kv head.
"""

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from rods_jax.device import axes

KEPT = 'attention'  # what a remat policy knows the results by
BLOCK = 512
_MASKED = -1e30  # finite, as in cache.py


def attention(
    q: Float[Array, 'B T H P'],
    k: Float[Array, 'B T K P'],
    v: Float[Array, 'B T K P'],
) -> Float[Array, 'B T H P']:
  """Grouped-query attention of whole right-padded rows; softmax in float32."""
  b, t, h, p = q.shape
  kv = k.shape[2]
  extra = -t % BLOCK  # behind every real token: seen by none of them
  q, k, v = (
      jnp.pad(x, ((0, 0), (0, extra), (0, 0), (0, 0))) for x in (q, k, v)
  )
  out = _attend(_blocks(q * p**-0.5, kv), _blocks(k, kv), _blocks(v, kv))
  out = out.reshape(*out.shape[:3], h // kv, BLOCK, p)
  return out.transpose(1, 0, 4, 2, 3, 5).reshape(b, t + extra, h, p)[:, :t]


def _blocks(
    x: Float[Array, 'B T H P'], kv: int
) -> Float[Array, 'N B K Q P']:
  """Blocks of tokens; the heads of a kv head one after the other."""
  b, t, h, p = x.shape
  x = x.reshape(b, t // BLOCK, BLOCK, kv, h // kv, p)
  x = x.transpose(1, 0, 3, 4, 2, 5).reshape(t // BLOCK, b, kv, -1, p)
  return axes.constrain(x, None, 'batch', 'kv_heads', None, None)


def _pairs(q: Float[Array, 'N ...']):
  """int32 (blocks of queries, of keys) of each pair, row by row; and q.

  Tied to q: what a mask of the index alone needs would be computed for all
  pairs before a scan over layers, and kept.
  """
  rows, columns = np.tril_indices(q.shape[0])
  pairs = jnp.int32(rows), jnp.int32(columns)
  return jax.lax.optimization_barrier((pairs, q))


def _at(x: Array, index: Int[Array, '']) -> Array:
  return jax.lax.dynamic_index_in_dim(x, index, keepdims=False)


def _set(x: Array, value: Array, index: Int[Array, '']) -> Array:
  value = value.astype(x.dtype)
  return jax.lax.dynamic_update_index_in_dim(x, value, index, 0)


def _product(equation: str, x: Array, y: Array) -> Array:
  return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)


def _scores(
    q: Float[Array, 'B K Q P'],
    k: Float[Array, 'B K S P'],
    i: Int[Array, ''],
    j: Int[Array, ''],
) -> Float[Array, 'B K Q S']:
  """float32 scores of block i of queries and j of keys; _MASKED if later."""
  scores = _product('bkqp,bksp->bkqs', q, k)
  block = k.shape[2]
  query = i * block + jnp.arange(q.shape[2]) % block
  seen = j * block + jnp.arange(block) <= query[:, None]
  return jnp.where(seen, scores, _MASKED)


@jax.custom_vjp
def _attend(q, k, v):
  """Blocks of scaled queries [N B K Q P] over [N B K S P]; as the queries."""
  return _forward(q, k, v)[0]


def _forward(q, k, v):
  pairs, q = _pairs(q)

  def one(carry, pair):
    top, total, summed, out, log_z = carry
    i, j = pair
    scores = _scores(_at(q, i), _at(k, j), i, j)
    before = jnp.where(j == 0, _MASKED, top)  # forgets the block before
    top = jnp.maximum(before, scores.max(axis=-1))
    kept = jnp.exp(before - top)
    weights = jnp.exp(scores - top[..., None])
    total = kept * total + weights.sum(axis=-1)
    summed = kept[..., None] * summed + _product(
        'bkqs,bksp->bkqp', weights.astype(v.dtype), _at(v, j)
    )
    # The last pair of a row of blocks leaves what counts.
    out = _set(out, summed / total[..., None], i)
    log_z = _set(log_z, top + jnp.log(total), i)
    return (top, total, summed, out, log_z), None

  log_z = jnp.zeros(q.shape[:-1], jnp.float32)
  summed = jnp.zeros(q.shape[1:], jnp.float32)
  start = log_z[0], log_z[0], summed, jnp.zeros_like(q), log_z
  (*_, out, log_z), _ = jax.lax.scan(one, start, pairs)
  out, log_z = checkpoint_name(out, KEPT), checkpoint_name(log_z, KEPT)
  return out, (q, k, v, out, log_z)


def _backward(saved, g):
  q, k, v, out, log_z = saved
  # sum_s w_s (g . v_s) is g . out.
  mean = jnp.sum((g * out).astype(jnp.float32), axis=-1, keepdims=True)
  pairs, q = _pairs(q)

  def one(carry, pair):
    row, d_q, d_k, d_v = carry
    i, j = pair
    q_i, k_j, g_i = _at(q, i), _at(k, j), _at(g, i)
    weights = jnp.exp(_scores(q_i, k_j, i, j) - _at(log_z, i)[..., None])
    d_weights = _product('bkqp,bksp->bkqs', g_i, _at(v, j)) - _at(mean, i)
    d_scores = (weights * d_weights).astype(k.dtype)
    row = jnp.where(j == 0, 0, row)
    row += _product('bkqs,bksp->bkqp', d_scores, k_j)
    d_q = _set(d_q, row, i)
    added = _product('bkqs,bkqp->bksp', d_scores, q_i)
    d_k = _set(d_k, _at(d_k, j) + added, j)
    added = _product('bkqs,bkqp->bksp', weights.astype(v.dtype), g_i)
    d_v = _set(d_v, _at(d_v, j) + added, j)
    return (row, d_q, d_k, d_v), None

  wide = jnp.zeros(k.shape, jnp.float32)
  row = jnp.zeros(q.shape[1:], jnp.float32)
  (_, d_q, d_k, d_v), _ = jax.lax.scan(
      one, (row, jnp.zeros_like(q), wide, wide), pairs
  )
  return d_q, d_k.astype(k.dtype), d_v.astype(v.dtype)


_attend.defvjp(_forward, _backward)
