"""The update on 8 forced host devices equals the update on one."""

import os
import subprocess
import sys

import jax
import numpy as np
import optax

from rods_jax import sharding
from rods_jax.device import model
from rods_jax.device import update
from tests import test_update

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def compute(mesh) -> dict[str, np.ndarray]:
  """Parameters and metrics after two steps; the second with cleared stats."""
  config = model.ModelConfig(
      vocab_size=test_update.VOCAB, d_model=16, num_layers=1, num_heads=2,
      num_kv_heads=2, head_dim=8, mlp_dim=24,
  )
  graphdef, params = model.create(config, jax.random.key(0))
  params = jax.device_put(
      params, sharding.param_shardings(params, mesh)
  )
  optimizer = optax.sgd(1.0)
  state = update.init_state(params, optimizer, 5, mesh)
  shardings = jax.tree.map(lambda x: x.sharding, state)
  step = update.make_update_fn(
      graphdef, optimizer, test_update.CONFIG, state_shardings=shardings,
      mesh=mesh,
  )
  batch = test_update.packed(microbatch_rows=8)
  for _ in range(2):
    state, metrics = step(update.clear_stats(state), None, batch)
    assert jax.tree.map(lambda x: x.sharding, state) == shardings
  assert step._cache_size() == 1
  leaves = jax.tree.leaves((state.params, metrics, state.stats))
  return {str(i): np.asarray(x) for i, x in enumerate(leaves)}


def test_eight_devices_train_what_one_trains(tmp_path):
  code = (
      'import sys, jax, numpy as np\n'
      'from rods_jax import sharding\n'
      'from tests import conftest, test_update_sharded\n'
      'assert len(jax.devices()) == 8\n'
      'mesh = sharding.make_mesh(4, 2, 1)\n'
      'np.savez(sys.argv[1], **test_update_sharded.compute(mesh))\n'
  )
  path = tmp_path / 'eight.npz'
  flag = '--xla_force_host_platform_device_count=8'
  subprocess.run(
      [sys.executable, '-c', code, str(path)],
      env=os.environ | {'XLA_FLAGS': flag, 'JAX_PLATFORMS': 'cpu'},
      cwd=_ROOT, check=True, timeout=300,
  )
  one = compute(sharding.make_mesh(1, 1, 1, jax.devices()[:1]))
  with np.load(path) as eight:
    assert set(one) == set(eight)
    for name, value in one.items():
      np.testing.assert_allclose(value, eight[name], rtol=1e-4, atol=2e-6)
