"""Tests of device/sampling.py: the inverse distribution, streams, logprobs."""

import jax
import jax.numpy as jnp
import numpy as np

from rods_jax.device import sampling


def _sampler(temperature=1.0, greedy=False, seed=0, top_k=0, top_p=1.0):
  return sampling.Sampler(
      jax.random.key(seed), jnp.float32(temperature), jnp.bool_(greedy),
      jnp.int32(top_k), jnp.float32(top_p),
  )


def _uniform(n):
  """The first number of each of n streams."""
  uids = jnp.arange(n, dtype=jnp.uint32)
  where = jnp.zeros((n, 1), int)
  return sampling.uniforms(jax.random.key(0), uids, where)[:, 0]


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


def test_invert_agrees_with_a_cumulative_sum_at_every_place():
  """Eighths over 100 tokens, some of weight 0: blocks of 32, the last padded.

  Sums of eighths are exact in float32, so the reference below is, too. Token 31
  ends the first block, 32 starts the second; 96 to 99 are its own.
  """
  weights = np.random.default_rng(0).integers(0, 4, 100) / 8
  weights[[31, 32, 99]], weights[64:96] = 0.125, 0.0  # a block without any
  ends = np.cumsum(weights)
  targets = np.arange(0, ends[-1], 1 / 16)  # between and at all ends
  want = np.searchsorted(ends, targets, side='right')
  # A total of 2^k would divide exactly: the rounding of u * total is the
  # only inexact step, so we ask for the middle between two targets.
  uniform = ((targets + 1 / 32) / ends[-1]).astype(np.float32)
  rows = jnp.tile(jnp.asarray(weights, jnp.float32), (len(uniform), 1))
  got = sampling.invert(rows, jnp.asarray(uniform))
  np.testing.assert_array_equal(got, want)
  assert {31, 32, 99} <= set(want.tolist())


def test_invert_stays_inside_of_a_broken_distribution():
  got = sampling.invert(jnp.full((2, 40), jnp.nan), jnp.array([0.0, 0.9]))
  assert ((got >= 0) & (got < 40)).all()


def test_frequencies_follow_the_tempered_distribution():
  # At temperature 0.5 the odds 1 : 2 : 4 become 1 : 4 : 16.
  n = 20_000
  logits = jnp.tile(jnp.log(jnp.array([1.0, 2.0, 4.0])), (n, 1))
  tokens, logprobs = sampling.sample(logits, _sampler(0.5), _uniform(n))
  want = np.array([1, 4, 16]) / 21
  share = np.bincount(tokens, minlength=3) / n
  # Deviation of a share: at most sqrt(1/4/20000) = 0.0035; four of them.
  np.testing.assert_allclose(share, want, atol=0.014)
  np.testing.assert_allclose(logprobs, np.log(want)[tokens], atol=1e-5)


def test_greedy_ignores_temperature():
  logits = jnp.log(jnp.array([[1.0, 2.0, 1.0]]))
  for temperature in (0.1, 5.0):
    tokens, logprobs = sampling.sample(
        logits, _sampler(temperature, True), jnp.zeros(1)
    )
    assert tokens.tolist() == [1]
    np.testing.assert_allclose(logprobs, [np.log(0.5)], atol=1e-6)


def _cut(probs, top_k=0, top_p=1.0):
  out = sampling.cut(
      jnp.log(jnp.array([probs])), jnp.int32(top_k), jnp.float32(top_p)
  )
  return np.exp(out[0])


def test_cuts_by_hand():
  probs = [0.1, 0.5, 0.15, 0.25]
  whole = np.array(probs)
  np.testing.assert_allclose(_cut(probs), whole, atol=1e-6)
  # The two most likely, 0.5 and 0.25, of 0.75.
  two = [0, 2 / 3, 0, 1 / 3]
  np.testing.assert_allclose(_cut(probs, top_k=2), two, atol=1e-6)
  # 0.5 alone is less than 0.7; with 0.25 it is enough.
  np.testing.assert_allclose(_cut(probs, top_p=0.7), two, atol=1e-6)
  np.testing.assert_allclose(_cut(probs, top_p=0.45), [0, 1, 0, 0], atol=1e-6)
  np.testing.assert_allclose(_cut(probs, top_p=1e-6), [0, 1, 0, 0], atol=1e-6)
  np.testing.assert_allclose(_cut(probs, top_k=9), whole, atol=1e-6)
  # top_p is a share of what top_k left: 0.5 of 0.9, 0.75 of 0.9, so all three
  # are needed for 0.85; of the whole 0.9 would need three, too, 0.7 only two.
  three = np.array([0, 0.5, 0.15, 0.25]) / 0.9
  np.testing.assert_allclose(_cut(probs, 3, 0.85), three, atol=1e-6)
  np.testing.assert_allclose(_cut(probs, 3, 0.8), two, atol=1e-6)
  # Of equals none is preferred: with one more place all three stay.
  np.testing.assert_allclose(
      _cut([0.2, 0.4, 0.2, 0.2], top_k=2), [0.2, 0.4, 0.2, 0.2], atol=1e-6
  )


def test_a_cut_token_is_never_drawn_and_logprobs_are_of_what_is_left():
  """At temperature 0.5 odds 1:2:4:8 become 1:4:16:64; the best two 1:4.

  Of the whole distribution the logprobs would be log(16/85) and log(64/85).
  """
  n = 20_000
  logits = jnp.tile(jnp.log(jnp.array([1.0, 2.0, 4.0, 8.0])), (n, 1))
  for name, value in (('top_k', 2), ('top_p', 0.9)):  # 80/85 is 0.94
    sampler = _sampler(0.5, **{name: value})
    tokens, logprobs = sampling.sample(logits, sampler, _uniform(n))
    want = np.array([0, 0, 1, 4]) / 5
    share = np.bincount(tokens, minlength=4) / n
    np.testing.assert_allclose(share, want, atol=0.014)
    assert not share[:2].any()
    np.testing.assert_allclose(logprobs, np.log(want[tokens]), atol=1e-5)
  # Greedy knows no cut.
  _, logprobs = sampling.sample(
      logits, _sampler(0.5, True, top_k=1), _uniform(n)
  )
  np.testing.assert_allclose(logprobs, np.log(8 / 15), atol=1e-5)


def test_a_number_depends_on_its_own_place_alone():
  """Row 5 at positions 3 and 4: in whatever company, and one by one."""
  key, uids = jax.random.key(0), jnp.array([5, 9], jnp.uint32)
  both = sampling.uniforms(key, uids, jnp.array([[3, 4], [0, 1]]))
  alone = [
      sampling.uniforms(key, uids[:1], jnp.array([[i]]))[0, 0] for i in (3, 4)
  ]
  assert both[0].tolist() == [float(x) for x in alone]
  assert len(set(both.ravel().tolist())) == 4


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
