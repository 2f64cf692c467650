"""Tests of saving and restoring: bitwise, all or nothing, on another mesh."""

import logging
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax import checkpoint

_ROOT = pathlib.Path(__file__).parents[1]


class _Adam(NamedTuple):
  count: Any
  mu: Any
  empty: tuple = ()


def _arrays(seed=0):
  rng = np.random.default_rng(seed)
  normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  params = {
      'layers': [{'kernel': normal(40, 50)}, {'kernel': normal(8, 3)}],
      'scale': normal(4).astype(jnp.bfloat16),
  }
  # nan, inf and -0.0 must come back bit by bit too.
  odd = jnp.asarray([np.nan, np.inf, -0.0, 1e-45], jnp.float32)
  return {
      'params': params,
      'opt': (_Adam(jnp.asarray(7, jnp.int32), {'odd': odd}), None),
  }


def _abstract(arrays):
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      arrays,
  )


def _assert_bitwise(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype and x.shape == y.shape
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def _save(folder, *steps, keep=9):
  with checkpoint.Checkpointer(folder, keep) as c:
    for step in steps:
      c.save(step, _arrays(step), {'epoch': step})


def _restore(folder, abstract=None):
  with checkpoint.Checkpointer(folder) as c:
    return c.restore(abstract or _abstract(_arrays()))


def _steps(folder):
  return sorted(p.name for p in pathlib.Path(folder).iterdir())


def _largest_file(folder):
  files = [p for p in folder.rglob('*') if p.is_file()]
  return max(files, key=lambda p: p.stat().st_size)


def test_bitwise_round_trip(tmp_path):
  arrays = _arrays()
  document = {'pool': [1, {'a': None}], 'text': 'é\n', 'third': 1 / 3}
  with checkpoint.Checkpointer(tmp_path / 'new' / 'folder') as c:
    assert c.restore(_abstract(arrays)) is None and c.latest_step is None
    c.save(3, arrays, document)
    assert c.latest_step == 3
    restored = c.restore(_abstract(arrays))
  assert restored.step == 3 and restored.document == document
  _assert_bitwise(restored.arrays, arrays)


def test_newest_of_those_kept(tmp_path):
  _save(tmp_path, 9, 10, 11, keep=2)
  assert _steps(tmp_path) == ['10', '11']  # as numbers: '9' > '11' as text
  assert _restore(tmp_path).step == 11
  _assert_bitwise(_restore(tmp_path).arrays, _arrays(11))


def test_same_step_again_replaces(tmp_path):
  _save(tmp_path, 1, 2)
  with checkpoint.Checkpointer(tmp_path, 9) as c:
    c.save(2, _arrays(5), {'again': True})
  restored = _restore(tmp_path)
  assert restored.step == 2 and restored.document == {'again': True}
  _assert_bitwise(restored.arrays, _arrays(5))
  assert _steps(tmp_path) == ['1', '2']


def _halve(path):
  os.truncate(path, path.stat().st_size // 2)


def _flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 0x10
  path.write_bytes(data)


@pytest.mark.parametrize(
    'damage, reason',
    [
        (_halve, 'bytes instead of'),
        (lambda path: path.unlink(), 'is missing'),
        (_flip, 'is damaged'),
    ],
)
def test_damage_falls_back(tmp_path, caplog, damage, reason):
  """One flipped byte of an array was restored as another number, silently."""
  _save(tmp_path, 1, 2)
  damage(_largest_file(tmp_path / '2'))
  restored = _restore(tmp_path)
  assert restored.step == 1
  _assert_bitwise(restored.arrays, _arrays(1))
  [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
  message = record.getMessage()
  assert str(tmp_path / '2') in message and reason in message
  assert f'falling back to {tmp_path / "1"}' in message


def test_foreign_folder_falls_back_and_is_never_deleted(tmp_path, caplog):
  _save(tmp_path, 1)
  (tmp_path / '7').mkdir()
  (tmp_path / '7' / 'model.bin').write_text('of somebody')
  (tmp_path / '8').write_text('a file')
  (tmp_path / 'notes').mkdir()
  with checkpoint.Checkpointer(tmp_path, keep=1) as c:
    assert c.restore(_abstract(_arrays())).step == 1
    assert 'foreign or incomplete' in caplog.text
    c.save(2, _arrays(2), {})
    c.save(7, _arrays(7), {})
    c.save(8, _arrays(8), {})
  assert _steps(tmp_path) == ['7.foreign', '8', '8.foreign', 'notes']
  assert (tmp_path / '7.foreign' / 'model.bin').read_text() == 'of somebody'


def test_damaged_ones_do_not_count_as_kept(tmp_path):
  """After a fallback to 1, step 3 must not push 1 out in favour of 2."""
  _save(tmp_path, 1, 2)
  _halve(_largest_file(tmp_path / '2'))
  with checkpoint.Checkpointer(tmp_path, keep=2) as c:
    assert c.restore(_abstract(_arrays())).step == 1
    c.save(3, _arrays(3), {})
    _halve(_largest_file(tmp_path / '3'))
    assert c.restore(_abstract(_arrays())).step == 1
    c.save(2, _arrays(2), {})  # run again from 1
  assert _restore(tmp_path).step == 2


def test_latest_step_is_of_what_load_params_loads(tmp_path):
  assert checkpoint.latest_step(tmp_path / 'none') is None
  _save(tmp_path, 1, 2)
  assert checkpoint.latest_step(tmp_path) == 2
  _halve(_largest_file(tmp_path / '2'))
  assert checkpoint.latest_step(tmp_path) == 1
  params = checkpoint.load_params(tmp_path, _abstract(_arrays()['params']))
  _assert_bitwise(params, _arrays(1)['params'])


def test_nothing_readable_is_an_error(tmp_path):
  """Starting anew without a word would overwrite what could be rescued."""
  _save(tmp_path, 1)
  _halve(_largest_file(tmp_path / '1'))
  with pytest.raises(checkpoint.CheckpointError, match='no checkpoint can be'):
    _restore(tmp_path)
  with pytest.raises(checkpoint.CheckpointError, match='no checkpoint can be'):
    checkpoint.latest_step(tmp_path)


def _without(arrays):
  del arrays['params']['scale']


def _misshape(arrays):
  arrays['params']['layers'][1]['kernel'] = jnp.zeros((3, 8))


def _retype(arrays):
  arrays['params']['scale'] = jnp.zeros((4,), jnp.float32)


def _with_more(arrays):
  arrays['params']['bias'] = jnp.zeros((4,))


@pytest.mark.parametrize(
    'change, message',
    [
        (_without, 'has an array params/scale that is not expected'),
        (_with_more, 'has no array params/bias'),
        (
            _misshape,
            r'array params/layers/1/kernel is float32\[8, 3\], expected '
            r'float32\[3, 8\]',
        ),
        (_retype, 'params/scale is bfloat16.* expected float32'),
    ],
)
def test_other_arrays_are_named(tmp_path, change, message):
  _save(tmp_path, 1)
  expected = _arrays()
  change(expected)
  with pytest.raises(checkpoint.CheckpointError, match=message) as e:
    _restore(tmp_path, _abstract(expected))
  assert '\n' not in str(e.value)


@pytest.mark.parametrize(
    'leaf, message',
    [
        (lambda: 3, 'step is a int, not an array'),
        (lambda: jax.random.key(0), 'step is a random key'),
        (lambda: jnp.zeros((0,)), 'zero size'),
    ],
)
def test_what_cannot_be_saved(tmp_path, leaf, message):
  _save(tmp_path, 1)
  with checkpoint.Checkpointer(tmp_path) as c:
    with pytest.raises(checkpoint.CheckpointError, match=message):
      c.save(2, {'step': leaf()}, {})
    with pytest.raises(checkpoint.CheckpointError, match='not JSON seria'):
      c.save(2, _arrays(), {'a': object()})
  assert _steps(tmp_path) == ['1']


def test_load_params_alone(tmp_path):
  _save(tmp_path, 1, 2)
  abstract = _abstract(_arrays()['params'])
  for folder, seed in ((tmp_path, 2), (tmp_path / '1', 1)):
    params = checkpoint.load_params(folder, abstract)
    _assert_bitwise(params, _arrays(seed)['params'])
  # Stored smaller, used larger: every bfloat16 is a float32.
  abstract['scale'] = jax.ShapeDtypeStruct((4,), jnp.float32)
  params = checkpoint.load_params(tmp_path, abstract)
  np.testing.assert_array_equal(
      params['scale'], _arrays(2)['params']['scale'].astype(jnp.float32)
  )
  abstract['scale'] = jax.ShapeDtypeStruct((4,), jnp.int32)
  with pytest.raises(checkpoint.CheckpointError, match='params/scale'):
    checkpoint.load_params(tmp_path, abstract)
  with pytest.raises(checkpoint.CheckpointError, match='holds no checkpoint'):
    checkpoint.load_params(tmp_path / 'none', abstract)


def test_copied_checkpoint_stands_alone(tmp_path):
  _save(tmp_path / 'run', 5)
  shutil.copytree(tmp_path / 'run' / '5', tmp_path / 'shipped')
  params = checkpoint.load_params(
      tmp_path / 'shipped', _abstract(_arrays()['params'])
  )
  _assert_bitwise(params, _arrays(5)['params'])


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
  restored = _restore(tmp_path, expected)
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
    assert set(_steps(folder)) <= {'1', '2', '3'}


def test_kill_between_the_two_renames(tmp_path):
  """Step 2 had been moved aside for its successor, which has no name yet."""
  _save(tmp_path, 1, 2)
  os.rename(tmp_path / '2', tmp_path / '2.replaced')
  assert _restore(tmp_path).step == 2
  _save(tmp_path, 3)
  assert _steps(tmp_path) == ['1', '2', '3']


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
  _save(tmp_path, 1)
  child = _script(_FULL, tmp_path)
  output = child.communicate(timeout=120)[0]
  [error] = [x for x in output.splitlines() if x.startswith('MESSAGE')]
  assert 'could not save step 2' in error and 'File too large' in error
  assert 'Traceback' not in output
  assert 'last good checkpoint: step 1' in error
  assert _steps(tmp_path) == ['1']
  _assert_bitwise(_restore(tmp_path).arrays, _arrays(1))


def test_failed_seal_keeps_the_checkpoint_of_the_same_step(
    tmp_path, monkeypatch
):
  _save(tmp_path, 1, 2)

  def full(path):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(checkpoint.file_digests, 'seal', full)
  with pytest.raises(checkpoint.CheckpointError, match='No space left'):
    _save(tmp_path, 2)
  assert _steps(tmp_path) == ['1', '2']
  assert _restore(tmp_path).step == 2


def test_folder_that_cannot_be_made(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(checkpoint.CheckpointError, match='could not save step 1'):
    _save(tmp_path / 'file' / 'checkpoints', 1)


def test_keep_is_checked(tmp_path):
  with pytest.raises(ValueError, match='keep_checkpoints must be 1'):
    checkpoint.Checkpointer(tmp_path, keep=0)
