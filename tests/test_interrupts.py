"""`python main.py`, stopped by signals and started again."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import pytest

from tests import tiny

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PATIENCE_S = 300  # a loaded machine is slow, not wrong


def start(policy, workdir, output):
  command = [
      sys.executable, 'main.py', '--config=tests/tiny.py',
      f'--workdir={workdir}',
      f'--config.model.init_from={policy / "policy.safetensors"}',
  ]
  env = {
      **os.environ,
      'JAX_COMPILATION_CACHE_DIR': jax.config.jax_compilation_cache_dir,
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  return subprocess.Popen(
      command, cwd=_ROOT, env=env, stdout=output, stderr=subprocess.STDOUT
  )


def wait_for(process, reached):
  """Until reached() holds; an error if the process ends before."""
  deadline = time.monotonic() + _PATIENCE_S
  while not reached():
    assert process.poll() is None, 'ended early'
    assert time.monotonic() < deadline, 'too slow'
    time.sleep(0.01)


def last_step(workdir) -> int:
  path = workdir / 'metrics.jsonl'
  lines = path.read_bytes().split(b'\n')[:-1] if path.exists() else []
  return json.loads(lines[-1])['step'] if lines else -1


def checkpoints(workdir) -> list[int]:
  folder = workdir / 'checkpoints'
  if not folder.exists():
    return []
  return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def synthesis_processes(workdir) -> list[int]:
  """Ids of processes that work in the folder for background synthesis."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    try:
      words = path.read_bytes().decode().split('\0')
    except OSError:  # it ended while we looked
      continue
    if str(workdir / 'synthesis') in words:
      found.append(int(path.parent.name))
  return found


@pytest.mark.slow
def test_terminated_killed_and_finished_equals_never_stopped(
    tiny_run, tiny_policy, tmp_path
):
  """SIGTERM in the first epoch, SIGKILL in the third, then the rest.

  The first sitting writes step 0, the evaluation before training; killed
  before its first checkpoint, it used to be written twice.
  """
  workdir = tmp_path / 'run'
  with open(tmp_path / 'output', 'w+') as output:
    process = start(tiny_policy, workdir, output)
    wait_for(process, lambda: last_step(workdir) == 0)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not checkpoints(workdir)

    process = start(tiny_policy, workdir, output)
    wait_for(process, lambda: last_step(workdir) in (1, 2))
    process.send_signal(signal.SIGTERM)
    assert process.wait(_PATIENCE_S) == 128 + signal.SIGTERM
    assert checkpoints(workdir) == [last_step(workdir)]

    end = 1 + tiny.last_step(tiny_run[1], epoch=1)
    process = start(tiny_policy, workdir, output)
    wait_for(process, lambda: last_step(workdir) >= end)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    committed = checkpoints(workdir)
    assert committed and committed[-1] >= end - 1
    deadline = time.monotonic() + 10
    while synthesis_processes(workdir) and time.monotonic() < deadline:
      time.sleep(0.05)
    assert not synthesis_processes(workdir)

    process = start(tiny_policy, workdir, output)
    assert process.wait(_PATIENCE_S) == 0
    output.seek(0)
    text = output.read()
  assert 'Traceback' not in text
  assert 'the same command continues' in text
  tiny.assert_same_logs(tiny_run[1], workdir)
  config = tiny.run_config(tiny_policy)
  tiny.assert_same(tiny_run[0], tiny.sit(config, workdir))


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once(tiny_policy, tmp_path):
  """No wait for the batch, no checkpoint, and no process left behind."""
  workdir = tmp_path / 'run'
  with open(tmp_path / 'output', 'w+') as output:
    process = start(tiny_policy, workdir, output)
    wait_for(process, lambda: synthesis_processes(workdir))
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    status = process.wait(60)
    output.seek(0)
    text = output.read()
  assert status in (128 + signal.SIGINT, -signal.SIGINT)
  assert 'Ctrl-C again stops at once' in text
  assert not checkpoints(workdir)
  assert not synthesis_processes(workdir)
