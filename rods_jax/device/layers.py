"""Matrix products and causal attention whose backward pass runs well on CPU.

XLA's CPU backend makes a transposed copy of the left operand for each product
that sums over tokens, and fuses the elementwise work before it into that copy,
element by element across memory: measured, half of the backward pass. The
gradients below are written so that the operand that gets transposed is the
small one (activations of width D, queries of width P), never the wide one
(mlp activations, vocabulary, attention weights). The values are the same.

Attention goes over blocks of queries, each with the keys up to its end only:
half of the scores are never computed. Rows longer than SHORT, whose weights
would fill the memory, go to long_attention.py. On 2 cores a training step of
the small policy runs 1.8 times faster than with plain einsums
(experiments/README.md).
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rods_jax.device import long_attention

SHORT = 2048
_MASKED = -1e30  # finite, as in cache.py
MIN_BLOCK = 128
MAX_BLOCKS = 4  # more would cost more compile time than they save


def linear(
    x: Float[Array, '... D'], weight: Float[Array, 'D ...']
) -> Float[Array, '...']:
  """x @ weight over the last axis of x and the first of weight."""
  flat = weight.reshape(weight.shape[0], -1)
  rows = math.prod(x.shape[:-1])
  out = _matmul(x.reshape(rows, x.shape[-1]), flat)
  return out.reshape(*x.shape[:-1], *weight.shape[1:])


def tied_logits(
    x: Float[Array, '... D'], embedding: Float[Array, 'V D']
) -> Float[Array, '... V']:
  """float32 x @ embedding^T."""
  rows = math.prod(x.shape[:-1])
  out = _matmul_transposed(x.reshape(rows, x.shape[-1]), embedding)
  return out.reshape(*x.shape[:-1], embedding.shape[0])


def causal_attention(
    q: Float[Array, '...'],
    k: Float[Array, '...'],
    v: Float[Array, '...'],
) -> Float[Array, '...']:
  """Grouped-query attention of whole right-padded rows; softmax in float32.

  A token reads itself and what stands before it, so padding on the right needs
  no mask of its own. Head h reads key head h // (H / K).
  """
  b, t, h, p = q.shape
  if t > SHORT:
    return long_attention.attention(q, k, v)
  kv = k.shape[2]
  block = max(MIN_BLOCK, -(-t // MAX_BLOCKS))
  k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
  grouped = (q * p**-0.5).reshape(b, t, kv, h // kv, p).transpose(0, 2, 3, 1, 4)
  outputs = []
  for start in range(0, t, block):
    end = min(start + block, t)
    part = grouped[:, :, :, start:end]
    out = _attend(part, k[:, :, :end], v[:, :, :end])
    outputs.append(out.transpose(0, 3, 1, 2, 4).reshape(b, end - start, h, p))
  return jnp.concatenate(outputs, axis=1)


@jax.custom_vjp
def _matmul(x, weight):
  return x @ weight


def _matmul_forward(x, weight):
  return x @ weight, (x, weight)


def _matmul_backward(saved, g):
  x, weight = saved
  return g @ weight.T, jax.lax.dot_general(x, g, (((0,), (0,)), ((), ())))


_matmul.defvjp(_matmul_forward, _matmul_backward)


@jax.custom_vjp
def _matmul_transposed(x, weight):
  return _matmul_transposed_forward(x, weight)[0]


def _matmul_transposed_forward(x, weight):
  out = jax.lax.dot_general(
      x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
  )
  return out, (x, weight)


def _matmul_transposed_backward(saved, g):
  x, weight = saved
  g = g.astype(x.dtype)
  # [D, V], then a small transpose: not [V, rows] times [rows, D].
  return g @ weight, jax.lax.dot_general(x, g, (((0,), (0,)), ((), ()))).T


_matmul_transposed.defvjp(
    _matmul_transposed_forward, _matmul_transposed_backward
)


@jax.custom_vjp
def _attend(q, k, v):
  """The last t queries [B K G t P] over keys and values [B K S P]."""
  return _attend_forward(q, k, v)[0]


def _attend_forward(q, k, v):
  b, kv, g, t, p = q.shape
  flat = q.reshape(b, kv, g * t, p)
  scores = jnp.einsum(
      'bkqp,bksp->bkqs', flat, k, preferred_element_type=jnp.float32
  ).reshape(b, kv, g, t, -1)
  keys = jnp.arange(k.shape[2])
  seen = keys <= keys[-t:, None]
  weights = jax.nn.softmax(jnp.where(seen, scores, _MASKED), axis=-1)
  weights = weights.astype(v.dtype).reshape(b, kv, g * t, -1)
  out = jnp.einsum('bkqs,bksp->bkqp', weights, v)
  return out.reshape(q.shape), (flat, k, v, weights, out)


def _attend_backward(saved, g):
  q, k, v, weights, out = saved
  shape = g.shape
  g = g.reshape(q.shape)
  # sum_s w_s (g . v_s) is g . out.
  mean = jnp.sum(g * out, axis=-1, keepdims=True)
  d_scores = weights * (jnp.einsum('bkqp,bksp->bkqs', g, v) - mean)
  d_q = jnp.einsum('bkqs,bksp->bkqp', d_scores, k).reshape(shape)
  return d_q, _over_queries(q, d_scores), _over_queries(g, weights)


def _over_queries(rows, wide):
  """sum_q wide[q, s] rows[q, p] as [.., S, P], transposing `rows` only."""
  dims = (((2,), (2,)), ((0, 1), (0, 1)))
  return jax.lax.dot_general(rows, wide, dims).swapaxes(2, 3)


_attend.defvjp(_attend_forward, _attend_backward)
