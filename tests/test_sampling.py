"""Tests of device/sampling.py: the inverse distribution, streams, logprobs."""

import jax
import jax.numpy as jnp
import numpy as np

from rods_jax.device import sampling


def _sampler(temperature=1.0, greedy=False, seed=0):
  return sampling.Sampler(
      jax.random.key(seed), jnp.float32(temperature), jnp.bool_(greedy)
  )


def test_invert_by_hand():
  # Shares end at 0.25, 0.25, 0.75, 1.0: token 1 has none and is never drawn,
  # not even at the edge 0.25, which belongs to token 2.
  probs = jnp.tile(jnp.array([0.25, 0.0, 0.5, 0.25]), (5, 1))
  uniform = jnp.array([0.0, 0.2499, 0.25, 0.7499, 0.75])
  assert sampling.invert(probs, uniform).tolist() == [0, 0, 2, 2, 3]


def test_invert_never_leaves_the_support():
  """The largest uniform float must not fall behind the last likely token."""
  probs = jnp.array([[0.3, 0.7, 0.0, 0.0]])
  largest = jnp.array([1 - 2.0**-24], jnp.float32)
  assert sampling.invert(probs, largest).tolist() == [1]
  assert sampling.invert(probs, jnp.array([0.0])).tolist() == [0]
  first_impossible = jnp.array([[0.0, 1.0]])
  assert sampling.invert(first_impossible, jnp.array([0.0])).tolist() == [1]


def test_frequencies_follow_the_tempered_distribution():
  # At temperature 0.5 the odds 1 : 2 : 4 become 1 : 4 : 16.
  n = 20_000
  logits = jnp.tile(jnp.log(jnp.array([1.0, 2.0, 4.0])), (n, 1))
  tokens, logprobs = sampling.sample(
      logits, _sampler(0.5), jnp.arange(n, dtype=jnp.uint32), jnp.zeros(n, int)
  )
  want = np.array([1, 4, 16]) / 21
  share = np.bincount(tokens, minlength=3) / n
  # Deviation of a share: at most sqrt(1/4/20000) = 0.0035; four of them.
  np.testing.assert_allclose(share, want, atol=0.014)
  np.testing.assert_allclose(logprobs, np.log(want)[tokens], atol=1e-5)


def test_greedy_ignores_temperature():
  logits = jnp.log(jnp.array([[1.0, 2.0, 1.0]]))
  for temperature in (0.1, 5.0):
    tokens, logprobs = sampling.sample(
        logits, _sampler(temperature, True), jnp.zeros(1, jnp.uint32),
        jnp.zeros(1, int),
    )
    assert tokens.tolist() == [1]
    np.testing.assert_allclose(logprobs, [np.log(0.5)], atol=1e-6)


def test_no_two_places_share_a_key():
  """uid + position as one number would give (1, 2) the key of (2, 1)."""
  uids, positions = np.meshgrid(np.arange(16), np.arange(16))
  keys = sampling.token_keys(
      jax.random.key(0), jnp.asarray(uids.ravel(), jnp.uint32),
      jnp.asarray(positions.ravel()),
  )
  data = np.asarray(jax.random.key_data(keys))
  assert len({tuple(row) for row in data}) == 256


def test_large_uids_stay_apart():
  uids = jnp.array([2**32 - 1, 2**31, 0, 1], jnp.uint32)
  keys = sampling.token_keys(jax.random.key(0), uids, jnp.zeros(4, int))
  data = np.asarray(jax.random.key_data(keys))
  assert len({tuple(row) for row in data}) == 4
