"""Tests of saving and restoring: bitwise, all or nothing, damage named."""

import logging
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax import checkpoint
from tests import saved


def _largest_file(folder):
  files = [p for p in folder.rglob('*') if p.is_file()]
  return max(files, key=lambda p: p.stat().st_size)


def test_bitwise_round_trip(tmp_path):
  arrays = saved.arrays()
  document = {'pool': [1, {'a': None}], 'text': 'é\n', 'third': 1 / 3}
  with checkpoint.Checkpointer(tmp_path / 'new' / 'folder') as c:
    assert c.restore(saved.abstract(arrays)) is None and c.latest_step is None
    c.save(3, arrays, document)
    assert c.latest_step == 3
    restored = c.restore(saved.abstract(arrays))
  assert restored.step == 3 and restored.document == document
  saved.assert_bitwise(restored.arrays, arrays)


def test_newest_of_those_kept(tmp_path):
  saved.save(tmp_path, 9, 10, 11, keep=2)
  assert saved.steps(tmp_path) == ['10', '11']  # as numbers: '9' > '11' as text
  assert saved.restore(tmp_path).step == 11
  saved.assert_bitwise(saved.restore(tmp_path).arrays, saved.arrays(11))


def test_one_step_alone(tmp_path):
  """Each process once fell back by itself, and they went on from two steps."""
  saved.save(tmp_path, 1, 2, 3)
  assert saved.restore(tmp_path, step=2).step == 2
  params = saved.abstract(saved.arrays()['params'])
  assert checkpoint.load(tmp_path, params, 2).step == 2
  _halve(_largest_file(tmp_path / '2'))
  for read in (
      lambda: saved.restore(tmp_path, step=2),
      lambda: checkpoint.load(tmp_path, params, 2),
  ):
    with pytest.raises(checkpoint.CheckpointError, match='be restored: .*2'):
      read()
  with pytest.raises(checkpoint.CheckpointError, match='no .* of step 4$'):
    saved.restore(tmp_path, step=4)


