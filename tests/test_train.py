"""A run stopped anywhere and continued equals one that never stopped."""

import collections
import shutil

import numpy as np
import pytest

from rods_jax import build
from rods_jax.host.synthesis import pipeline
from tests import tiny


def test_the_run_does_what_the_other_tests_rely_on(tiny_run):
  """A run without injection would make the comparisons below empty."""
  outcome, workdir = tiny_run
  assert outcome.complete and outcome.pending is not None
  rows = tiny.rows(workdir)
  assert [r['step'] for r in rows] == list(range(outcome.position.step + 1))
  epochs = [r for r in rows if 'pool/size' in r]
  assert len(epochs) == 4
  assert sum(r['pool/injected'] for r in epochs) > 0
  assert sum(r['pool/retired'] for r in epochs) > 0
  assert any(r.get('reward/std_within_group') for r in rows)
  pool = tiny.rows(workdir, 'pool')
  added = [e for e in pool if e['event'] == 'added']
  assert {e['origin'] for e in added} == {'human', 'generated'}


def test_the_pool_hears_what_was_played(tiny_run):
  """Each active task once per epoch, with its own four rewards.

  Statistics that were not cleared would count 8 in the second epoch.
  """
  _, workdir = tiny_run
  events = tiny.rows(workdir, 'pool')
  names = {e['id']: e['task_id'] for e in events if e['event'] == 'added'}
  visits = {
      (e['epoch'], names[e['id']]): e for e in events if e['event'] == 'visit'
  }
  assert len(visits) == sum(e['event'] == 'visit' for e in events)
  assert {e['count'] for e in visits.values()} == {4}
  played = collections.defaultdict(list)
  for t in tiny.rows(workdir, 'trajectories'):
    played[t['epoch'], t['task_id']].append(t['progress'])
  assert len(played) >= 8  # the first group of each batch
  for key, rewards in played.items():
    assert len(rewards) == 4
    assert visits[key]['mean'] == pytest.approx(np.mean(rewards), abs=1e-6)
    assert visits[key]['variance'] == pytest.approx(np.var(rewards), abs=1e-6)


def test_two_epochs_and_two_more_are_four(
    tiny_run, tiny_half_run, tiny_policy, tmp_path
):
  """The first two end as a complete run, with an evaluation of its own."""
  outcome, workdir = tiny_run
  first, folder = tiny_half_run
  assert first.complete and first.position.epoch == 2
  shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
  tiny.assert_same(outcome, tiny.sit(tiny.run_config(tiny_policy), tmp_path))
  tiny.assert_same_logs(workdir, tmp_path, drop=('eval/',))


def test_stops_between_and_in_epochs_leave_no_trace(
    tiny_run, tiny_policy, tmp_path
):
  """Stops: in the first epoch, after the second, in the third.

  At the second stop variants are being synthesized, at the third as well; they
  are asked for again.
  """
  outcome, workdir = tiny_run
  config = tiny.run_config(tiny_policy)
  stops = [1, tiny.last_step(workdir, 1), tiny.last_step(workdir, 1) + 1]
  for stop in stops:
    stopped = tiny.sit(config, tmp_path, stop)
    assert not stopped.complete
    assert stopped.position.step >= stop
  assert stopped.position.batch == 1 and stopped.pending is not None
  tiny.assert_same(outcome, tiny.sit(config, tmp_path))
  tiny.assert_same_logs(workdir, tmp_path)


def test_slow_synthesis_changes_nothing(
    tiny_half_run, tiny_policy, tmp_path, monkeypatch
):
  """A request that had not finished in time used to enter an epoch later.

  So a machine under load, or a continued run, which asks for the variants
  anew, gave another pool and other numbers.
  """
  outcome, workdir = tiny_half_run
  monkeypatch.setattr(
      'rods_jax.host.synthesis.background.Background.collect',
      lambda self, timeout_s: None,
  )
  config = tiny.run_config(tiny_policy, train__num_epochs=2)
  tiny.assert_same(outcome, tiny.sit(config, tmp_path))
  tiny.assert_same_logs(workdir, tmp_path)
  assert tiny.rows(tmp_path)[-1]['pool/injected'] > 0


def test_a_growing_pool_compiles_nothing_after_the_first_epoch(tiny_run):
  """Programs: 1 extend length, decode, copy; one update."""
  outcome, _ = tiny_run
  assert outcome.num_programs == 3
  assert outcome.num_updates == 1
  assert [name for epoch, name in outcome.compiled if epoch > 0] == []
  # Two engines, in two threads: each program once.
  names = [name for _, name in outcome.compiled]
  assert names.count('jit(traced)') == 3


def test_heldout_tasks_stay_out_of_training(tiny_run, tiny_policy):
  _, workdir = tiny_run
  config = tiny.run_config(tiny_policy)
  fmt = build.build_policy(config).fmt
  tasks = build.build_tasks(config, fmt)
  evaluation = build.evaluation_tasks(config, tasks, fmt)
  added = [e for e in tiny.rows(workdir, 'pool') if e['event'] == 'added']
  training = {t.scenario for t in tasks.train.values()}
  heldout = {t.scenario for t in tasks.heldout.values()}
  assert not training & heldout
  assert {e['scenario'] for e in added} <= training
  played = {e['hash'] for e in added}
  for name in ('heldout_variants', 'heldout_scenarios'):
    assert evaluation[name]
    assert not played & {t.content_hash() for t in evaluation[name]}
  assert {t.scenario for t in evaluation['heldout_scenarios']} <= heldout
  made = [e['hash'] for e in added if e['origin'] == 'generated']
  assert made
  assert not any(pipeline.is_heldout_hash(content) for content in made)
