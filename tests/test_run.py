"""Runs that meet trouble: one clear line, and nothing saved is lost."""

import errno
import json
import logging
import shutil
import signal

import jax
import numpy as np
import pytest

from rods_jax import checkpoint
from rods_jax import errors
from rods_jax import file_digests
from rods_jax import metrics
from rods_jax import run as run_lib
from rods_jax import stop
from rods_jax import train
from rods_jax import types
from rods_jax import weights
from rods_jax import workdir as workdir_lib
from rods_jax.host import env_pool
from tests import tiny


@pytest.fixture
def copied(tiny_run, tmp_path):
  """A copy of the finished run that may be changed."""
  shutil.copytree(tiny_run[1], tmp_path, dirs_exist_ok=True)
  return tmp_path


def one_line(error) -> str:
  text = str(error.value)
  assert '\n' not in text and 'Traceback' not in text
  return text


def checkpoints(workdir):
  return sorted(
      int(p.name) for p in (workdir / 'checkpoints').iterdir()
      if p.name.isdigit()
  )


def contents(workdir):
  return {
      p.relative_to(workdir): p.read_bytes()
      for p in workdir.rglob('*')
      if p.is_file() and p.name != 'report.html'
  }


def wrap_update(monkeypatch, change):
  """Lets change(call number, batch) alter what the real update gets."""
  make = run_lib.update.make_update_fn

  def make_wrapped(*args, **kwargs):
    update, calls = make(*args, **kwargs), []

    def wrapped(state, ref_params, batch):
      calls.append(None)
      return update(state, ref_params, change(len(calls), batch))

    wrapped._cache_size = update._cache_size
    return wrapped

  monkeypatch.setattr(run_lib.update, 'make_update_fn', make_wrapped)


def with_nan(batch):
  buckets = tuple(
      b._replace(old_logprobs=np.full_like(b.old_logprobs, np.nan))
      for b in batch.packed.buckets
  )
  return batch._replace(packed=batch.packed._replace(buckets=buckets))


def test_a_complete_run_says_so_and_stays_as_it_is(tiny_policy, copied, capsys):
  before = contents(copied)
  assert train.train(tiny.run_config(tiny_policy), copied) == 0
  assert 'complete run of 4 epochs' in capsys.readouterr().out
  assert contents(copied) == before


def test_a_run_with_environments_in_processes(
    tiny_half_run, tiny_policy, tmp_path, monkeypatch
):
  """The same run, bit by bit; and its processes are gone afterwards."""
  outcome, workdir = tiny_half_run
  pools, make = [], run_lib.build.build_environments

  def note(config):
    pools.append(make(config))
    return pools[-1]

  monkeypatch.setattr(run_lib.build, 'build_environments', note)
  config = tiny.run_config(
      tiny_policy, train__num_epochs=2, rollout__env_workers=2
  )
  tiny.assert_same(outcome, tiny.sit(config, tmp_path))
  tiny.assert_same_logs(workdir, tmp_path)
  (pool,) = pools  # one for training and evaluation
  assert isinstance(pool, env_pool.EnvPool) and pool.num_restarts == 0
  assert len(pool.pids) == 2 and pool._count > 10  # episodes were played there
  assert all(w.process.poll() is not None for w in pool._workers)


def test_a_start_that_fails_half_way_leaves_no_process(
    tiny_policy, tmp_path, monkeypatch
):
  """The synthesis process once lived on: nobody had entered the run yet."""
  made, start = [], run_lib.background.Background.__init__

  def note(self, folder):
    start(self, folder)
    made.append(self._child)

  def fail(config):
    raise OSError('no more processes')

  monkeypatch.setattr(run_lib.background.Background, '__init__', note)
  monkeypatch.setattr(run_lib.build, 'build_environments', fail)
  with pytest.raises(OSError, match='no more'):
    run_lib.Run(tiny.run_config(tiny_policy), tmp_path)
  assert made[0].poll() is not None