def test_same_step_again_replaces(tmp_path):
  saved.save(tmp_path, 1, 2)
  with checkpoint.Checkpointer(tmp_path, 9) as c:
    c.save(2, saved.arrays(5), {'again': True})
  restored = saved.restore(tmp_path)
  assert restored.step == 2 and restored.document == {'again': True}
  saved.assert_bitwise(restored.arrays, saved.arrays(5))
  assert saved.steps(tmp_path) == ['1', '2']


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
  saved.save(tmp_path, 1, 2)
  damage(_largest_file(tmp_path / '2'))
  restored = saved.restore(tmp_path)
  assert restored.step == 1
  saved.assert_bitwise(restored.arrays, saved.arrays(1))
  [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
  message = record.getMessage()
  assert str(tmp_path / '2') in message and reason in message
  assert f'falling back to {tmp_path / "1"}' in message


def test_foreign_folder_falls_back_and_is_never_deleted(tmp_path, caplog):
  saved.save(tmp_path, 1)
  (tmp_path / '7').mkdir()
  (tmp_path / '7' / 'model.bin').write_text('of somebody')
  (tmp_path / '8').write_text('a file')
  (tmp_path / 'notes').mkdir()
  with checkpoint.Checkpointer(tmp_path, keep=1) as c:
    assert c.restore(saved.abstract(saved.arrays())).step == 1
    assert 'foreign or incomplete' in caplog.text
    c.save(2, saved.arrays(2), {})
    c.save(7, saved.arrays(7), {})
    c.save(8, saved.arrays(8), {})
  assert saved.steps(tmp_path) == ['7.foreign', '8', '8.foreign', 'notes']
  assert (tmp_path / '7.foreign' / 'model.bin').read_text() == 'of somebody'


def test_damaged_ones_do_not_count_as_kept(tmp_path):
  """After a fallback to 1, step 3 must not push 1 out in favour of 2."""
  saved.save(tmp_path, 1, 2)
  _halve(_largest_file(tmp_path / '2'))
  with checkpoint.Checkpointer(tmp_path, keep=2) as c:
    assert c.restore(saved.abstract(saved.arrays())).step == 1
    c.save(3, saved.arrays(3), {})
    _halve(_largest_file(tmp_path / '3'))
    assert c.restore(saved.abstract(saved.arrays())).step == 1
    c.save(2, saved.arrays(2), {})  # run again from 1
  assert saved.restore(tmp_path).step == 2


def test_latest_step_is_of_what_load_params_loads(tmp_path):
  assert checkpoint.latest_step(tmp_path / 'none') is None
  saved.save(tmp_path, 1, 2)
  assert checkpoint.latest_step(tmp_path) == 2
  _halve(_largest_file(tmp_path / '2'))
  assert checkpoint.latest_step(tmp_path) == 1
  abstract = saved.abstract(saved.arrays()['params'])
  params = checkpoint.load_params(tmp_path, abstract)
  saved.assert_bitwise(params, saved.arrays(1)['params'])


def test_nothing_readable_is_an_error(tmp_path):
  """Starting anew without a word would overwrite what could be rescued."""
  saved.save(tmp_path, 1)
  _halve(_largest_file(tmp_path / '1'))
  with pytest.raises(checkpoint.CheckpointError, match='no checkpoint can be'):
    saved.restore(tmp_path)
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
  saved.save(tmp_path, 1)
  expected = saved.arrays()
  change(expected)
  with pytest.raises(checkpoint.CheckpointError, match=message) as e:
    saved.restore(tmp_path, saved.abstract(expected))
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
  saved.save(tmp_path, 1)
  with checkpoint.Checkpointer(tmp_path) as c:
    with pytest.raises(checkpoint.CheckpointError, match=message):
      c.save(2, {'step': leaf()}, {})
    with pytest.raises(checkpoint.CheckpointError, match='not JSON seria'):
      c.save(2, saved.arrays(), {'a': object()})
  assert saved.steps(tmp_path) == ['1']


def test_load_params_alone(tmp_path):
  saved.save(tmp_path, 1, 2)
  abstract = saved.abstract(saved.arrays()['params'])
  for folder, seed in ((tmp_path, 2), (tmp_path / '1', 1)):
    params = checkpoint.load_params(folder, abstract)
    saved.assert_bitwise(params, saved.arrays(seed)['params'])
  # Stored smaller, used larger: every bfloat16 is a float32.
  abstract['scale'] = jax.ShapeDtypeStruct((4,), jnp.float32)
  params = checkpoint.load_params(tmp_path, abstract)
  np.testing.assert_array_equal(
      params['scale'], saved.arrays(2)['params']['scale'].astype(jnp.float32)
  )
  abstract['scale'] = jax.ShapeDtypeStruct((4,), jnp.int32)
  with pytest.raises(checkpoint.CheckpointError, match='params/scale'):
    checkpoint.load_params(tmp_path, abstract)
  with pytest.raises(checkpoint.CheckpointError, match='holds no checkpoint'):
    checkpoint.load_params(tmp_path / 'none', abstract)


def test_copied_checkpoint_stands_alone(tmp_path):
  saved.save(tmp_path / 'run', 5)
  shutil.copytree(tmp_path / 'run' / '5', tmp_path / 'shipped')
  params = checkpoint.load_params(
      tmp_path / 'shipped', saved.abstract(saved.arrays()['params'])
  )
  saved.assert_bitwise(params, saved.arrays(5)['params'])


def test_failed_seal_keeps_the_checkpoint_of_the_same_step(
    tmp_path, monkeypatch
):
  saved.save(tmp_path, 1, 2)

  def full(path):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(checkpoint.file_digests, 'seal', full)
  with pytest.raises(checkpoint.CheckpointError, match='No space left'):
    saved.save(tmp_path, 2)
  assert saved.steps(tmp_path) == ['1', '2']
  assert saved.restore(tmp_path).step == 2


def test_folder_that_cannot_be_made(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(checkpoint.CheckpointError, match='could not save step 1'):
    saved.save(tmp_path / 'file' / 'checkpoints', 1)


def test_keep_is_checked(tmp_path):
  with pytest.raises(ValueError, match='keep_checkpoints must be 1'):
    checkpoint.Checkpointer(tmp_path, keep=0)
