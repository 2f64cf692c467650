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
  # A wide embedding (which is the head too): a policy far from uniform.
  return graphdef, jax.tree.map(
      lambda x: 3 * x if x.shape == (VOCAB, 16) else x, params
  )


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
  """Norm of the difference over the norm of the first."""
  a, b = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)])
          for t in (a, b))
  return np.linalg.norm(a - b) / np.linalg.norm(a)


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


def changed_filling(batch):
  """The batch with other content wherever nothing counts."""
  def change(b):
    rng = np.random.default_rng(1)
    index = np.arange(b.tokens.shape[-1])
    noise = rng.integers(0, VOCAB, b.tokens.shape)
    return b._replace(
        tokens=np.where(index < b.lengths[..., None], b.tokens, noise),
        targets=np.where(b.mask, b.targets, 3),
        positions=np.where(b.mask, b.positions, 5),
        old_logprobs=np.where(b.mask, b.old_logprobs, np.nan),
    )
  buckets = tuple(change(b) for b in batch.packed.buckets)
  return batch._replace(packed=batch.packed._replace(buckets=buckets))


@pytest.mark.parametrize('aggregation', ['token_mean', 'sequence_mean'])
def test_packing_changes_nothing(aggregation):
  """Filling, amount of padding, buckets, split and order of microbatches.

  A mean of microbatch means, or a denominator that counts filling, is off by
  percents here, not by 1e-6.
  """
  config = dataclasses.replace(CONFIG, aggregation=aggregation)
  base, base_metrics, _ = gradient(packed(), config)
  swapped = tuple(tuple(reversed(group)) for group in reversed(groups()))
  for other in (
      changed_filling(packed()),
      packed(buckets=(32,), microbatch_rows=9),
      packed(buckets=(8, 12, 20), microbatch_rows=1),
      packed(swapped, microbatch_rows=4),
  ):
    grads, metrics, _ = gradient(other, config)
    assert difference(base, grads) < 1e-6
    for name, value in base_metrics.items():
      assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name


def test_rows_that_are_not_sampled_have_no_gradient():
  """Tool results and prompts: what the sampler wrote for them never matters.

  The bug, attention mask as loss mask, trains on every token of the row.
  """
  def poison(row):
    logprobs = np.where(row.loss_mask, row.logprobs, np.nan)
    return dataclasses.replace(row, logprobs=logprobs.astype(np.float32))

  poisoned = tuple(tuple(map(poison, group)) for group in groups())
  base, metrics, _ = gradient(packed())
  grads, _, _ = gradient(packed(poisoned))
  assert difference(base, grads) == 0
  sampled = sum(int(t.loss_mask.sum()) for g in groups() for t in g)
  everything = sum(len(t.tokens) for g in groups() for t in g)
  assert metrics['loss/tokens'] == sampled != everything


def test_mismatch_is_zero_on_the_scored_policy_at_its_temperature():
  """Rows scored at 0.7 have ratio 1 in training at 0.7.

  The bug, training at temperature 1, gives a mismatch of tenths of a nat.
  """
  graphdef, params = policy()
  batch = packed()
  scores = update.make_score_fn(graphdef, 0.7)(params, batch.packed)
  buckets = tuple(
      b._replace(old_logprobs=np.asarray(s))
      for b, s in zip(batch.packed.buckets, scores)
  )
  batch = batch._replace(packed=batch.packed._replace(buckets=buckets))
  _, metrics, _ = gradient(batch)
  assert metrics['loss/mismatch'] < 1e-6
  assert metrics['loss/ratio_max'] == pytest.approx(1, abs=1e-5)
  assert metrics['loss/clip_fraction'] == 0
  _, metrics, _ = gradient(batch, dataclasses.replace(CONFIG, temperature=1.0))
  assert metrics['loss/mismatch'] > 0.05


def test_score_equals_single_rows():
  graphdef, params = policy()
  batch = packed()
  scores = update.make_score_fn(graphdef, 0.7)(params, batch.packed)
  found = packing.unpack(batch.packed, scores)
  rows = [row for group in groups() for row in group]
  assert set(found) == set(range(9))
  for i, row in enumerate(rows):
    log_p = np.asarray(row_logprobs(params, row.tokens))
    where = np.flatnonzero(row.loss_mask)
    np.testing.assert_allclose(
        found[i], log_p[where - 1, row.tokens[where]], rtol=1e-5, atol=1e-5
    )


def test_flat_group_with_and_without_skip():
  """Skipped: no gradient, no denominator. Kept: the entropy term pulls."""
  flat = groups()[2:]
  grads, metrics, _ = gradient(packed(flat))
  assert metrics['loss/grad_norm'] > 0 and metrics['loss/skipped'] == 0
  grads, metrics, state = gradient(packed(flat, skip_flat=True))
  assert metrics['loss/skipped'] == 1 and metrics['loss/tokens'] == 0
  assert not any(np.any(g) for g in jax.tree.leaves(grads))
  # The step advances all the same, else a restart would see the same data.
  assert int(state.step) == 1 and int(state.nonfinite_in_row) == 0
  np.testing.assert_array_equal(state.stats.count, [3, 0, 0, 0, 0])


