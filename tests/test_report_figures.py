"""Tests of the numbers inside the report's figures."""

import json

import pytest

from rods_jax import report_data
from rods_jax import report_figures
from tests import fake_workdir


def _run(tmp_path, rows, events=(), config=None):
  fake_workdir.write_lines(tmp_path / 'metrics.jsonl', rows)
  fake_workdir.write_lines(tmp_path / 'pool.jsonl', events)
  (tmp_path / 'config.json').write_text(json.dumps(config or {}))
  return report_data.load(tmp_path)


def test_smoothing_is_centered_and_skips_gaps():
  """Window 3: (1+2)/2, (1+2+6)/3, (2+6)/2 beside a gap, gap, 4.

  A trailing mean would give 1, 1.5, 3 and lag behind the curve.
  """
  values = [1.0, 2.0, 6.0, None, 4.0]
  smooth = report_figures._smooth(values, 3)
  assert smooth == [1.5, 3.0, 4.0, None, 4.0]


@pytest.mark.parametrize('n, window', [(0, 3), (8, 3), (40, 5), (9999, 51)])
def test_the_window_is_odd_and_bounded(n, window):
  assert report_figures._window(range(n)) == window


def test_phase_bars_say_seconds_share_and_median(tmp_path):
  """20 + 6 + 6 = 32 s of 40: 80 %; the median step, 6 s, is not the mean
  10.7 that the compilation of the first step makes."""
  rows = [
      {'step': s, 'train/epoch': 0, 'time/rollout': r, 'time/total': t}
      for s, r, t in ((1, 20.0, 24.0), (2, 6.0, 8.0), (3, 6.0, 8.0))
  ]
  rollout, rest = report_figures.phase_bars(_run(tmp_path, rows))
  assert rollout.share == pytest.approx(0.8)
  assert rollout.text == '32 s, 80.0 %, median step 6.00 s'
  assert rest.text == '8.0 s, 20.0 %'


def test_stage_bars_say_what_was_accepted(tmp_path):
  row = {
      'step': 1, 'train/epoch': 0, 'boundary/boundary': 3,
      'synthesis/miss_func_accepted': 30, 'synthesis/miss_func_rejected': 10,
  }
  (bar,) = report_figures.stage_bars(_run(tmp_path, [row]))
  assert (bar.name, bar.share) == ('miss func', 0.75)
  assert bar.text == '75 % of 40 accepted, 10 rejected'


def test_the_cloud_joins_equal_visits_and_marks_the_thresholds(tmp_path):
  visit = {
      'event': 'visit', 'epoch': 0, 'id': 1, 'mean': 0.5, 'variance': 0.1,
      'zone': 'boundary',
  }
  run = _run(
      tmp_path, [], [visit] * 3,
      {'boundary': {'hard_below': 0.2, 'mastered_above': 0.85}},
  )
  svg = report_figures.cloud(run).svg
  assert svg.count('<circle') == 1
  assert 'mean 0.500, variance 0.100, 3 visits' in svg
  assert svg.count('class="epoch"') == 2


def test_epochs_count_from_1_on_the_page(tmp_path):
  rows = [
      {'step': e + 1, 'train/epoch': e, 'boundary/boundary': 5}
      for e in range(2)
  ]
  run = _run(tmp_path, rows)
  assert report_figures._epoch_labels(run) == ['1', '2']
  assert report_figures._epoch_starts(run) == [1.5]
