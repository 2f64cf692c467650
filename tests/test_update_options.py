"""Options that a large policy needs: chunked logits, bfloat16 activations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax import engine as engine_lib
from rods_jax import types
from rods_jax.device import model
from rods_jax.device import update
from rods_jax.host import packing
from tests import test_update


def shapes(jaxpr) -> set[tuple[int, ...]]:
  """Shapes of all values of a program, inner programs included."""
  found = set()
  for equation in jaxpr.eqns:
    found |= {v.aval.shape for v in equation.outvars}
    for value in equation.params.values():
      for inner in value if isinstance(value, (tuple, list)) else (value,):
        inner = getattr(inner, 'jaxpr', inner)  # a closed one holds its jaxpr
        if hasattr(inner, 'eqns'):
          found |= shapes(inner)
  return found


@pytest.mark.parametrize('chunk, most', [(None, 2 * 24), (4, 2 * 4), (5, 10)])
def test_logits_of_all_targets_never_exist(chunk, most):
  """2 rows of up to 24 targets; `most` of them have logits at a time.

  In the update with a reference and its backward pass, and in the warm start.
  """
  graphdef, params = test_update.policy()
  config = dataclasses.replace(test_update.CONFIG, kl_coef=0.1)
  batch = test_update.packed()
  assert [b.targets.shape[2] for b in batch.packed.buckets] == [8, 24]
  state = update.init_state(params, test_update.KEEP, 5)
  step = update.make_update_fn(
      graphdef, test_update.KEEP, config, chunk=chunk
  )
  warm = update.make_supervised_fn(graphdef, test_update.KEEP, chunk=chunk)
  for traced in (
      jax.make_jaxpr(step)(state, params, batch),
      jax.make_jaxpr(warm)(state, batch.packed),
  ):
    found = shapes(traced.jaxpr) - {(16, test_update.VOCAB)}  # a gradient
    logits = [s for s in found if s and s[-1] == test_update.VOCAB]
    assert max(np.prod(s[:-1]) for s in logits) == most


@pytest.mark.parametrize('chunk', [4, 5])
def test_chunks_change_no_gradient(chunk):
  batch = test_update.packed()
  whole, metrics, _ = test_update.gradient(batch)
  pieces, others, _ = test_update.gradient(batch, chunk=chunk)
  assert test_update.difference(whole, pieces) < 1e-5
  assert metrics == pytest.approx(others, rel=1e-4, abs=1e-6)


def played(config, graphdef, params, mesh):
  """Four sampled rows of two groups, and what the sampler says of them."""
  engine = engine_lib.Engine(
      graphdef, mesh, config, num_slots=8, cache_buckets=(16, 32),
      extend_buckets=(8,), extend_rows=2, max_new=20, end_id=1, pad_id=0,
  )
  engine.reset(params, jax.random.key(1), temperature=0.7)
  prompts = {i: np.arange(5, 10 + i, dtype=np.int32) for i in range(4)}
  for slot in prompts:
    engine.start(slot, slot)
  engine.extend(prompts)
  rows = []
  for slot, out in engine.decode({slot: 20 for slot in prompts}).items():
    assert out.logprobs.dtype == np.float32
    zeros = np.zeros(len(prompts[slot]))
    rows.append(types.Trajectory(
        task_id='t', sample=slot,
        tokens=np.concatenate([prompts[slot], out.tokens]),
        loss_mask=np.concatenate([zeros, np.ones(len(out.tokens))]) > 0,
        logprobs=np.concatenate([zeros, out.logprobs]).astype(np.float32),
        turn_scores=(types.TurnScore(slot % 2 == 0, True, ''),),
        status=types.Status.DONE, policy_version=0, num_rounds=1, num_calls=1,
        num_tool_errors=0, num_parse_errors=0,
    ))
  return rows[:2], rows[2:]


@pytest.mark.parametrize('dtype, most', [('float32', 1e-5), ('bfloat16', 0.02)])
def test_bfloat16_from_rollout_to_update(
    small_config, mesh, dtype, most
):
  """Activations alone are bfloat16, and log-probabilities of both paths agree.

  Without the temperature of 0.7, say, they would be 0.22 apart.
  """
  config = dataclasses.replace(
      small_config, dtype=dtype, scan_layers=True, remat='full'
  )
  graphdef, params = model.create(config, jax.random.key(0))
  groups = played(config, graphdef, params, mesh)
  batch = packing.pack(
      groups, [0, 1], buckets=(32,), microbatch_rows=2, group_size=2
  )
  optimizer = update.make_optimizer(1e-3, 0, 1.0, 0.0)
  step = update.make_update_fn(
      graphdef, optimizer,
      dataclasses.replace(test_update.CONFIG, kl_coef=0.01), chunk=8,
  )
  before = test_update.copied(params)
  state, metrics = step(
      update.init_state(params, optimizer, 2), before, batch
  )
  assert metrics['loss/mismatch'] < most
  assert metrics['loss/skipped'] == 0 and metrics['loss/tokens'] > 20
  floats = [
      x for x in jax.tree.leaves((state.params, state.opt_state, metrics))
      if jnp.issubdtype(x.dtype, jnp.floating)
  ]
  assert {x.dtype for x in floats} == {np.dtype(np.float32)}
  scores = update.make_score_fn(graphdef, 0.7)(state.params, batch.packed)
  assert {x.dtype for x in scores} == {np.dtype(np.float32)}
  moved = test_update.difference(before, state.params)
  assert 0 < moved < 0.1
  hidden = model.hidden(
      graphdef, state.params, jnp.ones((1, 4), int), jnp.array([4])
  )
  assert hidden.dtype == dtype
