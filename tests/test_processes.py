"""Two processes train what one trains; one that dies ends the other."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time
import types as python_types

import jax
from jax.experimental import multihost_utils
import numpy as np
import pytest

from rods_jax import exchange
from rods_jax import processes
from rods_jax import sharding
from rods_jax import types
from tests import tiny

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Three epochs, so that the first variants play in the last one. Few draws,
# because one in a thousand falls so close to the border of two tokens that the
# order of sums decides (see test_train_sharded.py).
_FIELDS = {
    'rng_seed': 1,
    'data.num_seed_tasks': 4,
    'rollout.max_rounds': 1,
    'rollout.max_message_tokens': 3,
    'rollout.cache_buckets': (512,),
    'grpo.length_buckets': (512,),
    'grpo.minibatch_groups': 4,
    'grpo.microbatch_rows': 8,
    'grpo.learning_rate': 1e-4,
    'grpo.kl_coef': 0.0,
    'eval.num_variants': 0,
    'train.num_epochs': 3,
}
_BOUND_S = 60  # from the death of one process to the end of the other


def _start(policy, workdir, number, total, address, *more, fields=_FIELDS):
  """Process `number` of a run, by its command line."""
  arguments = [f'--config.{name}={value}' for name, value in fields.items()]
  if total > 1:
    arguments += [
        f'--coordinator={address}', f'--num_processes={total}',
        f'--process_id={number}',
    ]
  env = {
      **os.environ,
      'JAX_PLATFORMS': 'cpu',
      'XLA_FLAGS': f'--xla_force_host_platform_device_count={2 // total}',
      'JAX_COMPILATION_CACHE_DIR': jax.config.jax_compilation_cache_dir,
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  return subprocess.Popen(
      [sys.executable, 'main.py', '--config=tests/tiny.py',
       f'--config.model.init_from={policy / "policy.safetensors"}',
       '--noconfig.eval.before', f'--workdir={workdir}', *arguments, *more],
      cwd=_ROOT, env=env, text=True, stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
  )


def _pair(policy, workdir, *more, both=(), fields=_FIELDS):
  """Both processes; `more` are flags of the second alone."""
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  return [
      _start(
          policy, workdir, k, 2, address, *both, *(more if k else ()),
          fields=fields,
      )
      for k in range(2)
  ]


def _ends(children, timeout=600):
  """(exit status, stdout, stderr) of each."""
  try:
    output = [child.communicate(timeout=timeout) for child in children]
  finally:  # of a test that fails, too, nothing runs on
    for child in children:
      child.kill()
  return [
      (child.returncode, *texts) for child, texts in zip(children, output)
  ]


def _await(path, children, timeout=600):
  deadline = time.monotonic() + timeout
  while not path.exists() and time.monotonic() < deadline:
    if any(child.poll() is not None for child in children):
      break
    time.sleep(0.05)
  if not path.exists():
    raise AssertionError(f'no {path}', _ends(children, 1))


def _assert_close(one: pathlib.Path, two: pathlib.Path):
  """The same tokens, rewards, pool; sums in another order."""
  shown = [tiny.rows(folder, 'trajectories') for folder in (one, two)]
  logprobs = [[t.pop('logprobs') for t in lines] for lines in shown]
  assert shown[0] == shown[1] and shown[0]
  for a, b in zip(*logprobs):
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-4)  # rounded to 1e-4
  metrics = [tiny.rows(folder) for folder in (one, two)]
  assert len(metrics[0]) == len(metrics[1]) > 3
  for a, b in zip(*metrics):
    assert a.keys() == b.keys()
    for key in a:
      if key.startswith('loss/'):
        np.testing.assert_allclose(b[key], a[key], 2e-3, 1e-5, err_msg=key)
      else:
        assert a[key] == b[key], key
  assert any(row.get('pool/injected') for row in metrics[0])
  for a, b in zip(*(tiny.rows(folder, 'pool') for folder in (one, two))):
    assert a == b
  scores = [json.loads((f / 'eval.json').read_text()) for f in (one, two)]
  assert scores[0] == scores[1]


@pytest.mark.slow
def test_two_processes_one_of_which_is_killed(tiny_policy, tmp_path):
  """After the first checkpoint; the same commands finish the run.

  The result is that of one process with two devices, the same mesh.
  """
  one = _start(tiny_policy, tmp_path / 'one', 0, 1, '')
  pair = _pair(tiny_policy, tmp_path / 'two')
  _await(tmp_path / 'two/checkpoints/1', pair)
  begin = time.monotonic()
  pair[1].kill()
  status, _, err = _ends(pair[:1], _BOUND_S)[0]
  assert time.monotonic() - begin < _BOUND_S
  assert status == 1 and 'Traceback' not in err, err
  lines = [line for line in err.splitlines() if line.startswith('Error')]
  assert lines == [
      'Error: process 1 of 2 has ended, so this one stops too; the output of '
      'that one says why. The same commands continue from the last checkpoint.'
  ], err
  _ends(pair[1:])
  for status, out, err in _ends(_pair(tiny_policy, tmp_path / 'two')):
    assert status == 0, err
  assert 'Report' not in out  # the first says where it is, the second nothing
  assert _ends([one])[0][0] == 0
  _assert_close(tmp_path / 'one', tmp_path / 'two')


def test_two_processes_evaluate_what_one_does(
    tiny_run, tiny_policy, tmp_path
):
  """The newest checkpoint; process 0 alone writes."""
  workdir = tmp_path / 'run'
  shutil.copytree(tiny_run[1], workdir)
  (workdir / 'eval.json').unlink()
  pair = _pair(tiny_policy, workdir, both=['--mode=evaluate'], fields={})
  (status, shown, err), other = _ends(pair)
  assert status == 0 and 'heldout_scenarios' in shown, err
  assert other[0] == 0 and 'heldout' not in other[1], other  # Gloo speaks
  for path in sorted(p for p in tiny_run[1].rglob('*') if p.is_file()):
    same = workdir / path.relative_to(tiny_run[1])
    assert same.read_bytes() == path.read_bytes(), same
  names = [sorted(p.name for p in f.iterdir()) for f in (workdir, tiny_run[1])]
  assert names[0] == names[1]
  scores = json.loads((workdir / 'eval.json').read_text())['splits']
  assert any(split['all']['progress'] for split in scores.values())


def test_another_configuration_is_noticed(tiny_policy, tmp_path):
  """Both would wait for each other in different programs."""
  ends = _ends(_pair(
      tiny_policy, tmp_path / 'run', '--config.rollout.group_size=2'
  ))
  assert [status for status, _, _ in ends] == [1, 1], ends
  assert (
      'Error: config.rollout.group_size is 2 in process 1 and 4 in process 0; '
      'start all with the same flags.'
  ) in ends[1][2].splitlines()
  assert 'Error: process 1 of 2 has ended' in ends[0][2]
  assert not (tmp_path / 'run/config.json').exists()


@pytest.fixture
def watched(monkeypatch):
  """(Watch, its peers' ends, what it would have exited with)."""
  found, made = [], []

  def leave(status, message=''):
    found.append((status, message))
    threading.Event().wait()  # as the thread of a process that is no more

  monkeypatch.setattr(processes, '_exit', leave)

  def make(*numbers, own=1, silence_s=30.0):
    pairs = {number: socket.socketpair() for number in numbers}
    mine = {number: pair[0] for number, pair in pairs.items()}
    made.append(processes.Watch(mine, own, 3, silence_s))
    return made[-1], {number: pair[1] for number, pair in pairs.items()}, found

  yield make
  for watch in made:
    watch.close()


def _message(found):
  deadline = time.monotonic() + 10
  while not found and time.monotonic() < deadline:
    time.sleep(0.01)
  (status, message), = found
  assert status == 1 and message.count('\n') == 1
  return message


def test_a_closed_connection_is_a_dead_process(watched):
  _, peers, found = watched(1, 2, own=0)
  peers[2].sendall(b'\n\n')
  peers[2].close()
  assert _message(found).startswith('Error: process 2 of 3 has ended, so')
  assert b'lost 2\n' in peers[1].recv(64)  # the other one hears of it


def test_who_is_lost_is_passed_on(watched):
  _, peers, found = watched(0)
  peers[0].sendall(b'\nlost 2\n')
  assert _message(found).startswith('Error: process 2 of 3 has ended, so')


def test_who_is_lost_itself_does_not_look_elsewhere(watched):
  """It had been suspended; it then sent its reader to its own output."""
  _, peers, found = watched(0, own=2)
  peers[0].sendall(b'lost 2\n')
  assert _message(found).startswith(
      'Error: the others have not heard of this process, 2 of 3, and have '
      'ended, so it stops too. The same'
  )


def test_silence_is_noticed(watched):
  _, _, found = watched(1, own=0, silence_s=0.2)
  assert 'process 1 of 3 has been silent for 0 s' in _message(found)


def test_an_orderly_end_is_not_missed(watched):
  watch, peers, found = watched(1, 2, own=0)
  peers[1].sendall(b'goodbye\n')
  peers[1].close()
  time.sleep(0.2)
  assert not found
  watch.close()
  peers[2].close()
  time.sleep(0.2)
  assert not found


def _trajectory(task, sample):
  rng = np.random.default_rng([len(task.turns), sample])
  size = 3 + sample
  mask = np.arange(size) > 1
  return types.Trajectory(
      task_id=task.task_id, sample=sample,
      tokens=rng.integers(0, 9, size).astype(np.int32), loss_mask=mask,
      logprobs=np.where(mask, -rng.random(size), 0).astype(np.float32),
      turn_scores=tuple(
          types.TurnScore(k % 3 > 0, k % 2 > 0, '' if k % 2 else 'wrong')
          for k in range(len(task.turns))
      ),
      status=types.Status.MAX_ROUNDS, policy_version=7, num_rounds=2,
      num_calls=3, num_tool_errors=4, num_parse_errors=5,
      events=(types.Event(0, 'user', 'text'),),
  )


def test_trajectories_cross_as_numbers(monkeypatch):
  """Three tasks, two processes: the first plays two of them."""
  tasks = [
      types.Task(f't{n}', 'base', n, (), {}, (types.Turn('', ()),) * n)
      for n in (1, 31, 4)
  ]
  made = [[_trajectory(task, k) for k in range(2)] for task in tasks]
  shares = [made[0] + made[1], made[2]]
  sent = []
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  for index in (0, 1):
    monkeypatch.setattr(jax, 'process_index', lambda: index)
    monkeypatch.setattr(
        multihost_utils, 'process_allgather', lambda x: sent.append(x) or
        jax.tree.map(lambda *both: np.stack(both), *(sent * 2)[:2])
    )
    assert exchange.share(3) == (slice(0, 2), slice(2, 3))[index]
    exchange.gather_trajectories(shares[index], tasks, 2, 16)
  monkeypatch.setattr(jax, 'process_index', lambda: 0)
  monkeypatch.setattr(
      multihost_utils, 'process_allgather',
      lambda x: jax.tree.map(lambda *both: np.stack(both), *sent),
  )
  found = exchange.gather_trajectories(shares[0], tasks, 2, 16)
  assert found[:4] == shares[0] and len(found) == 6
  for got, want in zip(found[4:], made[2]):
    for name in ('tokens', 'loss_mask', 'logprobs'):
      np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
      assert getattr(got, name).dtype == getattr(want, name).dtype
    assert (got.progress, got.correct) == (0.5, False)
    for name in ('task_id', 'sample', 'status', 'policy_version', 'num_rounds',
                 'num_calls', 'num_tool_errors', 'num_parse_errors'):
      assert getattr(got, name) == getattr(want, name), name
    flags = [(s.state_ok, s.response_ok) for s in got.turn_scores]
    assert flags == [(s.state_ok, s.response_ok) for s in want.turn_scores]
    assert got.events == ()
  long = types.Task('t', 'base', 0, (), {}, (types.Turn('', ()),) * 32)
  with pytest.raises(ValueError, match='t has 32 turns; at most 31 cross'):
    exchange.gather_trajectories([_trajectory(long, 0)], [long], 1, 16)


def test_heads_are_not_cut_across_processes(monkeypatch):
  device = lambda process: python_types.SimpleNamespace(process_index=process)
  devices = np.array([[[device(0), device(1)]]])
  mesh = python_types.SimpleNamespace(devices=devices, shape={'tensor': 2})
  assert sharding.local_mesh(mesh) is mesh  # one process has them all
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  with pytest.raises(ValueError, match='mesh.tensor is 2, which the 1 device'):
    sharding.local_mesh(mesh)
