"""Synthesis in its own process survives kills and never sees jax."""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from rods_jax.host import bfcl
from rods_jax.host.synthesis import background, pipeline

TASKS = bfcl.load_tasks(('base',))
WAIT_S = 60.0


def request(scenarios=(0, 81, 184), per_seed=2, epoch=0):
  seeds = tuple(TASKS[f'multi_turn_base_{i}'] for i in scenarios)
  return pipeline.Request(epoch, seeds, per_seed, rng_seed=5)


def long_request():
  """Some seconds of work, so that a signal finds the child in its middle."""
  return request(range(0, 200, 2), per_seed=6)


def wait_until(condition, what):
  deadline = time.monotonic() + WAIT_S
  while not condition():
    assert time.monotonic() < deadline, what
    time.sleep(0.01)


def is_running(pid):
  """The process exists and is no zombie."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as f:
      return f.read().rsplit(')', 1)[1].split()[0] != 'Z'
  except FileNotFoundError:
    return False


def same(tasks, expected):
  """Tuples become lists in JSON, so compare what is played and the parent."""
  return [(t.task_id, t.content_hash(), t.parent) for t in tasks] == [
      (t.task_id, t.content_hash(), t.parent) for t in expected
  ]


def test_results_equal_those_of_this_process(tmp_path):
  first, second = request(), request(epoch=1)
  with background.Background(tmp_path) as work:
    assert work.collect(0.0) is None
    work.submit(first)
    work.submit(second)
    assert work.pending == (first, second)
    for expected in (first, second):
      tasks, report = work.collect(WAIT_S)
      variants, own = pipeline.run_request(expected)
      assert same(tasks, variants) and report == own
    assert work.pending == ()
    assert work.collect(0.0) is None
    assert not list(tmp_path.iterdir())


def test_a_killed_child_is_replaced_once(tmp_path):
  """kill -9 in the middle of a request: the same variants, a fresh child."""
  with background.Background(tmp_path) as work:
    work.submit(long_request())
    first = work.pid
    time.sleep(1.0)
    os.kill(first, signal.SIGKILL)
    tasks, _ = work.collect(WAIT_S)
    assert work.pid != first and not is_running(first)
  assert same(tasks, pipeline.run_request(long_request())[0])


def test_a_second_kill_falls_back_to_this_process(tmp_path, caplog):
  with background.Background(tmp_path) as work:
    work.submit(long_request())
    os.kill(work.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(work.pid), 'first child lives on')
    assert work.collect(0.0) is None  # Starts the second child.
    os.kill(work.pid, signal.SIGKILL)
    tasks, _ = work.collect(WAIT_S)
    assert 'running the request in the main process' in caplog.text
    assert same(tasks, pipeline.run_request(long_request())[0])
    work.submit(request())  # The third child works on.
    assert work.collect(WAIT_S) is not None


def test_a_kill_between_requests_loses_nothing(tmp_path):
  with background.Background(tmp_path) as work:
    work.submit(request())
    assert work.collect(WAIT_S)
    os.kill(work.pid, signal.SIGKILL)
    work.submit(request(epoch=1))
    tasks, _ = work.collect(WAIT_S)
  assert same(tasks, pipeline.run_request(request(epoch=1))[0])


def test_files_of_another_run_are_never_read(tmp_path):
  """A variant came with the parent that a former run had made it from.

  Tasks were files named by their content, which leaves the parent out, and a
  file that was there already was not written again.
  """
  own = pipeline.run_request(request())[0]
  for task in own:
    left = dataclasses.replace(task, parent='of a former run')
    (tmp_path / f'{task.task_id}.json').write_text(json.dumps(left.to_json()))
  result = {'tasks': [], 'report': pipeline.Report().to_json()}
  for name in (f'request_{os.getpid()}_000000', 'request_1_000000'):
    (tmp_path / f'{name}.result.json').write_text(json.dumps(result))
  partial = tmp_path / '.request_1_000001.result.json.99.partial'
  partial.write_text('{"tas')
  with background.Background(tmp_path) as work:
    work.submit(request())
    tasks, _ = work.collect(WAIT_S)
  assert same(tasks, own)
  assert not list(tmp_path.glob('*request_*'))


def test_a_child_that_cannot_write_leaves_the_work_to_the_parent(
    tmp_path, caplog, capfd, monkeypatch
):
  """A full disk printed the child's traceback twice, over the progress bar."""
  # Nor may the child leave truncated bytecode of what it imports.
  monkeypatch.setenv('PYTHONDONTWRITEBYTECODE', '1')
  with background.Background(tmp_path) as work:
    first = work.pid
    resource.prlimit(first, resource.RLIMIT_FSIZE, (100, 100))
    work.submit(request())
    work.submit(request(epoch=1))
    tasks, report = work.collect(WAIT_S)
    expected, own = pipeline.run_request(request())
    assert same(tasks, expected) and report == own
    assert work.pid not in (None, first)
    tasks, _ = work.collect(WAIT_S)  # by the new child
    assert same(tasks, pipeline.run_request(request(epoch=1))[0])
    assert not list(tmp_path.iterdir())
  [line] = caplog.messages
  assert str(tmp_path) in line and 'cannot write' in line
  assert capfd.readouterr().err == ''


