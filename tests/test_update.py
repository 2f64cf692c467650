"""The update as a whole: against a naive reference, and its invariances."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rods_jax import types
from rods_jax.device import losses
from rods_jax.device import model
from rods_jax.device import update
from rods_jax.host import packing

VOCAB = 17
CONFIG = losses.GrpoConfig(
    clip_low=0.2, clip_high=0.28, dual_clip=10.0, kl_coef=0.0,
    entropy_coef=0.01, aggregation='token_mean', normalize_advantage=True,
    temperature=0.7,
)
# An optimizer whose state afterwards is the gradient that it was given.
KEEP = optax.trace(decay=0.0)


@functools.cache
def policy(seed=0):
  config = model.ModelConfig(
      vocab_size=VOCAB, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1,
      head_dim=8, mlp_dim=24,
  )
  graphdef, params = model.create(config, jax.random.key(seed))
  # Wide weights, so that the policy is far from uniform.
  return graphdef, jax.tree.map(lambda x: 3 * x, params)


def trajectory(rng, length, score, status=types.Status.DONE):
  """A random row of `length` tokens with progress score / 4."""
  mask = rng.random(length) < 0.4
  mask[0], mask[-1] = False, True
  logprobs = np.where(mask, rng.normal(-2.5, 0.5, length), 0)
  return types.Trajectory(
      task_id='t', sample=0,
      tokens=rng.integers(0, VOCAB, length).astype(np.int32),
      loss_mask=mask, logprobs=logprobs.astype(np.float32),
      turn_scores=tuple(
          types.TurnScore(i < score, True, '' if i < score else 'wrong')
          for i in range(4)
      ),
      status=status, policy_version=0, num_rounds=1, num_calls=1,
      num_tool_errors=0, num_parse_errors=0,
  )


@functools.cache
def groups():
  rng = np.random.default_rng(0)
  lengths = ((5, 9, 14), (9, 9, 20), (5, 14, 9))
  scores = ((0, 1, 4), (2, 3, 3), (2, 2, 2))  # the last group is flat
  return tuple(
      tuple(trajectory(rng, n, s) for n, s in zip(*pair))
      for pair in zip(lengths, scores)
  )


def packed(items=None, **changes):
  options = dict(
      buckets=(16, 24), microbatch_rows=2, group_size=3, num_groups=3
  )
  items = groups() if items is None else items
  return packing.pack(items, list(range(len(items))), **(options | changes))


def gradient(batch, config=CONFIG, ref=None, **options):
  """(gradient, metrics, new state) of one call."""
  graphdef, params = policy()
  step = update.make_update_fn(graphdef, KEEP, config, **options)
  state = update.init_state(copied(params), KEEP, 5)
  state, metrics = step(state, ref, batch)
  metrics = {k: float(v) for k, v in metrics.items()}
  return state.opt_state.trace, metrics, state


def copied(tree):
  """The update donates its state; the policy is used again."""
  return jax.tree.map(jnp.copy, tree)


def difference(a, b):
  """Largest difference over the largest entry."""
  a, b = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)])
          for t in (a, b))
  return np.abs(a - b).max() / np.abs(a).max()


@jax.jit
def row_logprobs(params, tokens):
  """log-softmax [T - 1, V] of one row without padding, at CONFIG's 0.7."""
  graphdef, _ = policy()
  length = jnp.array([tokens.shape[0]])
  hidden = model.hidden(graphdef, params, tokens[None], length)
  logits = model.logits(graphdef, params, hidden)[0, :-1]
  return jax.nn.log_softmax(logits / 0.7)


def row_terms(params, ref, row, advantage, config):
  """(sum over the sampled tokens, their number) of one row."""
  mask, old = row.loss_mask[1:], row.logprobs[1:]
  index = np.arange(len(mask)), row.tokens[1:]
  log_p = row_logprobs(params, row.tokens)
  chosen = log_p[index]
  ratio = jnp.exp(chosen - old)
  loss = jnp.maximum(
      -advantage * ratio, -advantage * jnp.clip(ratio, 0.8, 1.28)
  )
  if advantage < 0:
    loss = jnp.minimum(loss, -advantage * config.dual_clip)
  loss += config.entropy_coef * (jnp.exp(log_p) * log_p).sum(-1)
  if ref is not None:
    d = row_logprobs(ref, row.tokens)[index] - chosen
    loss += config.kl_coef * (jnp.exp(d) - d - 1)
  return (loss * mask).sum(), mask.sum()


def naive(config, ref=None):
  """The same gradient row by row: no padding, no packing, no accumulation."""

  def objective(params):
    rows = []
    for group in groups():
      rewards = np.array([t.progress for t in group])
      advantages = rewards - rewards.mean()
      if config.normalize_advantage and rewards.std() > 0:
        advantages = advantages / rewards.std()
      rows += [
          row_terms(params, ref, row, a, config)
          for row, a in zip(group, advantages)
      ]
    if config.aggregation == 'token_mean':
      return sum(total for total, _ in rows) / sum(count for _, count in rows)
    return sum(total / count for total, count in rows) / len(rows)

  value, grads = jax.value_and_grad(objective)(policy()[1])
  return float(value), grads


@pytest.mark.parametrize('aggregation', ['token_mean', 'sequence_mean'])
@pytest.mark.parametrize('kl_coef', [0.0, 0.1])
def test_update_equals_naive_rows(aggregation, kl_coef):
  config = dataclasses.replace(
      CONFIG, aggregation=aggregation, kl_coef=kl_coef,
      normalize_advantage=kl_coef == 0,
  )
  ref = policy(1)[1] if kl_coef else None
  value, expected = naive(config, ref)
  grads, metrics, state = gradient(packed(), config, ref)
  assert metrics['loss/objective'] == pytest.approx(value, rel=1e-5)
  assert difference(expected, grads) < 2e-6
  assert metrics['loss/grad_norm'] == pytest.approx(
      float(optax.tree.norm(expected)), rel=1e-5
  )
  assert (metrics['loss/kl'] > 0) == (kl_coef > 0)
  assert int(state.step) == 1
