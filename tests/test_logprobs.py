"""Log-probabilities at the targets, by hand and in pieces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax.device import logprobs

# The head is the identity: activations are the logits.
LOGITS = jnp.log(jnp.array([[[1.0, 3.0, 4.0], [2.0, 2.0, 4.0]]]))
TARGETS = jnp.array([[1, 2]])
ALL = jnp.ones((1, 2), bool)


def score(hidden=LOGITS, mask=ALL, temperature=1.0, chunk=None):
  return logprobs.token_logprobs(
      lambda x: x, hidden, TARGETS, mask, temperature, chunk
  )


def test_by_hand():
  """Weights 1, 3, 4: log 3/8. Weights 2, 2, 4: log 1/2, entropy 1.5 log 2."""
  value, entropy = score()
  np.testing.assert_allclose(value, [np.log([3 / 8, 1 / 2])], rtol=1e-6)
  np.testing.assert_allclose(entropy[0, 1], 1.5 * np.log(2), rtol=1e-6)


def test_temperature():
  """At 1/2 the weights are squared: 9 / (1 + 9 + 16) and 16 / 24.

  The bug, temperature forgotten in training, gives 3/8 and 1/2.
  """
  value, _ = score(temperature=0.5)
  np.testing.assert_allclose(value, [np.log([9 / 26, 2 / 3])], rtol=1e-6)


@pytest.mark.parametrize('chunk', [None, 1])
def test_filling_is_zero_and_has_no_gradient(chunk):
  """NaN at a filling position reaches neither the value nor a gradient."""
  hidden = LOGITS.at[0, 1].set(jnp.nan)
  mask = jnp.array([[True, False]])

  def total(hidden):
    value, entropy = score(hidden, mask, chunk=chunk)
    return value.sum() + entropy.sum()

  assert jnp.isfinite(total(hidden))
  grads = jax.grad(total)(hidden)
  np.testing.assert_array_equal(grads[0, 1], 0)
  assert jnp.all(jnp.isfinite(grads))


@pytest.mark.parametrize('chunk', [1, 2, 3, 5, 7, 64])
def test_chunks_change_nothing(chunk):
  """7 targets in pieces of any size: values and gradients of the whole."""
  keys = jax.random.split(jax.random.key(0), 3)
  hidden = jax.random.normal(keys[0], (2, 7, 4))
  weight = jax.random.normal(keys[1], (4, 11))
  targets = jax.random.randint(keys[2], (2, 7), 0, 11)
  mask = jnp.arange(7) < jnp.array([[7], [4]])

  def run(chunk):
    def total(hidden, weight):
      value, entropy = logprobs.token_logprobs(
          lambda x: x @ weight, hidden, targets, mask, 0.8, chunk
      )
      return jnp.sum(value * jnp.arange(7)) + jnp.sum(entropy), value
    return jax.grad(total, (0, 1), has_aux=True)(hidden, weight)

  for a, b in zip(jax.tree.leaves(run(None)), jax.tree.leaves(run(chunk))):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_gather_rows():
  hidden = jnp.arange(12.0).reshape(2, 3, 2)
  out = logprobs.gather_rows(hidden, jnp.array([[2, 0], [1, 1]]))
  np.testing.assert_array_equal(
      out, [[[4, 5], [0, 1]], [[8, 9], [8, 9]]]
  )