def test_training_refuses_a_cut_distribution(tiny_policy, tmp_path):
  config = tiny.run_config(
      tiny_policy, eval__temperature=1.0, rollout__top_k=5
  )
  with pytest.raises(errors.UserError, match='rollout.top_k is 5'):
    train.train(config, tmp_path / 'new')
  assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize('name', ['arrays', 'document'])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    name, tiny_run, tiny_policy, copied, caplog
):
  """The epoch after it is played again and its old log lines are dropped."""
  outcome, workdir = tiny_run
  older, newest = checkpoints(copied)
  files = [
      f for f in (copied / 'checkpoints' / str(newest) / name).rglob('*')
      if f.is_file()
  ]
  largest = max(files, key=lambda f: f.stat().st_size)
  with largest.open('r+b') as f:
    f.truncate(largest.stat().st_size // 2)
  with caplog.at_level(logging.WARNING):
    again = tiny.sit(tiny.run_config(tiny_policy), copied, stop_step=older)
    assert not again.complete and again.position.step == older
    again = tiny.sit(tiny.run_config(tiny_policy), copied)
  assert f'falling back to {copied}/checkpoints/{older}' in caplog.text
  tiny.assert_same(outcome, again)
  tiny.assert_same_logs(workdir, copied)


def test_only_damaged_checkpoints_are_one_line(tiny_policy, copied):
  """Starting anew in their place would throw away what could be rescued."""
  for step in checkpoints(copied):
    (copied / 'checkpoints' / str(step) / file_digests.NAME).unlink()
  before = contents(copied)
  with pytest.raises(errors.UserError) as error:
    tiny.sit(tiny.run_config(tiny_policy), copied)
  assert 'no checkpoint can be restored' in one_line(error)
  assert 'Choose another --workdir' in one_line(error)
  assert contents(copied) == before


def test_a_full_disk_at_a_save_leaves_the_checkpoint_before(
    tiny_half_run, tiny_policy, tmp_path, monkeypatch
):
  outcome, workdir = tiny_half_run
  config = tiny.run_config(tiny_policy, train__num_epochs=2)
  seal = file_digests.seal

  def full(path):
    if 'pool/retired' in tiny.rows(tmp_path)[-1] and checkpoints(tmp_path):
      raise OSError(errno.ENOSPC, 'No space left on device')
    seal(path)

  monkeypatch.setattr(file_digests, 'seal', full)
  with pytest.raises(errors.UserError) as error:
    tiny.sit(config, tmp_path)
  (kept,) = checkpoints(tmp_path)
  text = one_line(error)
  assert 'No space left on device' in text and f'step {kept}' in text
  monkeypatch.setattr(file_digests, 'seal', seal)
  tiny.assert_same(outcome, tiny.sit(config, tmp_path))
  tiny.assert_same_logs(workdir, tmp_path)


def test_a_disk_without_room_is_noticed_before_a_save(
    tiny_policy, tmp_path, monkeypatch
):
  """Orbax' threads used to print dozens of stack traces about it."""

  class Usage:
    total, free = 10**9, 9

  monkeypatch.setattr('shutil.disk_usage', lambda _: Usage)
  config = tiny.run_config(
      tiny_policy, train__num_epochs=1, eval__before=False
  )
  with pytest.raises(errors.UserError, match='no space left') as error:
    tiny.sit(config, tmp_path)
  assert '0.0 MB are free' in one_line(error)
  assert not checkpoints(tmp_path)


@pytest.mark.parametrize('log', ['metrics', 'trajectories'])
def test_a_full_disk_at_a_log_is_one_line(
    log, tiny_policy, tmp_path, monkeypatch
):
  append = metrics.MetricsWriter._append

  def full(self, name, data):
    if name == f'{log}.jsonl':
      raise OSError(errno.ENOSPC, 'No space left on device')
    append(self, name, data)

  monkeypatch.setattr(metrics.MetricsWriter, '_append', full)
  config = tiny.run_config(tiny_policy, eval__before=False)
  with pytest.raises(errors.UserError) as error:
    tiny.sit(config, tmp_path)
  assert str(tmp_path) in one_line(error)
  assert 'No space left on device' in one_line(error)


def test_flat_groups_advance_the_step_and_change_nothing(
    tiny_policy, tmp_path, monkeypatch
):
  """A skipped update used to leave the step: the same data came again."""
  monkeypatch.setattr(types.Trajectory, 'progress', property(lambda _: 0.5))
  config = tiny.run_config(tiny_policy, train__num_epochs=1)
  with run_lib.Run(config, tmp_path) as run:
    workdir_lib.prepare(tmp_path, config)
    before = tiny.leaves(run.state.params)
    assert train.loop(run, tiny.StopAt(run, None))
    assert before == tiny.leaves(run.state.params)
    assert int(run.state.step) == run.position.step == 3
  rows = tiny.rows(tmp_path)
  assert [r['step'] for r in rows] == [0, 1, 2, 3]
  assert {r['reward/flat_groups'] for r in rows[1:]} == {1.0}
  assert {r['loss/skipped'] for r in rows[1:]} == {1.0}
  shown = [t['events'] for t in tiny.rows(tmp_path, 'trajectories')]
  assert len({json.dumps(e) for e in shown}) == len(shown)


def test_an_update_that_is_not_finite_is_skipped_and_counted(
    tiny_policy, tmp_path, monkeypatch
):
  wrap_update(monkeypatch, lambda n, b: with_nan(b) if n == 1 else b)
  config = tiny.run_config(
      tiny_policy, train__num_epochs=1, eval__before=False,
      grpo__skip_flat_groups=False,  # so that each update has rows
  )
  outcome = tiny.sit(config, tmp_path)
  assert outcome.complete
  rows = tiny.rows(tmp_path)
  assert [r['loss/nonfinite_in_row'] for r in rows][0] == 1
  assert rows[0]['loss/skipped'] == 1 and rows[0]['loss/objective'] is None
  assert rows[-1]['loss/nonfinite_in_row'] == 0
  for name, value in outcome.arrays.items():
    assert np.isfinite(value).all(), name


def test_too_many_of_them_end_the_run_with_the_batch(
    tiny_policy, tmp_path, monkeypatch
):
  wrap_update(monkeypatch, lambda _, batch: with_nan(batch))
  config = tiny.run_config(
      tiny_policy, grpo__max_nonfinite=2, eval__before=False
  )
  with pytest.raises(errors.UserError) as error:
    tiny.sit(config, tmp_path)
  assert '2 updates in a row were not finite' in one_line(error)
  dumped = np.load(tmp_path / 'nonfinite_batch.npz')
  assert dumped['rewards'].shape == (2, 4)  # groups, trajectories of each
  assert 'packed.buckets.0.tokens' in dumped


def test_a_signal_during_set_up_ends_the_run_before_a_batch(
    tiny_policy, tmp_path, monkeypatch, capsys
):
  """Nothing is done yet, so there is nothing to save; it starts again."""

  class Signalled(stop.StopRequest):

    def __enter__(self):
      self.signal = signal.SIGTERM
      return super().__enter__()

  config = tiny.run_config(tiny_policy)
  with monkeypatch.context() as patch:
    patch.setattr(stop, 'StopRequest', Signalled)
    assert train.train(config, tmp_path) == 128 + signal.SIGTERM
  assert 'Stopped at step 0' in capsys.readouterr().out
  assert not (tmp_path / 'checkpoints').exists()
  assert not tiny.sit(config, tmp_path, stop_step=1).complete
  assert [r['step'] for r in tiny.rows(tmp_path)] == [0, 1, 2]


def test_an_interrupt_ends_the_synthesis_process(
    tiny_policy, tmp_path, monkeypatch
):
  """Ctrl-C a second time: at once, without a checkpoint."""
  config = tiny.run_config(tiny_policy, eval__before=False)

  def interrupt(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(train, 'update_policy', interrupt)
  with pytest.raises(KeyboardInterrupt):
    with run_lib.Run(config, tmp_path) as run:
      child = run.synthesis._child
      assert child.poll() is None
      train.loop(run, tiny.StopAt(run, None))
  assert child.poll() is not None
  assert not (tmp_path / 'checkpoints').exists()


def test_the_step_is_that_of_the_parameters(tiny_half_run, tmp_path, caplog):
  """An evaluation was filed under the newest step, with older parameters.

  A checkpoint of other arrays is undamaged: only reading it shows that it is
  none of this run's.
  """
  outcome, workdir = tiny_half_run
  shutil.copytree(workdir / 'checkpoints', tmp_path / 'checkpoints')
  wrong = outcome.position.step + 1
  with checkpoint.Checkpointer(tmp_path / 'checkpoints', keep=9) as saver:
    saver.save(wrong, {'params': {'foreign': np.ones(3, np.float32)}}, {})
  assert checkpoint.latest_step(tmp_path / 'checkpoints') == wrong
  config = tiny.get_config()
  policy = run_lib.build.build_policy(config)
  step, params = run_lib.latest_params(config, policy, tmp_path)
  assert step == outcome.position.step
  names = weights.names(params)
  for name, value in zip(names, jax.tree.leaves(params), strict=True):
    np.testing.assert_array_equal(value, outcome.arrays[f'params.{name}'])
