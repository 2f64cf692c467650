"""What several processes of a run agree on, each seen by itself."""

import shutil
import types as python_types

import jax
from jax.experimental import multihost_utils
import numpy as np
import pytest

from rods_jax import errors
from rods_jax import exchange
from rods_jax import run as run_lib
from rods_jax import train
from tests import tiny


@pytest.mark.parametrize('writer', [None, 'any'])
def test_every_process_awaits_the_batch(writer, tmp_path, monkeypatch):
  """One that does not write ended at once, and the other while it wrote."""
  met = []
  path = tmp_path / 'nonfinite_batch.npz'
  monkeypatch.setattr(
      exchange, 'largest', lambda _: met.append(path.exists())
  )
  run = python_types.SimpleNamespace(workdir=tmp_path, writer=writer)
  assert train._dump(run, {'a': np.ones(3)}) == path
  assert met == [writer is not None]


def test_another_mode_is_noticed(tmp_path, monkeypatch):
  """The collectives of the two met each other, and the backend gave up."""
  config, said = tiny.get_config(), []
  monkeypatch.setattr(
      exchange, 'share_text', lambda text, _: said.append(text) or said[0]
  )
  run_lib.begin(config, tmp_path, 'train')  # process 0
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  run_lib.begin(config, tmp_path, 'train')
  with pytest.raises(errors.UserError) as error:
    run_lib.begin(config, tmp_path, 'evaluate', 'eval')
  assert str(error.value) == (
      '--mode is evaluate in process 1 and train in process 0; start all with '
      'the same flags.'
  )
  config.rollout.group_size += 1
  with pytest.raises(errors.UserError, match='config.rollout.group_size is'):
    run_lib.begin(config, tmp_path, 'train')


@pytest.mark.parametrize('process', [0, 1])
def test_the_step_of_process_0_counts(process, monkeypatch):
  """Only process 0 looks which one is undamaged."""
  looked = []
  latest = lambda: looked.append(1) or 7
  assert run_lib.common_step(latest) is None and not looked  # alone
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  monkeypatch.setattr(jax, 'process_index', lambda: process)
  monkeypatch.setattr(
      multihost_utils, 'broadcast_one_to_all', lambda x: x if x else 5
  )
  assert run_lib.common_step(latest) == (7, 5)[process]
  assert len(looked) == 1 - process


def test_all_read_the_common_step(tiny_run, tiny_policy, tmp_path, monkeypatch):
  folder = tmp_path / 'checkpoints'
  shutil.copytree(tiny_run[1] / 'checkpoints', folder)
  older, newest = sorted(int(path.name) for path in folder.iterdir())
  config = tiny.run_config(tiny_policy)
  policy = run_lib.build.build_policy(config)
  for wanted, step in ((older, older), (None, newest), (0, 0)):
    monkeypatch.setattr(run_lib, 'common_step', lambda _: wanted)
    assert run_lib.latest_params(config, policy, tmp_path)[0] == step
  monkeypatch.setattr(run_lib, 'common_step', lambda _: older)
  with run_lib.Run(config, tmp_path) as run:
    assert run.position.step == older
  monkeypatch.setattr(run_lib, 'common_step', lambda _: newest + 1)
  with pytest.raises(errors.UserError) as error:
    run_lib.Run(config, tmp_path)
  assert f'no checkpoint of step {newest + 1}' in str(error.value)
