"""The GRPO objective, each option by hand beside the likely bug's value."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax.device import losses

CONFIG = losses.GrpoConfig(
    clip_low=0.2, clip_high=0.28, dual_clip=10.0, kl_coef=0.0,
    entropy_coef=0.0, aggregation='token_mean', normalize_advantage=True,
    temperature=1.0,
)
ON = jnp.ones((1, 1), bool)


def run(ratios, advantages, mask=None, entropies=0.0, ref=None, **changes):
  """Sums for rows of ratios against old log-probabilities of -1."""
  log_ratio = jnp.log(jnp.array(ratios, jnp.float32))
  old = jnp.full(log_ratio.shape, -1.0)
  mask = jnp.ones(old.shape, bool) if mask is None else jnp.array(mask, bool)
  return losses.grpo(
      old + log_ratio, jnp.broadcast_to(jnp.asarray(entropies), old.shape), old,
      ref, jnp.array(advantages, jnp.float32), mask,
      dataclasses.replace(CONFIG, **changes),
  )


@pytest.mark.parametrize('ratio, advantage, loss, cut', [
    (1.0, 2.0, -2.0, 0),  # on policy
    (1.2, 1.0, -1.2, 0),  # inside 1.28; a symmetric 0.2 would be the border
    (1.5, 1.0, -1.28, 1),  # clip high; symmetric clipping gives -1.2
    (0.5, 1.0, -0.5, 0),  # the minimum keeps the gradient
    (0.5, -1.0, 0.8, 1),  # clip low
    (1.5, -1.0, 1.5, 0),  # no upper clip for a negative advantage
    (20.0, -1.0, 10.0, 1),  # dual clip; without it 20
    (20.0, 1.0, -1.28, 1),  # dual clip is for negative advantages only
    (20.0, 0.0, 0.0, 0),
])
def test_clipping(ratio, advantage, loss, cut):
  sums = run([[ratio]], [advantage])
  np.testing.assert_allclose(sums.policy, loss, rtol=1e-5)
  assert sums.clipped == cut
  np.testing.assert_allclose(sums.ratio_max, ratio, rtol=1e-5)
  np.testing.assert_allclose(
      sums.mismatch, abs(np.log(ratio)), rtol=1e-5, atol=1e-7
  )


def test_dual_clip_off():
  np.testing.assert_allclose(
      run([[20.0]], [-1.0], dual_clip=0.0).policy, 20, rtol=1e-5
  )


def test_huge_ratio_has_a_finite_gradient():
  """exp(200) is infinite in float32, and 0 * inf is NaN in the gradient."""
  def objective(logprob, advantage):
    return losses.grpo(
        logprob[None, None], ON * 0.0, ON * -200.0, None, advantage[None], ON,
        CONFIG,
    ).objective

  for advantage in (1.0, -1.0):
    grad = jax.grad(objective)(jnp.float32(0.0), jnp.float32(advantage))
    assert grad == 0


def test_k3():
  """Policy 1/2, reference 1/4: d = log 1/2, so 1/2 + log 2 - 1 = 0.1931.

  The plain difference, log p - log ref, would be 0.6931, and can be negative.
  """
  value = losses.k3(jnp.log(0.5), jnp.log(0.25))
  np.testing.assert_allclose(value, 0.5 + np.log(2) - 1, rtol=1e-5)
  assert losses.k3(jnp.log(0.25), jnp.log(0.5)) > 0


def test_kl_and_entropy_terms():
  """objective = policy + 0.1 * kl - 0.01 * entropy, old and ref both at -1."""
  ratio = 2.0
  sums = run(
      [[ratio]], [0.0], entropies=3.0, ref=-jnp.ones((1, 1)), kl_coef=0.1,
      entropy_coef=0.01,
  )
  kl = 1 / ratio + np.log(ratio) - 1
  np.testing.assert_allclose(sums.kl, kl, rtol=1e-5)
  np.testing.assert_allclose(sums.objective, 0.1 * kl - 0.03, rtol=1e-4)


def test_aggregation():
  """Rows of 1 and 3 tokens on policy, advantages 1 and -1.

  token_mean: (-1 + 3) / 4 = 1/2. sequence_mean: (-1 + 1) / 2 = 0. A row
  without a target counts in neither; as a row it would make the second /3.
  """
  mask = [[1, 0, 0], [1, 1, 1], [0, 0, 0]]
  ones, advantages = np.ones((3, 3)), [1, -1, 5]
  token = run(ones, advantages, mask, aggregation='token_mean')
  assert (float(token.objective), float(token.units)) == (2, 4)
  row = run(ones, advantages, mask, aggregation='sequence_mean')
  assert (float(row.objective), float(row.units)) == (0, 2)
  assert token.tokens == row.tokens == 4


@pytest.mark.parametrize('aggregation', ['token_mean', 'sequence_mean'])
def test_nan_outside_the_mask(aggregation):
  """NaN in filling reaches neither the sums nor the gradient.

  The bug, terms * mask, makes the KL NaN, because 0 * NaN is NaN.
  """
  config = dataclasses.replace(
      CONFIG, kl_coef=0.1, entropy_coef=0.1, aggregation=aggregation
  )
  nan = jnp.array([[-1.0, jnp.nan]])
  mask = jnp.array([[True, False]])

  def objective(logprobs):
    return losses.grpo(
        logprobs, nan, nan, nan, jnp.ones(1), mask, config
    ).objective

  assert jnp.isfinite(objective(nan))
  grad = jax.grad(objective)(nan)
  assert jnp.isfinite(grad[0, 0]) and grad[0, 1] == 0


@pytest.mark.parametrize('aggregation', ['token_mean', 'sequence_mean'])
def test_any_split_gives_the_same_sums(aggregation):
  rng = np.random.default_rng(0)
  ratios, mask = rng.uniform(0.5, 2, (6, 5)), rng.random((6, 5)) < 0.5
  advantages = rng.normal(size=6)
  whole = run(ratios, advantages, mask, aggregation=aggregation)
  for parts in ([0, 6], [0, 1, 6], [0, 2, 4, 6]):
    sums = losses.Sums.zero()
    for a, b in zip(parts, parts[1:]):
      sums = sums.merge(run(
          ratios[a:b], advantages[a:b], mask[a:b], aggregation=aggregation
      ))
    np.testing.assert_allclose(sums, whole, rtol=1e-6, atol=1e-6)


def test_cross_entropy():
  logprobs = jnp.array([[-1.0, -2.0, jnp.nan]])
  mask = jnp.array([[True, True, False]])
  sums = losses.cross_entropy(logprobs, logprobs * 0, mask)
  assert (float(sums.objective), float(sums.units)) == (3, 2)


@pytest.mark.parametrize('name, value', [
    ('clip_low', 1.5), ('clip_high', 0.0), ('dual_clip', 0.5),
    ('kl_coef', -1.0), ('temperature', 0.0), ('aggregation', 'mean'),
])
def test_bad_values(name, value):
  with pytest.raises(ValueError, match=f'GrpoConfig.{name} is {value!r}'):
    dataclasses.replace(CONFIG, **{name: value})
