"""The fast products and attention equal the plain ones, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax.device import layers


def normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


def plain_attention(q, k, v):
  """One softmax over all keys; head h reads key head h // (H / K)."""
  repeat = q.shape[2] // k.shape[2]
  k, v = (jnp.repeat(x, repeat, axis=2) for x in (k, v))
  scores = jnp.einsum('bthp,bshp->bhts', q, k) * q.shape[-1] ** -0.5
  index = jnp.arange(q.shape[1])
  scores = jnp.where(index[:, None] >= index, scores, -jnp.inf)
  return jnp.einsum('bhts,bshp->bthp', jax.nn.softmax(scores), v)


def check(fast, plain, *args):
  """Same values and same gradients, within float32 rounding."""
  expected = plain(*args)
  weights = normal(9, *expected.shape)
  np.testing.assert_allclose(fast(*args), expected, rtol=2e-5, atol=2e-5)
  argnums = tuple(range(len(args)))
  grads = (
      jax.jit(jax.grad(lambda *a: jnp.sum(f(*a) * weights), argnums))(*args)
      for f in (fast, plain)
  )
  for a, b in zip(*grads):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


# 160 tokens are two blocks, the second a short one; 7 tokens are one block.
@pytest.mark.parametrize('length', [7, 160])
def test_attention(length):
  q = normal(0, 2, length, 4, 8)
  k, v = normal(1, 2, length, 2, 8), normal(2, 2, length, 2, 8)
  check(layers.causal_attention, plain_attention, q, k, v)


@pytest.mark.parametrize('shape', [(5,), (3, 4)])
def test_linear(shape):
  x, weight = normal(0, 2, 6, 7), normal(1, 7, *shape)
  check(layers.linear, lambda x, w: jnp.tensordot(x, w, 1), x, weight)


def test_tied_logits():
  x, embedding = normal(0, 2, 6, 7), normal(1, 11, 7)
  check(layers.tied_logits, lambda x, e: x @ e.T, x, embedding)


def test_no_token_reads_what_follows():
  """Changing token 130 changes nothing before it, across the block border."""
  q, k, v = (normal(i, 1, 160, 2, 8) for i in range(3))
  before = layers.causal_attention(q, k, v)
  after = layers.causal_attention(q, k, v.at[:, 130].add(1e6))
  np.testing.assert_array_equal(before[:, :130], after[:, :130])
  assert np.abs(before[:, 130] - after[:, 130]).min() > 1
