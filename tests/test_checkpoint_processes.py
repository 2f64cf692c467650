"""Checkpoints of processes that are killed, run out of room, or have a mesh."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np

from rods_jax import checkpoint
from tests import saved

_ROOT = pathlib.Path(__file__).parents[1]


def _script(body, *args, **env):
  return subprocess.Popen(
      [sys.executable, '-c', textwrap.dedent(body), *map(str, args)],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      cwd=_ROOT,
      env={**os.environ, 'JAX_PLATFORMS': 'cpu', **env},
  )


_MESH = """
import sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from rods_jax import checkpoint

mesh = jax.make_mesh((2, 4), ('data', 'fsdp'), axis_types=(AxisType.Auto,) * 2)
put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
w = np.arange(128, dtype=np.float32).reshape(16, 8)
arrays = {'w': put(w, 'fsdp', 'data'), 'b': put(w[0])}
with checkpoint.Checkpointer(sys.argv[1]) as c:
  c.save(4, arrays, {})
  expected = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
          x.shape, x.dtype, sharding=NamedSharding(mesh, P('data'))), arrays)
  back = c.restore(expected).arrays
  np.testing.assert_array_equal(back['w'], w)
  print('SHARDS', {s.data.shape for s in back['w'].addressable_shards})
"""


def test_saved_on_eight_devices_restored_on_one(tmp_path):
  child = _script(
      _MESH, tmp_path, XLA_FLAGS='--xla_force_host_platform_device_count=8'
  )
  output = child.communicate(timeout=120)[0]
  assert child.returncode == 0, output
  assert 'SHARDS {(8, 8)}' in output  # 16 rows over data=2
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  expected = {
      'w': jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=here),
      'b': jax.ShapeDtypeStruct((8,), jnp.float32),  # no sharding: the same
  }
  restored = saved.restore(tmp_path, expected)
  w = np.arange(128, dtype=np.float32).reshape(16, 8)
  np.testing.assert_array_equal(restored.arrays['w'], w)
  np.testing.assert_array_equal(restored.arrays['b'], w[0])
  assert restored.arrays['w'].sharding == here
  assert restored.arrays['b'].sharding.device_set == {jax.devices()[0]}


# Saves step 2 without end; a large array makes a kill land inside a save.
_SAVER = """
import sys
import numpy as np
from rods_jax import checkpoint

arrays = {'w': np.random.default_rng(0).normal(size=(3_000_000,))}
arrays['w'] = arrays['w'].astype(np.float32)
with checkpoint.Checkpointer(sys.argv[1], keep=9) as c:
  c.save(1, arrays, {'of': 1})
  print('SAVED', flush=True)
  while True:
    c.save(2, arrays, {'of': 2})
"""


def test_killed_save_leaves_a_whole_checkpoint(tmp_path):
  """Kill -9 at several moments: what can be restored is always whole."""
  expected = {'w': jax.ShapeDtypeStruct((3_000_000,), jnp.float32)}
  w = np.random.default_rng(0).normal(size=(3_000_000,)).astype(np.float32)
  for k, delay in enumerate((0.02, 0.11, 0.23)):
    folder = tmp_path / str(k)
    child = _script(_SAVER, folder)
    try:
      assert any('SAVED' in line for line in child.stdout)
      time.sleep(delay)
    finally:
      child.send_signal(signal.SIGKILL)
      child.communicate()
    with checkpoint.Checkpointer(folder) as c:
      restored = c.restore(expected)
      np.testing.assert_array_equal(restored.arrays['w'], w)
      assert restored.document == {'of': restored.step}
      c.save(3, {'w': w}, {})  # and the run goes on, leaving no litter
    assert set(saved.steps(folder)) <= {'1', '2', '3'}


def test_kill_between_the_two_renames(tmp_path):
  """Step 2 had been moved aside for its successor, which has no name yet."""
  saved.save(tmp_path, 1, 2)
  os.rename(tmp_path / '2', tmp_path / '2.replaced')
  assert saved.restore(tmp_path).step == 2
  saved.save(tmp_path, 3)
  assert saved.steps(tmp_path) == ['1', '2', '3']


_FULL = """
import resource, sys
import numpy as np
from rods_jax import checkpoint

with checkpoint.Checkpointer(sys.argv[1], keep=1) as c:
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
  w = np.random.default_rng(0).normal(size=(100_000,)).astype(np.float32)
  try:
    c.save(2, {'w': w}, {})
  except checkpoint.CheckpointError as e:
    print('MESSAGE', e)
"""


def test_full_disk_keeps_the_previous_checkpoint(tmp_path):
  """keep=1: a design that makes room first would have lost step 1."""
  saved.save(tmp_path, 1)
  child = _script(_FULL, tmp_path)
  output = child.communicate(timeout=120)[0]
  [error] = [x for x in output.splitlines() if x.startswith('MESSAGE')]
  assert 'could not save step 2' in error and 'File too large' in error
  assert 'Traceback' not in output
  assert 'last good checkpoint: step 1' in error
  assert saved.steps(tmp_path) == ['1']
  saved.assert_bitwise(saved.restore(tmp_path).arrays, saved.arrays(1))
