"""Episodes in other processes: the same results, whatever those do."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from rods_jax import errors
from rods_jax.host import env
from rods_jax.host import env_pool
from rods_jax.host import env_process
from rods_jax.host import rewards
from rods_jax.host import rollout
from rods_jax.host import tool_calls
from rods_jax.types import Status
from tests import scripted
from tests.scripted import files

ROOT = pathlib.Path(__file__).parents[1]
LIMITS = env.Limits(call_timeout_s=0.3)
# d holds copies of itself: du() takes 2^24 paths, of Python, so an alarm helps.
ENDLESS = ';'.join(f"cp('d', 'e{i}');mv('e{i}', 'd')" for i in range(24))


@pytest.fixture(scope='module')
def pools():
  """With one and with two processes."""
  with env_pool.EnvPool(1) as one, env_pool.EnvPool(2) as two:
    yield one, two


def calls(text):
  return tool_calls.parse(text)


def play(environments, jobs, say, num_slots=6, **limits):
  generator = scripted.Generator(say, num_slots)
  return rollout.rollout(
      jobs,
      generator,
      scripted.fmt(),
      rollout.Budgets(2_000, env.Limits(**limits)),
      environments=environments,
  ).trajectories


def same(one, other):
  """All fields, arrays bit by bit."""
  for field in dataclasses.fields(one):
    a, b = getattr(one, field.name), getattr(other, field.name)
    if isinstance(a, np.ndarray):
      assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), field.name
    else:
      assert a == b, field.name


# The same results.


def test_rollouts_are_the_same_with_0_1_and_2_processes(pools):
  """Ground truths of real tasks, silence, parse errors and wrong calls."""
  tasks = [t for t in scripted.sound_tasks() if t.category != 'long_context']
  odd = ['', 'pwd(', "cd('x');nothing()", 'pwd()']
  jobs = [
      rollout.Job(task, sample, uid=2 * i + sample)
      for i, task in enumerate([files(('pwd()',), ('ls()',)), *tasks[::80]])
      for sample in range(2)
  ]

  def say(uid, number, row):
    turns = jobs[uid].task.turns
    due = [';'.join(turn.ground_truth) for turn in turns]
    said = [m for text in due for m in (text, '')]
    said.insert(uid % 3, odd[uid % len(odd)])
    return scripted.spoken(said[number] if number < len(said) else '')

  found = [
      play(environments, jobs, say, call_timeout_s=20.0)  # also when loaded
      for environments in (env_pool.InProcess(), *pools)
  ]
  assert len(jobs) > 12 and len({t.progress for t in found[0]}) > 3
  for other in found[1:]:
    for a, b in zip(found[0], other, strict=True):
      same(a, b)
  assert all(not worker.live for pool in pools for worker in pool._workers)


def test_a_hang_that_the_alarm_stops_is_the_same(pools):
  """The process lives on, and so do its other episodes."""
  jobs = [rollout.Job(files(('pwd()',), ()), i, i) for i in range(2)]
  hang = f'{ENDLESS};du();pwd()'
  say = lambda uid, number, row: scripted.spoken(
      ['pwd()', '' if uid else hang, ''][number]
  )
  found = [
      play(environments, jobs, say, call_timeout_s=1.0)
      for environments in (env_pool.InProcess(), *pools)
  ]
  assert [t.status for t in found[0]] == [Status.ENV_TIMEOUT, Status.DONE]
  for other in found[1:]:
    for a, b in zip(found[0], other, strict=True):
      same(a, b)
  assert [pool.num_restarts for pool in pools] == [0, 0]


def test_an_episode_looks_the_same(pools):
  """Counters, scores, refusals and endings of the two kinds."""
  task = files(('pwd()',), (), ("touch('b')",))
  pair = env.Episode(task), pools[1].start(task, env.Limits())
  for e in pair:
    assert e.execute([]) == []
    e.parse_error('x')
    results = e.execute(calls("pwd();cat('nope');foo()"))
    assert [r.ok for r in results] == [True, False, False]
    assert e.end_turn().score == 1
    e.execute(calls('pwd()'))
    assert e.end_turn(forced=True).reason == rewards.FORCED
    e.abandon('')
    e.abandon('again')
    for action in (e.end_turn, e.on_offer, lambda e=e: e.execute([])):
      with pytest.raises(RuntimeError, match='the episode is over'):
        action()
  names = ('turn', 'scores', 'num_calls', 'num_tool_errors', 'done', 'broken',
           'num_parse_errors', 'num_rounds', 'turn_rounds', 'rounds_left')
  for name in names:
    assert getattr(pair[0], name) == getattr(pair[1], name), name


# Processes that die or hang.


def two_rounds(pool, between, number=4):
  """pwd, then `between`, then ls and the end in each of some episodes."""
  task = files(('cd(folder="d")', 'pwd()'), ())
  episodes = [pool.start(task, LIMITS) for _ in range(number)]
  first = pool.execute([(e, calls("cd(folder='d')")) for e in episodes])
  between(pool)
  second = pool.execute([(e, calls('pwd()')) for e in episodes])
  scores = [[e.end_turn(), e.end_turn()] for e in episodes]
  return first, second, scores


def test_an_idle_process_that_is_killed_costs_nothing(caplog):
  """Its episodes are played again: both are still in folder d."""
  def kill(pool):
    os.kill(pool.pids[0], signal.SIGKILL)
    pool._workers[0].process.wait()  # until then it may still be sent to

  with env_pool.EnvPool(2) as pool:
    expected = two_rounds(env_pool.InProcess(), lambda pool: None)
    old = pool.pids
    assert two_rounds(pool, kill) == expected
    assert expected[1][0][0].text == '{"current_working_directory": "/w/d"}'
    assert pool.num_restarts == 1
    assert pool.pids[0] != old[0] and pool.pids[1] == old[1]
    assert two_rounds(pool, lambda pool: None) == expected  # it goes on
  assert 'no call was running' in caplog.text


def test_a_killed_process_costs_the_trajectory_at_work(caplog):
  """Killed in the middle of an endless call; its neighbours go on."""
  task = files(('pwd()',), ('ls()',))
  limits = env.Limits(call_timeout_s=60.0)
  with env_pool.EnvPool(1) as pool:
    bad, good = (pool.start(task, limits) for _ in range(2))
    pool.execute([(good, calls('pwd()'))])
    killer = threading.Timer(
        1.0, lambda pid=pool.pids[0]: os.kill(pid, signal.SIGKILL)
    )
    killer.start()
    results = pool.execute([
        (bad, calls(f'{ENDLESS};du();pwd()')), (good, calls("cd('d');pwd()"))
    ])
    killer.join()
    assert [r.timeout for r in results[0]] == [False] * 48 + [True] * 2
    assert results[0][48].text == (
        'Error during execution: the process of the environment ended'
    )
    assert results[0][49].text == 'Not executed: an earlier call timed out.'
    assert results[1][1].text == '{"current_working_directory": "/w/d"}'
    assert bad.broken and not good.broken
    assert bad.end_turn().reason == rewards.TIMEOUT
    assert good.end_turn().score == 1  # 'pwd()' was seen before the kill
    assert (bad.num_calls, bad.num_tool_errors) == (48, 2)
    assert pool.num_restarts == 1
  assert 'made ends as ENV_TIMEOUT' in caplog.text


def test_a_stopped_process_is_replaced_after_the_grace():
  """SIGSTOP stands for one endless C operation: no alarm gets through."""
  task = files(('pwd()',), ())
  with env_pool.EnvPool(1, grace_s=0.5) as pool:
    episodes = [pool.start(task, LIMITS) for _ in range(3)]
    pool.execute([(e, calls('pwd()')) for e in episodes])
    os.kill(pool.pids[0], signal.SIGSTOP)
    begin = time.monotonic()
    results = pool.execute([(e, calls('ls();pwd()')) for e in episodes])
    assert 0.8 <= time.monotonic() - begin  # 0.3 for the call, 0.5 more
    assert [[r.timeout for r in part] for part in results] == [
        [True, True], [False, False], [False, False]
    ]
    assert results[0][0].text == (
        'Error during execution: stopped after 0.3 seconds'
    )
    assert [e.end_turn().score for e in episodes] == [0, 1, 1]


def test_an_endless_c_operation_in_a_rollout(tmp_path, monkeypatch):
  """No alarm gets into it, as into power(9, 200000000) of older Pythons.

  What is known of that kind is refused (simulators._refuse_endless); du()
  stands for the next one that nobody thought of.
  """
  (tmp_path / 'sitecustomize.py').write_text(
      'import signal, time\n'
      'import rods_jax.host.simulators as s\n'
      'def hang(name, *args):\n'
      "  if name == 'du':\n"
      '    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n'
      '    time.sleep(600)\n'
      's._refuse_endless = hang\n'
  )
  monkeypatch.setenv('PYTHONPATH', f'{tmp_path}:{ROOT}')
  task = files(('pwd()',), ())
  messages = [
      ['pwd()', '', ''],
      ['pwd()', 'du()', '', ''],
      ['pwd()', '', 'ls()', ''],
  ]
  say = lambda uid, number, row: scripted.spoken(messages[uid][number])
  jobs = [rollout.Job(task, i, i) for i in range(3)]
  with env_pool.EnvPool(1, grace_s=0.5) as pool:
    found = play(pool, jobs, say, call_timeout_s=0.3)
    assert pool.num_restarts == 1
  assert [t.status for t in found] == [
      Status.DONE, Status.ENV_TIMEOUT, Status.DONE
  ]
  assert [t.progress for t in found] == [1.0, 0.0, 0.5]
  assert found[1].turn_scores[0].reason == rewards.TIMEOUT
  # The same without that trajectory in a process that never died.
  alone = play(env_pool.InProcess(), jobs[:1], say)
  same(found[0], alone[0])


def test_a_process_lost_while_it_scores():
  """end_turn has no results to carry the news: the status must."""
  task = files(('pwd()',), ())
  with env_pool.EnvPool(1, grace_s=0.2) as pool:
    pool.execute([(pool.start(task, LIMITS), calls('pwd()'))])  # it is up

    def say(uid, number, row):
      if uid == 0 and number == 1:
        os.kill(pool.pids[0], signal.SIGSTOP)
      return scripted.spoken(['pwd()', '', ''][number])

    jobs = [rollout.Job(task, i, i) for i in range(2)]
    found = play(pool, jobs, say, call_timeout_s=0.3)
  assert [t.status for t in found] == [Status.ENV_TIMEOUT, Status.DONE]
  assert [s.reason for s in found[0].turn_scores] == [rewards.TIMEOUT] * 2
  assert found[1].progress == 1.0


def test_a_process_that_never_starts_is_one_clear_line(monkeypatch):
  monkeypatch.setattr(env_process, '_MODULE', 'rods_jax.no_such_module')
  with env_pool.EnvPool(1) as pool:
    episode = None
    with pytest.raises(errors.UserError, match='do not start .*env_workers=0'):
      episode = pool.start(files(('pwd()',)), LIMITS)
      episode.end_turn()


def test_a_process_that_always_dies_ends_the_run(monkeypatch, tmp_path):
  """Else every trajectory would score 0, and the run learn from that."""
  (tmp_path / 'sitecustomize.py').write_text(
      'import os, rods_jax.host.env as e\n'
      'e.Episode = lambda *args: os._exit(7)\n'
  )
  monkeypatch.setenv('PYTHONPATH', f'{tmp_path}:{ROOT}')
  with env_pool.EnvPool(1) as pool:
    with pytest.raises(errors.UserError, match='ended 5 times in a row'):
      for _ in range(9):
        pool.start(files(('pwd()',)), LIMITS).end_turn()


def test_what_a_process_raises_is_raised_here(pools):
  """A ground truth that is none: in this process a ParseError."""
  with env_pool.EnvPool(1) as pool:
    with pytest.raises(RuntimeError, match='ParseError'):
      pool.start(files(('pwd(x)',)), LIMITS).end_turn()


# The processes themselves.


def test_a_process_that_cannot_be_made_ends_those_before(monkeypatch):
  """The first of two once lived on when the second could not be started."""
  made, spawn = [], env_process.Process.spawn

  def spawn_one(self):
    if made:
      raise OSError('no more processes')
    spawn(self)
    made.append(self.process)

  monkeypatch.setattr(env_process.Process, 'spawn', spawn_one)
  with pytest.raises(OSError, match='no more'):
    env_pool.EnvPool(2)
  assert made[0].poll() is not None


def test_processes_are_light_and_leave():
  """Neither jax nor the training program; gone when the pool is closed."""
  code = (
      'import sys, rods_jax.host.env_worker; print([m for m in sys.modules '
      "if m.split('.')[0] in ('jax', 'jaxlib', 'flax', 'absl', 'orbax')])"
  )
  shown = subprocess.run(
      [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True,
      check=True,
  ).stdout
  assert shown.strip() == '[]'
  pool = env_pool.EnvPool(2)
  pids = pool.pids
  pool.start(files(('pwd()',)), LIMITS).end_turn()
  pool.close()
  for pid in pids:
    with pytest.raises(ProcessLookupError):
      os.kill(pid, 0)


@pytest.mark.skipif(sys.platform != 'linux', reason='prctl is Linux')
def test_a_process_ends_with_its_parent():
  """Also while a call hangs: SIGSTOP, which only a kill by the kernel ends."""
  code = (
      'import os, signal, sys\n'
      'from rods_jax.host import env_pool\n'
      'from tests.test_env_pool import LIMITS, files\n'
      'pool = env_pool.EnvPool(1)\n'
      "pool.start(files(('pwd()',)), LIMITS).end_turn()\n"
      'os.kill(pool.pids[0], signal.SIGSTOP)\n'
      'print(pool.pids[0], flush=True)\n'
      'os.kill(os.getpid(), signal.SIGKILL)\n'
  )
  out = subprocess.run(
      [sys.executable, '-c', code], cwd=ROOT, stdout=subprocess.PIPE, text=True
  ).stdout
  deadline = time.monotonic() + 20
  while time.monotonic() < deadline:
    if not _runs(int(out)):
      return
    time.sleep(0.05)
  os.kill(int(out), signal.SIGKILL)
  pytest.fail('the process outlived its parent')


def _runs(pid: int) -> bool:
  """False once it is gone, or a zombie that nobody reaps."""
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except FileNotFoundError:
    return False
  return stat.rpartition(')')[2].split()[0] not in 'ZX'
