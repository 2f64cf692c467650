"""Causal attention whose memory does not grow with the square of the row.

One block of queries at a time gets its scores; the backward pass computes them
again from the output and the logarithm of each row's normalizer. Blocks come in
a few groups, each a loop over its blocks with the keys up to the group's end:
with 8 groups (8 + 1) / 16 of all scores are computed, where 1/2 would do.

This is plain JAX and no fused kernel: scores of a block go through memory.

Shapes: N blocks of queries, B rows, K kv heads, P head_dim, S keys, and
Q = G * BLOCK queries of a block, with the G query heads of a kv head.
"""

from collections.abc import Iterator

import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

KEPT = 'attention'  # what a remat policy knows the results by
BLOCK = 128
_GROUPS = 8
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
  count = (t + extra) // BLOCK
  shape = (b, count, BLOCK, kv, h // kv, p)
  blocks = (q * p**-0.5).reshape(shape).transpose(1, 0, 3, 4, 2, 5)
  blocks = blocks.reshape(count, b, kv, -1, p)
  out = _attend(blocks, k.swapaxes(1, 2), v.swapaxes(1, 2))
  out = out.reshape(count, b, kv, h // kv, BLOCK, p)
  return out.transpose(1, 0, 4, 2, 3, 5).reshape(b, t + extra, h, p)[:, :t]


def _groups(count: int) -> Iterator[tuple[slice, int]]:
  """Blocks of each group, and the number of keys that they may see."""
  size = -(-count // _GROUPS)
  for start in range(0, count, size):
    end = min(start + size, count)
    yield slice(start, end), end * BLOCK


def _scores(
    q: Float[Array, 'B K Q P'],
    k: Float[Array, 'B K S P'],
    block: Int[Array, ''],
) -> Float[Array, 'B K Q S']:
  """float32 scores of a block of queries; _MASKED after each query."""
  scores = jnp.einsum(
      'bkqp,bksp->bkqs', q, k, preferred_element_type=jnp.float32
  )
  query = block * BLOCK + jnp.arange(q.shape[2]) % BLOCK
  seen = jnp.arange(k.shape[2]) <= query[:, None]
  return jnp.where(seen, scores, _MASKED)


@jax.custom_vjp
def _attend(q, k, v):
  """Blocks of scaled queries [N B K Q P] over [B K S P]; as the queries."""
  return _forward(q, k, v)[0]


def _forward(q, k, v):
  # A mask of the index alone would be computed for all blocks and kept.
  index, q = jax.lax.optimization_barrier((jnp.arange(q.shape[0]), q))
  outputs, normalizers = [], []
  for part, keys in _groups(q.shape[0]):

    def one(x, keys=keys):
      block, q = x
      scores = _scores(q, k[:, :, :keys], block)
      log_z = jax.nn.logsumexp(scores, axis=-1)
      weights = jnp.exp(scores - log_z[..., None]).astype(v.dtype)
      return jnp.einsum('bkqs,bksp->bkqp', weights, v[:, :, :keys]), log_z

    out, log_z = jax.lax.map(one, (index[part], q[part]))
    outputs.append(out)
    normalizers.append(log_z)
  out = checkpoint_name(jnp.concatenate(outputs), KEPT)
  log_z = checkpoint_name(jnp.concatenate(normalizers), KEPT)
  return out, (q, k, v, out, log_z)


def _backward(saved, g):
  q, k, v, out, log_z = saved
  # sum_s w_s (g . v_s) is g . out.
  mean = jnp.sum((g * out).astype(jnp.float32), axis=-1, keepdims=True)
  d_k, d_v = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
  d_q = []
  index, q = jax.lax.optimization_barrier((jnp.arange(q.shape[0]), q))
  for part, keys in _groups(q.shape[0]):

    def one(carry, x, keys=keys):
      block, q, g, log_z, mean = x
      scores = _scores(q, k[:, :, :keys], block)
      weights = jnp.exp(scores - log_z[..., None])
      d_weights = jnp.einsum(
          'bkqp,bksp->bkqs', g, v[:, :, :keys],
          preferred_element_type=jnp.float32,
      )
      d_scores = (weights * (d_weights - mean)).astype(k.dtype)
      added = (
          _over_queries(d_scores, q), _over_queries(weights.astype(v.dtype), g)
      )
      d_q = jnp.einsum('bkqs,bksp->bkqp', d_scores, k[:, :, :keys])
      return jax.tree.map(jnp.add, carry, added), d_q

    (d_k_part, d_v_part), d_q_part = jax.lax.scan(
        one,
        (jnp.zeros_like(d_k[:, :, :keys]), jnp.zeros_like(d_v[:, :, :keys])),
        jax.tree.map(lambda x: x[part], (index, q, g, log_z, mean)),
    )
    d_k = d_k.at[:, :, :keys].add(d_k_part)
    d_v = d_v.at[:, :, :keys].add(d_v_part)
    d_q.append(d_q_part)
  return jnp.concatenate(d_q), d_k.astype(k.dtype), d_v.astype(v.dtype)


def _over_queries(wide, rows):
  """float32 sum_q wide[q, s] rows[q, p]."""
  return jnp.einsum(
      'bkqs,bkqp->bksp', wide, rows, preferred_element_type=jnp.float32
  )


_attend.defvjp(_forward, _backward)
