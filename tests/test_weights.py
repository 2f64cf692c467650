"""Policies on disk: round trips, and one line for each way to be wrong."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.flax

from rods_jax import build
from rods_jax import errors
from rods_jax import weights
from rods_jax.device import model
from rods_jax.device import rope
from tests import tiny


@pytest.fixture(scope='module')
def policy():
  return build.build_policy(tiny.get_config())


@pytest.fixture
def file(tiny_policy):
  return tiny_policy / 'policy.safetensors'


def load_error(path, policy) -> str:
  with pytest.raises(errors.UserError) as error:
    weights.load(path, weights.abstract_params(policy))
  text = str(error.value)
  assert '\n' not in text and str(path) in text
  return text


def initial_error(config, policy) -> str:
  with pytest.raises(errors.UserError) as error:
    weights.initial_params(config, policy)
  assert '\n' not in str(error.value)
  return str(error.value)


def test_what_is_saved_comes_back(policy, tmp_path):
  """Up to bfloat16: 8 bits of mantissa, relative error 2**-9 at most."""
  params = model.create(policy.config, jax.random.key(3))[1]
  weights.save(tmp_path / 'a.safetensors', params, {'note': 'x'})
  loaded = weights.load(
      tmp_path / 'a.safetensors', weights.abstract_params(policy)
  )
  assert jax.tree.structure(loaded) == jax.tree.structure(params)
  for name, old, new in zip(
      weights.names(params), jax.tree.leaves(params), jax.tree.leaves(loaded)
  ):
    assert new.dtype == jnp.float32, name
    np.testing.assert_allclose(new, old, rtol=2.0**-8, err_msg=name)
  weights.save(tmp_path / 'b.safetensors', loaded, {'note': 'x'})
  one, two = (tmp_path / f'{n}.safetensors' for n in 'ab')
  assert one.read_bytes() == two.read_bytes()
  assert not list(tmp_path.glob('*.partial'))


def test_names_are_those_of_the_modules(policy):
  names = weights.names(weights.abstract_params(policy))
  assert len(set(names)) == len(names)
  assert {'embedding', 'head', 'blocks.1.attention.q'} <= set(names)


def changed(file, path, change):
  tensors = safetensors.flax.load_file(str(file))
  change(tensors)
  safetensors.flax.save_file(tensors, str(path))
  return path


def test_a_missing_tensor_is_named(file, policy, tmp_path):
  path = changed(file, tmp_path / 'p.safetensors', lambda t: t.pop('head'))
  assert 'lacks tensor head' in load_error(path, policy)


def test_an_unknown_tensor_is_named(file, policy, tmp_path):
  path = changed(
      file, tmp_path / 'p.safetensors',
      lambda t: t.update(bias=jnp.zeros(3, jnp.bfloat16)),
  )
  assert 'unknown tensor bias' in load_error(path, policy)


def test_another_shape_is_named(file, policy, tmp_path):
  path = changed(
      file, tmp_path / 'p.safetensors',
      lambda t: t.update(final_norm=jnp.zeros(5, jnp.bfloat16)),
  )
  text = load_error(path, policy)
  assert 'final_norm' in text and '(5,)' in text and '(32,)' in text


@pytest.mark.parametrize('size', [0, 4, 100, 5000])
def test_a_truncated_file_is_one_line(size, file, policy, tmp_path):
  path = tmp_path / 'p.safetensors'
  path.write_bytes(file.read_bytes()[:size])
  load_error(path, policy)


def test_random_parameters_follow_the_seed(policy):
  config = tiny.get_config()
  first = weights.initial_params(config, policy)
  again = weights.initial_params(config, policy)
  assert tiny.leaves(first) == tiny.leaves(again)
  with config.unlocked():
    config.rng_seed = 1
  other = weights.initial_params(config, policy)
  assert tiny.leaves(first) != tiny.leaves(other)


def test_rotary_scaling_belongs_to_the_origin_only_where_there_is_some(policy):
  """Files that were written before there was any must still be accepted."""

  def shape(scaling):
    config = dataclasses.replace(policy.config, rope_scaling=scaling)
    changed = dataclasses.replace(policy, config=config)
    text = weights.origin(tiny.get_config(), changed)['origin']
    return json.loads(text)['model']

  assert 'rope_scaling' not in shape(None)
  scaled = shape(rope.Llama3Scaling(8.0, 1.0, 4.0, 8192))
  assert scaled['rope_scaling']['factor'] == 8.0


@pytest.mark.parametrize('given', ['.', 'checkpoints', 'checkpoints/{}'])
def test_a_run_starts_from_another_runs_checkpoint(
    given, tiny_run, policy, tmp_path
):
  """Its folder, that of its checkpoints, or one of these may be given."""
  outcome, workdir = tiny_run
  config = tiny.get_config()
  with config.unlocked():
    step = outcome.position.step
    config.model.init_from = str(workdir / given.format(step))
  params = weights.initial_params(config, policy)
  for name, leaf in zip(weights.names(params), jax.tree.leaves(params)):
    np.testing.assert_array_equal(leaf, outcome.arrays[f'params.{name}'])


@pytest.mark.parametrize('name', ['nowhere', 'nowhere.safetensors'])
def test_a_path_that_is_not_there_is_one_line(name, policy, tmp_path):
  config = tiny.get_config()
  with config.unlocked():
    config.model.init_from = str(tmp_path / name)
  assert str(tmp_path / name) in initial_error(config, policy)


@pytest.mark.parametrize(
    'field, value, message',
    [
        ('lora_rank', 4, 'trained adapters; its checkpoints hold no whole'),
        ('scan_layers', True, 'set --config.model.scan_layers too'),
    ],
)
def test_a_run_with_other_arrays_is_one_line(
    field, value, message, policy, tmp_path
):
  config = tiny.get_config()
  saved = config.to_dict()
  saved['model'][field] = value
  (tmp_path / 'config.json').write_text(json.dumps(saved))
  for given in ('.', 'checkpoints', 'checkpoints/3'):
    with config.unlocked():
      config.model.init_from = str(tmp_path / given)
    text = initial_error(config, policy)
    assert message in text and f'the run {tmp_path} ' in text


def test_a_checkpoint_of_another_model_is_one_line(tiny_run, tmp_path):
  config = tiny.get_config()
  with config.unlocked():
    config.model.init_from = str(tiny_run[1])
    config.model.mlp_dim = 48
  text = initial_error(config, build.build_policy(config))
  assert 'mlp' in text and '48' in text