def test_one_program_for_every_mix_of_lengths(monkeypatch):
  """The model is traced once for each bucket, never again."""
  calls = []
  original = model.hidden
  monkeypatch.setattr(
      model, 'hidden', lambda *a: calls.append(1) or original(*a)
  )
  graphdef, params = policy()
  step = update.make_update_fn(graphdef, KEEP, CONFIG)
  state = update.init_state(copied(params), KEEP, 5)
  mixes = (groups(), groups()[:1], [g[:1] * 3 for g in groups()], ())
  for items in mixes:
    state, _ = step(state, None, packed(items))
    state = update.clear_stats(state)
  assert step._cache_size() == 1
  assert len(calls) == 2  # buckets


def test_statistics_are_fused():
  """Progress 0, 1/4, 1 of the first task: count 3, sum 1.25, squares 1.0625."""
  _, _, state = gradient(packed())
  np.testing.assert_array_equal(state.stats.count, [3, 3, 3, 0, 0])
  np.testing.assert_allclose(state.stats.total, [1.25, 2, 1.5, 0, 0])
  np.testing.assert_allclose(
      state.stats.square, [1.0625, 1.375, 0.75, 0, 0], rtol=1e-6
  )
  assert not np.any(update.clear_stats(state).stats.count)


def test_nonfinite_step_is_skipped_and_counted():
  """A NaN among the sampled log-probabilities; then a healthy batch."""
  graphdef, params = policy()
  optimizer = update.make_optimizer(1e-2, 0, 1.0, 0.0)
  step = update.make_update_fn(graphdef, optimizer, CONFIG)
  state = update.init_state(copied(params), optimizer, 5)
  bad = packed()
  bad.packed.buckets[0].old_logprobs[0, 0, 0] = np.nan
  for count in (1, 2):
    state, metrics = step(state, None, bad)
    assert metrics['loss/skipped'] == 1
    assert (int(state.step), int(state.nonfinite_in_row)) == (count, count)
    np.testing.assert_allclose(state.stats.count[0], 3 * count)
  pairs = zip(jax.tree.leaves(params), jax.tree.leaves(state.params))
  for before, after in pairs:
    np.testing.assert_array_equal(before, after)
  assert not any(np.any(x) for x in jax.tree.leaves(state.opt_state))
  state, metrics = step(state, None, packed())
  assert metrics['loss/skipped'] == 0 and int(state.nonfinite_in_row) == 0
  assert difference(params, state.params) > 1e-4


def test_supervised_equals_naive_rows():
  """-sum of log-probabilities over all sampled tokens / their number."""
  graphdef, params = policy()
  rows = [t for group in groups() for t in group]

  def objective(params):
    total = 0
    for row in rows:
      # row_logprobs divides by 0.7; undo it before normalizing again.
      logits = row_logprobs(params, row.tokens) * 0.7
      log_p = jax.nn.log_softmax(logits)
      index = np.arange(len(row.tokens) - 1), row.tokens[1:]
      total -= (log_p[index] * row.loss_mask[1:]).sum()
    return total / sum(row.loss_mask.sum() for row in rows)

  value, expected = jax.value_and_grad(objective)(params)
  value = float(value)
  step = update.make_supervised_fn(graphdef, KEEP)
  for buckets, size in (((16, 24), 2), ((24,), 4)):
    state = update.init_state(copied(params), KEEP, 1)
    batch = packing.pack_supervised(
        [(row.tokens, row.loss_mask) for row in rows], buckets=buckets,
        microbatch_rows=size, capacity=12,
    )
    state, metrics = step(state, batch)
    assert float(metrics['loss/objective']) == pytest.approx(value, rel=1e-5)
    assert difference(expected, state.opt_state.trace) < 2e-6


def test_optimizer_schedule_and_clipping():
  """Adam's first step has size learning_rate; half of it in warm-up of 2."""
  params = {'w': jnp.ones((2, 2)), 'norm': jnp.ones(2)}
  grads = jax.tree.map(lambda x: 100 * x, params)
  for warmup, decay, step in ((2, 0.0, 0.05), (0, 0.0, 0.1), (0, 0.5, 0.15)):
    optimizer = update.make_optimizer(0.1, warmup, 1.0, decay)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    np.testing.assert_allclose(updates['w'], -step, rtol=1e-4)
    # Norm weights never decay.
    np.testing.assert_allclose(updates['norm'], -step + 0.1 * decay, rtol=1e-4)


def test_missing_reference_is_an_error():
  config = dataclasses.replace(CONFIG, kl_coef=0.1)
  with pytest.raises(ValueError, match='give the reference parameters'):
    gradient(packed(), config)
