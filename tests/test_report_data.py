"""Tests of what the report reads out of a working directory."""

import json

import pytest

from rods_jax import errors
from rods_jax import report_data
from tests import fake_workdir


def _run(tmp_path, rows=(), events=(), config=None):
  fake_workdir.write_lines(tmp_path / 'metrics.jsonl', rows)
  fake_workdir.write_lines(tmp_path / 'pool.jsonl', events)
  (tmp_path / 'config.json').write_text(json.dumps(config or {}))
  return report_data.load(tmp_path)


def _visit(epoch, i, zone, variance):
  return {
      'event': 'visit', 'epoch': epoch, 'id': i, 'count': 8, 'mean': 0.5,
      'variance': variance, 'zone': zone,
  }


def test_a_missing_directory_is_one_clear_line(tmp_path):
  with pytest.raises(errors.UserError, match='is no directory') as caught:
    report_data.load(tmp_path / 'missing')
  assert '\n' not in str(caught.value)


def test_an_empty_directory_says_what_is_missing(tmp_path):
  run = report_data.load(tmp_path)
  notes = ' '.join(run.notes)
  assert 'No optimizer step' in notes
  for name in ('metrics.jsonl', 'pool.jsonl', 'trajectories.jsonl',
               'config.json', 'eval.json'):
    assert f'{name} does not exist' in notes


def test_a_finished_run_misses_nothing(tmp_path):
  fake_workdir.make(tmp_path)
  run = report_data.load(tmp_path)
  assert run.notes == []
  assert len(run.steps) == 40 and len(run.epochs) == 5


def test_a_row_repeated_after_a_resume_counts_once(tmp_path):
  rows = [
      {'step': s, 'train/epoch': 0, 'reward/mean': r}
      for s, r in ((1, 0.1), (2, 0.2), (2, 0.7), (3, 0.3))
  ]
  run = _run(tmp_path, rows)
  assert report_data.numbers(run.steps, 'reward/mean') == [0.1, 0.7, 0.3]


def test_null_is_missing_not_zero(tmp_path):
  rows = [{'step': 1, 'train/epoch': 0, 'reward/mean': None}]
  run = _run(tmp_path, rows)
  assert report_data.numbers(run.steps, 'reward/mean') == [None]
  assert report_data.mean([None, 0.5]) == 0.5  # not 0.25
  assert report_data.mean([None]) is None


def test_before_is_step_0_only_and_after_the_latest(tmp_path):
  rows = [{'step': s, 'eval/x_progress': s / 10} for s in (4, 8)]
  before, after = report_data.before_and_after(_run(tmp_path, rows))
  assert before is None and after['step'] == 8
  rows = [{'step': 0, 'eval/x_progress': 0.5}]
  before, after = report_data.before_and_after(_run(tmp_path, rows))
  assert before['step'] == 0 and after is None


def test_variance_ratio_weighs_groups_not_zones(tmp_path):
  """Boundary 0.06; others (0.03 + 3 * 0.01) / 4 = 0.015: ratio 4.

  The mean of the two zones' means would be 0.02, and the ratio 3.
  """
  events = [_visit(0, 0, 'boundary', 0.06), _visit(0, 1, 'hard', 0.03)]
  events += [_visit(0, i, 'mastered', 0.01) for i in (2, 3, 4)]
  run = _run(tmp_path, events=events)
  assert report_data.variance_ratio(run) == pytest.approx(4.0)
  assert report_data.zone_variance(run)['mastered'] == (
      pytest.approx(0.01), 3
  )


def test_variance_ratio_without_the_pools_log(tmp_path):
  """2 groups of 0.06 against 1 of 0.03 and 3 of 0.01: 4 as above."""
  row = {
      'step': 1, 'train/epoch': 0, 'boundary/hard': 1,
      'boundary/boundary': 2, 'boundary/mastered': 3,
      'boundary/variance_hard': 0.03, 'boundary/variance_boundary': 0.06,
      'boundary/variance_mastered': 0.01,
  }
  assert report_data.variance_ratio(_run(tmp_path, [row])) == (
      pytest.approx(4.0)
  )


def test_variance_ratio_is_missing_without_both_sides(tmp_path):
  only = [_visit(0, 0, 'boundary', 0.06)]
  assert report_data.variance_ratio(_run(tmp_path, events=only)) is None
  flat = only + [_visit(0, 1, 'hard', 0.0)]
  assert report_data.variance_ratio(_run(tmp_path, events=flat)) is None


def test_pool_changes_belong_to_the_epoch_that_was_closed(tmp_path):
  """Tasks injected between epochs 0 and 1 name epoch 1, as does the one that
  makes room for them. By the events' own epochs the page showed them beside
  a pool size of one epoch later."""
  added = {'event': 'added', 'origin': 'human', 'task_id': 't'}
  events = [
      {**added, 'epoch': 0, 'id': 0},
      {**added, 'epoch': 0, 'id': 1},
      _visit(0, 0, 'hard', 0.0),
      _visit(0, 1, 'hard', 0.0),
      {'event': 'retired', 'epoch': 0, 'id': 0, 'reason': 'hard'},
      {'event': 'retired', 'epoch': 1, 'id': 1, 'reason': 'capacity'},
      {**added, 'origin': 'generated', 'epoch': 1, 'id': 2},
      {'event': 'seed', 'epoch': 0, 'id': 2, 'priority': 1.0},
      _visit(1, 2, 'hard', 0.0),
  ]
  run = _run(tmp_path, events=events)
  assert report_data.pool_changes(run) == {0: (1, 2), 1: (0, 0)}


def test_synthesis_sums_over_epochs_and_keeps_stage_order(tmp_path):
  rows = [
      {
          'step': s, 'train/epoch': s, 'boundary/boundary': 1,
          'synthesis/substitute_attempts': 10,
          'synthesis/substitute_accepted': 7,
          'synthesis/substitute_rejected': 3,
          'synthesis/miss_func_accepted': 1,
          'synthesis/miss_func_rejected': 0,
          'synthesis/idle_accepted': 0,
      }
      for s in (1, 2)
  ]
  stages = report_data.synthesis_stages(_run(tmp_path, rows))
  assert stages == [('substitute', 14, 6), ('miss_func', 2, 0)]


def test_phases_leave_the_rest_of_the_total(tmp_path):
  """2 steps of 10 s: 12 s rollout, 5 s update, so 3 s are the rest."""
  rows = [
      {'step': s, 'train/epoch': 0, 'time/rollout': 6.0,
       'time/update': 2.5, 'time/host_share': 0.1, 'time/total': 10.0}
      for s in (1, 2)
  ]
  assert report_data.phase_seconds(_run(tmp_path, rows)) == [
      ('rollout', 12.0), ('update', 5.0), ('rest', 3.0)
  ]


def test_endings_are_shares_whether_logged_as_counts_or_shares(tmp_path):
  for scale in (1, 64):
    rows = [
        {'step': 1, 'train/epoch': 0, 'rollout/status_DONE': 0.75 * scale,
         'rollout/status_MAX_TOKENS': 0.25 * scale,
         'rollout/status_ENV_TIMEOUT': 0}
    ]
    assert report_data.endings(_run(tmp_path, rows)) == [
        ('DONE', 0.75), ('MAX_TOKENS', 0.25)
    ]
