"""A run on 8 forced host devices equals the run on one."""

import os
import pathlib
import pickle
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests import tiny

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def config(policy: pathlib.Path, **mesh):
  """8 rows in a microbatch and 16 slots: each for 4 parts of the batch.

  One length only, because for 8 devices there is much to compile. Where a draw
  falls on the border of two tokens, the order of sums decides: seed 0 has one
  such draw among its thousands, with logprobs that agree to 2e-6; seed 1 none.
  """
  return tiny.run_config(
      policy, rng_seed=1, train__num_epochs=1, grpo__microbatch_rows=8,
      grpo__length_buckets=(512,), grpo__learning_rate=1e-4,
      rollout__cache_buckets=(512,), eval__before=False,
      **{f'mesh__{name}': size for name, size in mesh.items()},
  )


@pytest.mark.slow
def test_eight_devices_play_and_learn_like_one(tiny_policy, tmp_path):
  """Same tokens, same rewards; the rest up to the order of sums.

  Adam divides a gradient by its own size: where that is rounding error alone, a
  parameter moves by up to the learning rate in any direction.
  """
  one = tiny.sit(config(tiny_policy), tmp_path / 'one')
  env = {
      **os.environ,
      'XLA_FLAGS': '--xla_force_host_platform_device_count=8',
      'JAX_PLATFORMS': 'cpu',
      'JAX_COMPILATION_CACHE_DIR': jax.config.jax_compilation_cache_dir,
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  code = (
      'import pathlib, pickle, sys\n'
      'from tests import test_train_sharded as t\n'
      'policy, folder = map(pathlib.Path, sys.argv[1:])\n'
      'config = t.config(policy, data=2, fsdp=2, tensor=2)\n'
      'outcome = t.tiny.sit(config, folder / "eight")\n'
      '(folder / "eight.pickle").write_bytes(pickle.dumps(outcome))\n'
  )
  subprocess.run(
      [sys.executable, '-c', code, str(tiny_policy), str(tmp_path)],
      cwd=_ROOT, env=env, check=True, timeout=300,
  )
  eight = pickle.loads((tmp_path / 'eight.pickle').read_bytes())
  shown = [tiny.rows(tmp_path / n, 'trajectories') for n in ('one', 'eight')]
  assert shown[0] == shown[1] and shown[0]
  for a, b in zip(tiny.rows(tmp_path / 'one'), tiny.rows(tmp_path / 'eight')):
    for key in a:
      if key.startswith('loss/'):
        np.testing.assert_allclose(b[key], a[key], 1e-3, 1e-5, err_msg=key)
      else:
        assert a[key] == b[key], key
  assert one.pool == eight.pool and one.pending == eight.pending
  for name, value in one.arrays.items():
    if name.startswith('params.'):
      np.testing.assert_allclose(
          eight.arrays[name], value, rtol=0, atol=1e-5, err_msg=name
      )
