"""Every mesh over 1, 2, 4 and 8 devices computes what one device computes.

One child process with 8 forced devices makes meshes of the first n of them;
the tests read off how far each is from the mesh of one device. A mesh takes
eight seconds to compile for, so by default there are only some; all 20 with

  python -m pytest tests/test_meshes.py --all-meshes
"""

import dataclasses
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

from rods_jax import checkpoint
from rods_jax import engine as engine_lib
from rods_jax import sharding
from rods_jax.device import lora
from rods_jax.device import model
from rods_jax.device import update
from tests import test_update

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# The smallest sizes that 8 devices divide, on any axis.
CONFIG = model.ModelConfig(
    vocab_size=32, d_model=16, num_layers=1, num_heads=16, num_kv_heads=8,
    head_dim=2, mlp_dim=16,
)
SHAPES = [
    shape
    for n in (1, 2, 4, 8)
    for shape in itertools.product((1, 2, 4, 8), repeat=3)
    if math.prod(shape) == n
]
# Heads alone, and all three axes; the others are cheap to ask for.
SOME = [(1, 1, 2), (2, 2, 2)]
LORA = dataclasses.replace(CONFIG, lora_rank=2)


def make_mesh(shape) -> jax.sharding.Mesh:
  return sharding.make_mesh(*shape, jax.devices()[: math.prod(shape)])


def initial_state(config, mesh, optimizer):
  """(state, frozen base or None) on a mesh."""
  params = model.create(config, jax.random.key(0))[1]
  if config.lora_rank:  # B starts as zeros: A would have no gradient
    params = jax.tree.map(lambda x: x + 0.05, params)
  params = jax.device_put(params, sharding.param_shardings(params, mesh))
  base = None
  if config.lora_rank:
    params, base = lora.split(params)
  return update.init_state(params, optimizer, 3, mesh), base


def train(config, mesh) -> dict[str, np.ndarray]:
  """Loss, gradient and statistics of one update."""
  state, base = initial_state(config, mesh, test_update.KEEP)
  step = update.make_update_fn(
      model.definition(config), test_update.KEEP, test_update.CONFIG, chunk=4,
      base_graphdef=model.definition(config.base) if base else None,
      state_shardings=jax.tree.map(lambda x: x.sharding, state), mesh=mesh,
  )
  batch = test_update.packed(buckets=(24,), microbatch_rows=8)
  state, metrics = step(state, base, batch)
  leaves = jax.tree.leaves((metrics, state.opt_state, state.stats))
  return {f'update {i}': np.asarray(x) for i, x in enumerate(leaves)}


def play(config, mesh) -> dict[str, np.ndarray]:
  """Greedy rows over two segments of the cache, with a shared prompt."""
  graphdef, params = model.create(config, jax.random.key(0))
  engine = engine_lib.Engine(
      graphdef, mesh, config, num_slots=8, cache_buckets=(8, 24),
      extend_buckets=(8,), extend_rows=2, max_new=8, end_id=1, pad_id=0,
  )
  engine.reset(params, jax.random.key(1), temperature=1.0, greedy=True)
  for slot in range(8):
    engine.start(slot, slot)
  row = lambda n: np.arange(2, 2 + n, dtype=np.int32)
  engine.extend({slot: row(3 + 2 * slot) for slot in range(6)})
  engine.copy(5, [6, 7], 11)
  found = [engine.decode({slot: 3 + slot % 3 for slot in range(8)})]
  engine.extend({slot: row(2) for slot in (1, 7)})
  found.append(engine.decode({slot: 4 for slot in range(1, 8)}))
  rows = [part[slot] for part in found for slot in sorted(part)]
  return {
      'tokens': np.concatenate([r.tokens for r in rows]),
      'logprobs': np.concatenate([r.logprobs for r in rows]),
  }


def distances(one, other) -> dict[str, float]:
  """Name -> largest difference, over the largest value."""
  assert one.keys() == other.keys()
  return {
      name: float(np.abs(value - other[name]).max() / np.abs(value).max())
      if value.shape == other[name].shape and np.abs(value).max() else
      float(value.shape != other[name].shape or np.abs(other[name]).max())
      for name, value in one.items()
  }


