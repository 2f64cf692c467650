"""Tests of the metrics writer, the record logs and the phase timer."""

import json
import logging
import os
import signal
import struct
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from rods_jax import metrics


def _rows(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def _events(path):
  """Events of one TensorBoard file: u64 length, u32 crc, data, u32 crc."""
  data, events = path.read_bytes(), []
  while data:
    (length,) = struct.unpack('<Q', data[:8])
    events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
    data = data[16 + length :]
  return events


def _scalars(path):
  return [
      (event.step, value.tag, value.simple_value)
      for event in _events(path)
      for value in event.summary.value
  ]


def _event_files(workdir):
  files = (workdir / 'tensorboard').glob('events.out.tfevents.*')
  return sorted(files, key=lambda path: int(path.name.rsplit('.')[-1]))


def test_step_comes_first_and_scalars_become_numbers(tmp_path):
  with metrics.MetricsWriter(tmp_path) as writer:
    writer.write(
        np.int64(3),
        {
            'train/epoch': jnp.int32(1),
            'reward/mean': jnp.float32(0.5),
            'reward/std': np.float64(0.25),
            'reward/low': jnp.bfloat16(1.5),
            'loss/one': np.ones([1]),
            'reward/flat': True,
        },
    )
  line = (tmp_path / 'metrics.jsonl').read_text()
  assert line == (
      '{"step": 3, "train/epoch": 1, "reward/mean": 0.5, "reward/std": 0.25, '
      '"reward/low": 1.5, "loss/one": 1.0, "reward/flat": 1}\n'
  )


def test_missing_and_non_finite_values_are_null_not_zero(tmp_path):
  with metrics.MetricsWriter(tmp_path) as writer:
    values = {'a/nan': np.nan, 'a/none': None, 'a/inf': jnp.inf, 'a/x': 2}
    writer.write(1, values)
  assert _rows(tmp_path) == [
      {'step': 1, 'a/nan': None, 'a/none': None, 'a/inf': None, 'a/x': 2}
  ]
  # TensorBoard has no null: only the number is there.
  (path,) = _event_files(tmp_path)
  assert _scalars(path) == [(1, 'a/x', 2.0)]


def test_bad_keys_and_values_are_refused_and_write_nothing(tmp_path):
  with metrics.MetricsWriter(tmp_path) as writer:
    for key in ('reward', '/mean', 'reward/', 'step', ''):
      with pytest.raises(ValueError, match='phase/name'):
        writer.write(1, {key: 1.0})
    for value in ('0.5', np.zeros(2), [1, 2], 1j, object()):
      with pytest.raises(TypeError, match='reward/mean'):
        writer.write(1, {'reward/mean': value})
  assert not (tmp_path / 'metrics.jsonl').exists()


def test_rewind_drops_later_rows_and_a_half_written_line(tmp_path):
  """Steps 1-4 and half of 5 are there; the checkpoint was made at step 2."""
  with metrics.MetricsWriter(tmp_path) as writer:
    for step in range(5):
      writer.write(step, {'reward/mean': step / 10})
  with open(tmp_path / 'metrics.jsonl', 'a') as f:
    f.write('{"step": 5, "rewa')
  with metrics.MetricsWriter(tmp_path) as writer:
    writer.rewind(2)
    assert [row['step'] for row in _rows(tmp_path)] == [0, 1, 2]
    writer.write(3, {'reward/mean': 0.9})
  assert [row['step'] for row in _rows(tmp_path)] == [0, 1, 2, 3]
  assert _rows(tmp_path)[-1]['reward/mean'] == 0.9
  assert not list(tmp_path.glob('*.tmp'))


def test_rewind_tells_tensorboard_to_forget_the_later_steps(tmp_path):
  """TensorBoard purges steps >= the START event's: 3 after rewind(2)."""
  with metrics.MetricsWriter(tmp_path) as writer:
    writer.write(3, {'reward/mean': 0.5})
    writer.rewind(2)
    writer.write(3, {'reward/mean': 0.75})
  first, second = _event_files(tmp_path)
  assert _scalars(first) == [(3, 'reward/mean', 0.5)]
  assert _scalars(second) == [(3, 'reward/mean', 0.75)]
  (start,) = [e for e in _events(second) if e.HasField('session_log')]
  assert start.session_log.status == event_pb2.SessionLog.START
  assert start.step == 3  # 2 would purge a step that is kept


def test_rewind_of_a_fresh_workdir_makes_no_metrics_file(tmp_path):
  with metrics.MetricsWriter(tmp_path / 'new' / 'run') as writer:
    writer.rewind(0)
    assert not (tmp_path / 'new/run/metrics.jsonl').exists()


def test_a_line_after_a_half_written_one_stays_whole(tmp_path, caplog):
  """A killed run left '{"epo' at the end of pool.jsonl. Appending as it was
  merged the next event into that line, and both were lost to every reader."""
  path = tmp_path / 'pool.jsonl'
  path.write_text('{"id": 0}\n{"epo')
  with metrics.MetricsWriter(tmp_path) as writer:
    with caplog.at_level(logging.WARNING):
      writer.append_jsonl('pool', [{'id': 1}])
  assert path.read_text() == '{"id": 0}\n{"id": 1}\n'
  assert 'half-written' in caplog.text


def test_append_and_truncate_records(tmp_path):
  with metrics.MetricsWriter(tmp_path) as writer:
    writer.append_jsonl('pool', [])
    assert not (tmp_path / 'pool.jsonl').exists()
    writer.append_jsonl('pool', ({'id': i} for i in range(3)))
    writer.truncate_jsonl('pool', 2)
    writer.append_jsonl('pool', [{'id': 9}])
  records, num_bad = metrics.read_jsonl(tmp_path / 'pool.jsonl')
  assert (records, num_bad) == ([{'id': 0}, {'id': 1}, {'id': 9}], 0)


def test_truncate_reports_a_gap_and_goes_on(tmp_path, caplog):
  with metrics.MetricsWriter(tmp_path) as writer:
    writer.append_jsonl('pool', [{'id': 0}])
    with caplog.at_level(logging.WARNING):
      writer.truncate_jsonl('pool', 5)
      writer.truncate_jsonl('missing', 1)
  assert 'has 1 lines where the checkpoint counted 5' in caplog.text
  assert 'missing.jsonl has 0 lines' in caplog.text
  assert not (tmp_path / 'missing.jsonl').exists()


def test_records_of_any_text_and_numpy_values_are_plain_json(tmp_path):
  record = {
      'text': 'line\nbreak \ud800 \x00 é',
      'mean': np.float32(0.5),
      'variance': float('nan'),
      'counts': np.arange(2),
      3: (1, None),
  }
  with metrics.MetricsWriter(tmp_path) as writer:
    writer.append_jsonl('trajectories', [record])
  (read,), num_bad = metrics.read_jsonl(tmp_path / 'trajectories.jsonl')
  assert num_bad == 0
  assert read == {
      'text': 'line\nbreak \ud800 \x00 é',
      'mean': 0.5,
      'variance': None,
      'counts': [0, 1],
      '3': [1, None],
  }


def test_read_jsonl_counts_the_lines_it_leaves_out(tmp_path):
  path = tmp_path / 'x.jsonl'
  path.write_bytes(b'{"a": 1}\n[1]\nnull\n\xff\n' + b'[' * 9999 + b'\n{"a": ')
  assert metrics.read_jsonl(path) == ([{'a': 1}], 5)
  assert metrics.read_jsonl(tmp_path / 'missing') == ([], 0)


def test_every_row_survives_kill_9(tmp_path):
  """The writing process kills itself without closing: no row is lost."""
  code = (
      'import os, sys; from rods_jax import metrics\n'
      'writer = metrics.MetricsWriter(sys.argv[1])\n'
      'for step in range(3): writer.write(step, {"a/b": step})\n'
      f'os.kill(os.getpid(), {int(signal.SIGKILL)})\n'
  )
  command = [sys.executable, '-c', code, str(tmp_path)]
  result = subprocess.run(command, env={**os.environ, 'PYTHONPATH': '.'})
  assert result.returncode == -signal.SIGKILL
  assert [row['step'] for row in _rows(tmp_path)] == [0, 1, 2]
  (path,) = (tmp_path / 'tensorboard').iterdir()
  assert _scalars(path) == [(0, 'a/b', 0.0), (1, 'a/b', 1.0), (2, 'a/b', 2.0)]


class _Clock:
  """Seconds that pass only when a test says so."""

  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now


def test_nested_phases_count_each_second_once():
  """10 s of rollout, 3 s of them host work, 4 s update, 1 s between phases.

  Counting the host's seconds in both phases would give rollout 10 and a sum
  of 17 in a step that took 15.
  """
  clock = _Clock()
  timer = metrics.PhaseTimer(clock=clock)
  with timer.phase('rollout'):
    clock.now += 5
    with timer.phase('host'):
      clock.now += 3
    clock.now += 2
  clock.now += 1
  with timer.phase('update'):
    clock.now += 4
  assert timer.metrics() == {
      'time/rollout': 7.0,
      'time/host': 3.0,
      'time/update': 4.0,
      'time/total': 15.0,
      'time/host_share': 0.2,
  }


def test_the_timer_starts_every_step_at_zero_and_survives_errors():
  clock = _Clock()
  timer = metrics.PhaseTimer(clock=clock)
  with pytest.raises(KeyError):
    with timer.phase('rollout'):
      clock.now += 2
      raise KeyError
  assert timer.metrics()['time/rollout'] == 2.0
  clock.now += 1
  assert timer.metrics() == {'time/total': 1.0, 'time/host_share': 0.0}


def test_seconds_measured_elsewhere_move_out_of_the_open_phase():
  clock = _Clock()
  timer = metrics.PhaseTimer(host_phases=('tools', 'pack'), clock=clock)
  with timer.phase('rollout'):
    clock.now += 8
    timer.add('tools', 1.5)
  timer.add('pack', 0.5)
  result = timer.metrics()
  assert result['time/rollout'] == 6.5
  assert result['time/tools'] == 1.5
  assert result['time/host_share'] == (1.5 + 0.5) / 8
