"""Rollouts over several generators: the same rows, and no one waits."""

import dataclasses
import threading

import pytest

from rods_jax.host import env
from rods_jax.host import env_pool
from rods_jax.host import rollout
from rods_jax.host import side_by_side
from tests import scripted

BUDGETS = rollout.Budgets(500, env.Limits())


def jobs_of(num_groups, samples=3):
  task = scripted.files(('pwd()',), ('ls()',))
  return [
      rollout.Job(
          dataclasses.replace(task, task_id=f'task {k}'), i, k * samples + i
      )
      for k in range(num_groups)
      for i in range(samples)
  ]


def varied(uid, number, row):
  """Depends on the row's own stream alone; a turn ends now and then."""
  del row
  if number % 3 == 2:
    return scripted.spoken('')
  return scripted.spoken('pwd();' * (uid % 4 + 1))


def play(jobs, generators, environments=env_pool.InProcess()):
  return side_by_side.rollout(
      jobs, generators, scripted.fmt(), BUDGETS, policy_version=7,
      environments=environments,
  )


@pytest.mark.parametrize('number', [2, 3])
@pytest.mark.parametrize('num_slots', [1, 4])
def test_the_rows_are_those_of_one_generator(number, num_slots):
  jobs = jobs_of(5)
  wanted = play(jobs, [scripted.Generator(varied)])
  found = play(
      jobs, [scripted.Generator(varied, num_slots) for _ in range(number)]
  )
  assert found.sampled_tokens == wanted.sampled_tokens > 0
  assert found.row_tokens == wanted.row_tokens
  pairs = zip(jobs, found.trajectories, wanted.trajectories, strict=True)
  for job, row, one in pairs:
    assert (row.task_id, row.sample) == (job.task.task_id, job.sample)
    assert row.policy_version == 7
    assert row.tokens.tolist() == one.tokens.tolist()
    assert row.logprobs.tolist() == one.logprobs.tolist()
    assert row.turn_scores == one.turn_scores and row.events == one.events


def test_whole_groups_are_dealt_in_turn():
  """So each prompt is prefilled once: groups of 3, 3, 3 for two generators."""
  jobs = jobs_of(3)
  assert side_by_side.deal(jobs, 2) == [[0, 1, 2, 6, 7, 8], [3, 4, 5]]
  generators = [scripted.Generator(varied, 8) for _ in range(2)]
  play(jobs, generators)
  assert [sorted(g.rows) for g in generators] == [
      [0, 1, 2, 6, 7, 8], [3, 4, 5]
  ]
  assert [g.count('copy') for g in generators] == [2, 1]


@pytest.mark.parametrize('num_jobs', [0, 1])
def test_a_generator_without_jobs_is_left_alone(num_jobs):
  generators = [scripted.Generator(varied) for _ in range(3)]
  result = play(jobs_of(1)[:num_jobs], generators)
  assert len(result.trajectories) == num_jobs
  assert [bool(g.log) for g in generators] == [bool(num_jobs), False, False]


class _Patient(scripted.Generator):
  """Its first decode ends only when `event` is set."""

  def __init__(self, event, *args):
    super().__init__(*args)
    self.event = event

  def _decode(self, budgets, min_running):
    assert self.event.wait(60), 'the others wait for this generator'
    return super()._decode(budgets, min_running)


class _Telling(env_pool.InProcess):
  """Sets the event at its third message with calls."""

  def __init__(self, event):
    self.event, self.left = event, 3

  def execute(self, batch):
    self.left -= len(batch)
    if self.left <= 0:
      self.event.set()
    return super().execute(batch)


def test_tools_run_while_another_generator_decodes():
  """The first decodes until the second has played three messages."""
  event = threading.Event()
  generators = [_Patient(event, varied), scripted.Generator(varied)]
  result = play(jobs_of(2, 1), generators, _Telling(event))
  assert all(t.tokens.size for t in result.trajectories)


def test_the_host_works_in_one_thread():
  """Alarms, which limit a call's time, work in the main thread alone."""
  threads = set()

  class Noting(env_pool.InProcess):

    def execute(self, batch):
      threads.add(threading.current_thread())
      return super().execute(batch)

  play(jobs_of(4), [scripted.Generator(varied) for _ in range(2)], Noting())
  assert threads == {threading.main_thread()}


def test_a_failure_that_no_decode_follows_is_raised():
  """Prompts that fill their rows: they start, and no one ever decodes."""
  broken = scripted.Generator(varied, capacity=3)

  def fail(*_):
    raise ZeroDivisionError('broken')

  broken.start = fail
  with pytest.raises(ZeroDivisionError, match='broken'):
    play(jobs_of(2), [scripted.Generator(varied, capacity=3), broken])


@pytest.mark.parametrize('call', ['start', 'extend', 'copy', '_decode'])
def test_what_fails_in_a_thread_is_raised_and_all_threads_end(call):
  broken = scripted.Generator(varied)

  def fail(*_):
    raise ZeroDivisionError('broken')

  setattr(broken, call, fail)
  before = threading.active_count()
  with pytest.raises(ZeroDivisionError, match='broken'):
    play(jobs_of(4), [scripted.Generator(varied), broken])
  assert threading.active_count() == before


def test_time_with_any_at_work_counts_once():
  # [0, 2] and [1, 3] together are 3; [3, 3.5] touches; [5, 6] is apart, and
  # [5.2, 5.4] lies within.
  spans = [(1.0, 3.0), (0.0, 2.0), (5.0, 6.0), (3.0, 3.5), (5.2, 5.4)]
  assert side_by_side.union(spans) == 4.5
  assert side_by_side.union([]) == 0.0
  found = play(jobs_of(2), [scripted.Generator(varied) for _ in range(2)])
  assert 0 < found.generate_s < found.total_s
  assert 0 < found.host_s < found.total_s