def restored_elsewhere(folder, shape) -> list[tuple[int, ...]]:
  """Saves on (2, 2, 2) and restores on another mesh, bit by bit.

  Returns:
    The shapes of a matrix's parts there.
  """
  optimizer = optax.adam(0.1)
  state, _ = initial_state(CONFIG, make_mesh((2, 2, 2)), optimizer)
  wanted, _ = initial_state(CONFIG, make_mesh(shape), optimizer)
  with checkpoint.Checkpointer(folder) as saver:
    saver.save(1, state, {})
    found = saver.restore(jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        wanted,
    )).arrays
  for a, b, c in zip(*map(jax.tree.leaves, (state, found, wanted))):
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert b.sharding == c.sharding
  embedding = found.params.embedding.get_value()
  return [shard.data.shape for shard in embedding.addressable_shards]


def compare(folder, shapes) -> dict:
  """All that the tests below look at, in a process with 8 devices."""
  assert len(jax.devices()) == 8
  first = (1, 1, 1)
  ones = [f(CONFIG, make_mesh(first)) for f in (train, play)]
  found = {}
  for shape in shapes:
    mesh = make_mesh(shape)
    found[str(shape)] = distances(ones[0], train(CONFIG, mesh)) | distances(
        ones[1], play(CONFIG, mesh)
    )
  adapted = (train(LORA, make_mesh(shape)) for shape in (first, (2, 2, 2)))
  return {
      'meshes': found,
      'lora': distances(*adapted),
      'restored': {
          str(shape): restored_elsewhere(folder / str(shape), shape)
          for shape in ((1, 1, 1), (1, 2, 1))
      },
      'tokens': len(ones[1]['tokens']),
  }


def chosen(config) -> list[tuple[int, int, int]]:
  return SHAPES[1:] if config.getoption('--all-meshes') else SOME


def pytest_generate_tests(metafunc):
  if 'shape' in metafunc.fixturenames:
    metafunc.parametrize('shape', chosen(metafunc.config), ids=str)


@pytest.fixture(scope='module')
def found(request, tmp_path_factory):
  code = (
      'import json, pathlib, sys\n'
      'from tests import conftest, test_meshes\n'
      'folder, shapes = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])\n'
      'found = test_meshes.compare(folder, [tuple(s) for s in shapes])\n'
      'print(json.dumps(found))\n'
  )
  flag = '--xla_force_host_platform_device_count=8'
  run = subprocess.run(
      [sys.executable, '-c', code, str(tmp_path_factory.mktemp('meshes')),
       json.dumps(chosen(request.config))],
      env=os.environ | {'XLA_FLAGS': flag, 'JAX_PLATFORMS': 'cpu'},
      cwd=_ROOT, timeout=1200, capture_output=True, text=True,
  )
  assert run.returncode == 0, run.stderr
  return json.loads(run.stdout.splitlines()[-1])


def test_every_shape_is_there():
  """1 + 3 + 6 + 10: ways to write 1, 2, 4 and 8 as products of three."""
  assert len(SHAPES) == 20 and len(set(SHAPES)) == 20
  assert SHAPES[0] == (1, 1, 1) and set(SOME) < set(SHAPES)


@pytest.mark.slow
def test_a_mesh_changes_nothing(found, shape):
  """Float32 sums of some hundred terms in another order."""
  distance = found['meshes'][str(shape)]
  assert len(distance) > 20 and found['tokens'] > 30
  assert distance.pop('tokens') == 0
  assert max(distance.values()) < 2e-5, distance


def test_adapters_on_eight_devices(found):
  assert len(found['lora']) > 20
  assert max(found['lora'].values()) < 2e-5, found['lora']


def test_a_checkpoint_of_eight_devices_restores_on_one_and_two(found):
  """vocab=32 by embed=16, of which fsdp=2 keeps halves of 16."""
  assert found['restored'] == {
      '(1, 1, 1)': [[32, 16]], '(1, 2, 1)': [[32, 8], [32, 8]],
  }