def test_close_is_idempotent_and_leaves_no_zombie(tmp_path):
  work = background.Background(tmp_path)
  pid = work.pid
  work.submit(long_request())
  work.close()
  work.close()
  assert work.pid is None and not is_running(pid)
  assert len(work.pending) == 1 and not list(tmp_path.iterdir())
  with pytest.raises(RuntimeError, match='closed'):
    work.submit(request())


def test_close_after_a_kill(tmp_path):
  work = background.Background(tmp_path)
  os.kill(work.pid, signal.SIGKILL)
  work.close()
  work.close()


_SCRIPT = """
import os, signal, sys, time
from rods_jax.host import bfcl
from rods_jax.host.synthesis import background, pipeline
if __name__ == '__main__':
  signal.signal(signal.SIGINT, lambda *_: None)
  task = bfcl.load_tasks(('base',))['multi_turn_base_81']
  work = background.Background(sys.argv[1])
  work.submit(pipeline.Request(0, (task,) * 40, 8, 5))
  time.sleep(2.0)
  os.killpg(0, signal.SIGINT)
  tasks, report = work.collect(60.0)
  print(len(tasks), work.pid, flush=True)
  work.close()
"""


def test_ctrl_c_is_the_parents_business(tmp_path):
  """SIGINT reaches the whole process group; the child's work must finish."""
  script = tmp_path / 'run.py'
  script.write_text(_SCRIPT)
  done = subprocess.run(
      [sys.executable, str(script), str(tmp_path / 'out')],
      capture_output=True, text=True, timeout=120, start_new_session=True,
      env={**os.environ, 'PYTHONPATH': os.getcwd()}, check=True,
  )  # pyformat: disable
  assert int(done.stdout.split()[0]) > 100
  assert 'Traceback' not in done.stderr


_TRAINS = """
import sys
import jax  # As the training program does, at the top of its main module.
from rods_jax.host import bfcl
from rods_jax.host.synthesis import background, pipeline
task = bfcl.load_tasks(('base',))['multi_turn_base_81']
work = background.Background(sys.argv[1])
work.submit(pipeline.Request(0, (task,), 2, 5))
work.collect(60.0)
for pid in ('self', work.pid):
  libraries = open(f'/proc/{pid}/maps').read()
  print('numpy' in libraries, 'jaxlib' in libraries)
work.close()
"""


def test_the_child_never_imports_jax(tmp_path):
  """multiprocessing's spawn imports the parent's main module in the child.

  So a main module that imports jax brought jax into every child, and a test
  under pytest, whose main module is pytest's, could not see it. Look at the
  libraries that the child has loaded, under a main module that has no guard.
  """
  script = tmp_path / 'train.py'
  script.write_text(_TRAINS)
  done = subprocess.run(
      [sys.executable, str(script), str(tmp_path / 'out')],
      capture_output=True, text=True, timeout=120,
      env={**os.environ, 'PYTHONPATH': os.getcwd()}, check=True,
  )  # pyformat: disable
  assert done.stdout.split('\n')[:2] == ['True True', 'True False']


def test_the_child_leaves_when_the_parent_is_killed(tmp_path):
  script = tmp_path / 'run.py'
  script.write_text(
      'import os, sys\n'
      'from rods_jax.host.synthesis import background\n'
      'work = background.Background(sys.argv[1])\n'
      'print(work.pid, flush=True)\n'
      'os.kill(os.getpid(), 9)\n'
  )
  done = subprocess.run(
      [sys.executable, str(script), str(tmp_path / 'out')],
      capture_output=True, text=True, timeout=60,
      env={**os.environ, 'PYTHONPATH': os.getcwd()}, check=False,
  )  # pyformat: disable
  pid = int(done.stdout)
  wait_until(lambda: not is_running(pid), 'the child outlives its parent')
