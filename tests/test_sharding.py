"""Tests of sharding.py: errors name the fault; 8 devices equal one."""

import os
import subprocess
import sys
import types

import jax
from jax.sharding import PartitionSpec
import numpy as np
import pytest

from rods_jax import engine as engine_lib
from rods_jax import sharding
from rods_jax.device import model


def _mesh(data, fsdp, tensor):
  """Only the sizes: what `spec` needs of a mesh."""
  sizes = dict(data=data, fsdp=fsdp, tensor=tensor)
  return types.SimpleNamespace(shape=sizes)


def test_make_mesh_fills_in_what_is_left():
  count = len(jax.devices())
  assert dict(sharding.make_mesh(-1, 1, 1).shape) == dict(
      data=count, fsdp=1, tensor=1
  )
  assert dict(sharding.make_mesh(1, 1, -1).shape)['tensor'] == count


@pytest.mark.parametrize(
    'sizes, message',
    [
        ((3, 5, 7), 'does not multiply to the'),
        ((-1, 5, 7), 'does not multiply to the'),
        ((-1, -1, 1), 'one of them may be -1'),
        ((0, 1, 1), 'must be at least 1'),
        ((-2, 1, 1), 'must be at least 1'),
    ],
)
def test_mesh_errors_are_one_clear_line(sizes, message):
  with pytest.raises(ValueError, match=message) as error:
    sharding.make_mesh(*sizes)
  assert '\n' not in str(error.value)


def test_spec_follows_the_table():
  mesh = _mesh(2, 2, 2)
  got = sharding.spec(('vocab', 'embed'), (96, 32), mesh)
  assert got == PartitionSpec('tensor', 'fsdp')
  got = sharding.spec(('batch', None), (8, 5), mesh)
  assert got == PartitionSpec(('data', 'fsdp'), None)


@pytest.mark.parametrize(
    'axes, shape, message',
    [
        (('heads', 'mlp'), (4, 4), "'heads' and 'mlp'.*'tensor'"),
        (('batch', 'embed'), (4, 4), "'batch' and 'embed'.*'fsdp'"),
        (('kv_heads',), (3,), 'kv_heads has size 3.* = 2 do not divide'),
        (('batch',), (6,), r'batch has size 6.*data\*fsdp = 4'),
        (('hedas',), (4,), "'hedas' is not in the table"),
        (('heads',), (4, 4), 'do not name the shape'),
    ],
)
def test_what_does_not_fit_is_an_error(axes, shape, message):
  with pytest.raises(ValueError, match=message):
    sharding.spec(axes, shape, _mesh(2, 2, 2))


def compute(mesh) -> dict[str, np.ndarray]:
  """Training path and greedy rollout of one small model on a mesh."""
  config = model.ModelConfig(
      vocab_size=96, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2,
      head_dim=8, mlp_dim=48,
  )
  graphdef, params = model.create(config, jax.random.key(0))
  params = jax.device_put(params, sharding.param_shardings(params, mesh))
  rng = np.random.default_rng(0)
  tokens = rng.integers(2, 96, (8, 24)).astype(np.int32)
  lengths = rng.integers(1, 24, 8).astype(np.int32)
  batch = (
      jax.device_put(tokens, sharding.named(('batch', None), (8, 24), mesh)),
      jax.device_put(lengths, sharding.named(('batch',), (8,), mesh)),
  )
  hidden = jax.jit(lambda p, t, n: model.hidden(graphdef, p, t, n))(
      params, *batch
  )
  logits = jax.jit(lambda p, h: model.logits(graphdef, p, h))(params, hidden)
  engine = engine_lib.Engine(
      graphdef, mesh, config, num_slots=8, cache_buckets=(16, 48),
      extend_buckets=(8,), extend_rows=4, max_new=16, end_id=1, pad_id=0,
  )
  engine.reset(params, jax.random.key(1), temperature=1.0, greedy=True)
  for slot in range(8):
    engine.start(slot, slot)
  engine.extend({slot: tokens[slot, : lengths[slot]] for slot in range(6)})
  engine.copy(0, [6, 7], int(lengths[0]))
  out = engine.decode({slot: 12 for slot in range(8)})
  valid = np.arange(24) < lengths[:, None]
  return {
      'hidden': np.asarray(hidden)[valid],
      'logits': np.asarray(logits)[valid],
      'tokens': np.concatenate([out[slot].tokens for slot in range(8)]),
      'logprobs': np.concatenate([out[slot].logprobs for slot in range(8)]),
  }


def test_eight_devices_compute_what_one_computes(tmp_path):
  flag = '--xla_force_host_platform_device_count=8'
  code = (
      'import sys, jax, numpy as np\n'
      'from rods_jax import sharding\n'
      'from tests import conftest, test_sharding\n'
      'assert len(jax.devices()) == 8\n'
      'mesh = sharding.make_mesh(2, -1, 2)\n'
      'np.savez(sys.argv[1], **test_sharding.compute(mesh))\n'
  )
  path = tmp_path / 'eight.npz'
  subprocess.run(
      [sys.executable, '-c', code, str(path)],
      env=os.environ | {'XLA_FLAGS': flag, 'JAX_PLATFORMS': 'cpu'},
      cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
      check=True, timeout=300,
  )
  one = compute(sharding.make_mesh(1, 1, 1, jax.devices()[:1]))
  with np.load(path) as eight:
    np.testing.assert_array_equal(one['tokens'], eight['tokens'])
    for name in ('hidden', 'logits', 'logprobs'):
      np.testing.assert_allclose(one[name], eight[name], atol=1e-5)
