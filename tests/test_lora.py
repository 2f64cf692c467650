"""Adapters train, the base does not, and the base is the reference."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax import errors
from rods_jax import huggingface
from rods_jax import run as run_lib
from rods_jax import sharding
from rods_jax import weights
from rods_jax.device import lora
from rods_jax.device import model
from rods_jax.device import update
from tests import families
from tests import test_update
from tests import tiny

RANK, ALPHA = 3, 6.0


def adapted(config: model.ModelConfig, **fields) -> model.ModelConfig:
  return dataclasses.replace(
      config, lora_rank=RANK, lora_alpha=ALPHA, **fields
  )


def moved(params):
  """Adapters as training leaves them: A and B away from their start."""
  adapters, base = lora.split(params)
  leaves, tree = jax.tree.flatten(adapters)
  keys = jax.random.split(jax.random.key(3), len(leaves))
  leaves = [
      x + 0.1 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys)
  ]
  return lora.join(jax.tree.unflatten(tree, leaves), base)


@pytest.mark.parametrize('scan', [False, True])
def test_the_base_has_the_same_draws(small_config, scan):
  """Rank 0 is the decoder as it was; a rank changes none of its parameters."""
  config = dataclasses.replace(small_config, scan_layers=scan)
  key = jax.random.key(0)
  graphdef, plain = model.create(config, key)
  adapters, base = lora.split(model.create(adapted(config), key)[1])
  assert tiny.leaves(base) == tiny.leaves(plain)
  assert jax.tree.structure(base) == jax.tree.structure(plain)
  assert adapted(config).base == config and not lora.split(plain)[0]
  assert model.definition(adapted(config).base) == graphdef
  # 7 matrices: (32 + 4 * 8) + 2 (32 + 2 * 8) + (32 + 32) + 3 (32 + 48) = 464,
  # times rank 3, times 2 layers.
  assert sum(x.size for x in jax.tree.leaves(adapters)) == 464 * 3 * 2


def test_axes_of_adapters_are_those_of_their_matrix(small_config):
  params = model.create(adapted(small_config), jax.random.key(0))[1]
  block = model.logical_axes(params)['blocks'][1]
  names = lambda part, name: tuple(
      block[part][f'{name}_adapter'][x].get_value() for x in 'ab'
  )
  assert names('attention', 'q') == (('embed', 'rank'), ('rank', 'heads', None))
  assert names('attention', 'o') == (('heads', None, 'rank'), ('rank', 'embed'))
  assert names('mlp', 'down') == (('mlp', 'rank'), ('rank', 'embed'))
  only = adapted(small_config, lora_targets=('q', 'v'))
  paths = nnx.to_flat_state(
      lora.split(model.create(only, jax.random.key(0))[1])[0]
  )
  assert {path[3] for path, _ in paths} == {'q_adapter', 'v_adapter'}


TOKENS = jnp.array([[5, 6, 7, 8, 9, 5, 6], [40, 41, 42, 0, 0, 0, 0]])


def logits(config, params):
  return families.logits(config, params, TOKENS, jnp.array([7, 3]))


def test_starts_as_the_base_exactly(small_config):
  """To the bit, operation by operation; a compiled program fuses others."""
  config = adapted(small_config, num_layers=1)
  params = model.create(config, jax.random.key(0))[1]
  found = [
      model.hidden(model.definition(c), p, TOKENS, jnp.array([7, 3]))
      for c, p in ((config, params), (config.base, lora.split(params)[1]))
  ]
  np.testing.assert_array_equal(*found)


@pytest.mark.parametrize('scan', [False, True])
def test_exports_the_sum(small_config, scan):
  """Trained adapters move logits by units; the merged matrices do the same."""
  config = adapted(small_config, scan_layers=scan)
  params = model.create(config, jax.random.key(0))[1]
  base = lora.split(params)[1]
  before = logits(config.base, base)
  np.testing.assert_allclose(
      logits(config, params), before, rtol=0, atol=2e-6
  )
  params = moved(params)
  after = logits(config, params)
  assert np.abs(after - before).max() > 0.1
  merged = nnx.from_flat_state(lora.merged(params, config))
  np.testing.assert_allclose(
      logits(config.base, merged), after, rtol=0, atol=1e-5
  )


def test_exported_folder_gives_the_same_logits(mesh, tmp_path):
  made = families.reference('qwen3', True)
  folder = families.save(made, tmp_path / 'start')
  config, base = families.load(folder, mesh)
  config = adapted(config)
  params = moved(lora.join(
      lora.split(model.create(config, jax.random.key(0))[1])[0], base
  ))
  huggingface.export(tmp_path / 'out', params, config, folder)
  plain, merged = families.load(tmp_path / 'out', mesh)
  assert plain == config.base
  wanted = logits(config, params)
  assert np.abs(wanted - logits(plain, base)).max() > 0.1
  np.testing.assert_allclose(
      logits(plain, merged), wanted, rtol=1e-5, atol=1e-5
  )


def test_only_adapters_are_trained():
  """The first step moves every B and no A: an A's gradient has B as a factor.

  The KL to the base is 0 at the start and positive after the step.
  """
  config = adapted(model.ModelConfig(
      vocab_size=test_update.VOCAB, d_model=16, num_layers=1, num_heads=2,
      num_kv_heads=1, head_dim=8, mlp_dim=24,
  ))
  graphdef, params = model.create(config, jax.random.key(0))
  adapters, base = lora.split(params)
  optimizer = update.make_optimizer(1e-2, 0, 1.0, 0.0)
  step = update.make_update_fn(
      graphdef, optimizer,
      dataclasses.replace(test_update.CONFIG, kl_coef=0.1),
      base_graphdef=model.definition(config.base),
  )
  state = update.init_state(test_update.copied(adapters), optimizer, 5)
  moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
  assert len(moments) == 2 * len(jax.tree.leaves(adapters))
  kept = tiny.leaves(base)
  state, first = step(state, base, test_update.packed())
  flat = dict(nnx.to_flat_state(state.params))
  for path, variable in nnx.to_flat_state(adapters):
    changed = np.any(variable.get_value() != flat[path].get_value())
    assert changed == (path[-1] == 'b'), path
  state, second = step(state, base, test_update.packed())
  assert tiny.leaves(base) == kept
  assert abs(first['loss/kl']) < 1e-7 < second['loss/kl']
  with pytest.raises(ValueError, match='reference'):
    step(state, None, test_update.packed())


def test_stop_and_resume_leave_no_trace(tiny_policy, tmp_path, monkeypatch):
  """Checkpoints have adapters alone; the base comes from model.init_from.

  Another file there is noticed, by training and by evaluation.
  """
  source = tmp_path / 'source'
  source.mkdir()
  file = source / 'policy.safetensors'
  file.write_bytes((tiny_policy / 'policy.safetensors').read_bytes())
  config = tiny.run_config(
      source, model__lora_rank=2, train__num_epochs=2, grpo__learning_rate=0.01
  )
  digests = []
  digest = weights.digest
  monkeypatch.setattr(
      weights, 'digest', lambda x: digests.append(0) or digest(x)
  )
  whole = tiny.sit(config, tmp_path / 'whole')
  assert len(digests) == 1  # of the frozen base; once was at each checkpoint
  assert not tiny.sit(config, tmp_path / 'parts', stop_step=2).complete
  tiny.assert_same(whole, tiny.sit(config, tmp_path / 'parts'))
  names = [n for n in whole.arrays if n.startswith('params')]
  assert names and all('_adapter' in name for name in names)
  assert max(np.abs(whole.arrays[n]).max() for n in names if n[-1] == 'b') > 0
  policy = run_lib.build.build_policy(config)
  step, params = run_lib.latest_params(config, policy, tmp_path / 'whole')
  assert step == whole.position.step
  for name, value in zip(weights.names(params), jax.tree.leaves(params)):
    if '_adapter' in name:
      np.testing.assert_array_equal(value, whole.arrays[f'params.{name}'])
  base = lora.split(params)[1]
  weights.save(file, jax.tree.map(lambda x: 2 * x, base), {})
  for use in (
      lambda: tiny.sit(config, tmp_path / 'whole'),
      lambda: run_lib.latest_params(config, policy, tmp_path / 'whole'),
  ):
    with pytest.raises(errors.UserError, match='holds other parameters'):
      use()


def test_digest_sees_values_and_places(small_model, mesh):
  params = small_model[1]
  swapped = jax.tree.map(lambda x: x[::-1], params)
  placed = jax.device_put(params, sharding.param_shardings(params, mesh))
  assert weights.digest(params) == weights.digest(placed)
  assert weights.digest(params) != weights.digest(swapped)
