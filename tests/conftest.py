"""Shared fixtures: a small model, finished runs, a compilation cache.

The runs are made once for several test files; nobody changes them.
"""

import os
import tempfile

import jax
import pytest

from rods_jax import sharding
from rods_jax.device import model

jax.config.update(
    'jax_compilation_cache_dir',
    os.environ.get('JAX_COMPILATION_CACHE_DIR')
    or os.path.join(tempfile.gettempdir(), 'rods_jax_test_cache'),
)
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


def pytest_addoption(parser):
  parser.addoption(
      '--all-meshes', action='store_true',
      help='test_meshes.py: all 20 meshes, not each axis and all together.',
  )


@pytest.fixture(scope='session')
def small_config() -> model.ModelConfig:
  """Two layers, four heads on two kv heads, 96 tokens, all of the paths."""
  return model.ModelConfig(
      vocab_size=96,
      d_model=32,
      num_layers=2,
      num_heads=4,
      num_kv_heads=2,
      head_dim=8,
      mlp_dim=48,
      previous_token=True,
  )


@pytest.fixture(scope='session')
def small_model(small_config):
  """(graphdef, params); scaled up, so that logits are clearly apart."""
  graphdef, params = model.create(small_config, jax.random.key(0))
  return graphdef, jax.tree.map(lambda x: 3 * x, params)


@pytest.fixture(scope='session')
def mesh():
  """A mesh over however many devices the tests run on, cut along data."""
  return sharding.make_mesh(-1, 1, 1)


@pytest.fixture(scope='session')
def tiny_policy(tmp_path_factory):
  """Folder of the policy that tiny runs start from."""
  from tests import tiny  # imports all of rods_jax: only where it is used

  folder = tmp_path_factory.mktemp('policy')
  tiny.quiet_policy(folder)
  return folder


@pytest.fixture(scope='session')
def tiny_run(tiny_policy, tmp_path_factory):
  """(outcome, workdir) of a run of four epochs that never stopped."""
  from tests import tiny

  workdir = tmp_path_factory.mktemp('four_epochs')
  return tiny.sit(tiny.run_config(tiny_policy), workdir), workdir


@pytest.fixture(scope='session')
def tiny_half_run(tiny_policy, tmp_path_factory):
  """(outcome, workdir) of the same run with two epochs."""
  from tests import tiny

  workdir = tmp_path_factory.mktemp('two_epochs')
  config = tiny.run_config(tiny_policy, train__num_epochs=2)
  return tiny.sit(config, workdir), workdir
