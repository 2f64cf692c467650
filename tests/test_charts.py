"""Tests of the SVG charts."""

import re
import xml.etree.ElementTree as ET

import pytest

from rods_jax import charts


def _line(xs, ys, mark='line', **kwargs):
  series = charts.Series('reward', 'c-blue', xs, ys, mark)
  return charts.line_chart(
      [series], label='l', x_label='step', y_label='reward', **kwargs
  )


def _paths(chart):
  root = ET.fromstring(chart.svg)
  return [p.get('d') for p in root.iter('path') if 'line' in p.get('class')]


@pytest.mark.parametrize(
    'low, high, ticks',
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 0.47, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        (-8, 12, [-10, -5, 0, 5, 10, 15]),
        (0, 691, [0, 200, 400, 600, 800]),
        (3, 3, [3, 3.2, 3.4, 3.6, 3.8, 4]),
    ],
)
def test_ticks_are_round_and_cover_the_range(low, high, ticks):
  assert charts.nice_ticks(low, high) == pytest.approx(ticks)


@pytest.mark.parametrize(
    'value, text',
    [(1200, '1,200'), (0.25, '0.25'), (0.42671, '0.427'), (3.0, '3'),
     (100, '100'), (20, '20'), (0, '0'), (-0.5, '-0.5')],
)
def test_numbers_are_short(value, text):
  assert charts.format_number(value) == text


def test_a_point_lands_where_the_axes_say():
  """x runs 0..10 padded by 0.3, y 0..1; the plot is 404 wide, 188 high.

  x(5) is the middle: 44 + 404 / 2 = 246. y(0.5) is 26 + 188 / 2 = 120. With
  y growing downwards like the screen, 1.0 would be drawn at the bottom, 214.
  """
  (path,) = _paths(_line([0, 5, 10], [0.0, 0.5, 1.0]))
  points = re.findall(r'[ML]([\d.]+) ([\d.]+)', path)
  assert points[1] == ('246.0', '120.0')
  assert points[0][1] == '214.0' and points[2][1] == '26.0'


def test_a_missing_value_is_a_gap_not_a_zero():
  (path,) = _paths(_line([0, 1, 2, 3, 4], [1.0, 0.5, None, 0.5, 1.0]))
  assert re.sub('[^ML]', '', path) == 'MLML'


def test_single_values_are_drawn_as_dots():
  """A line of one point draws nothing at all."""
  chart = _line([1], [0.5])
  assert chart.svg.count('<circle') == 1


def test_long_series_are_thinned_and_keep_their_end():
  (path,) = _paths(_line(list(range(5000)), [0.1] * 4999 + [0.2]))
  points = re.findall(r'[ML]([\d.]+) ([\d.]+)', path)
  assert 500 <= len(points) <= 601
  assert points[-1][1] == '26.0'  # 0.2 is the top; thinning lost it


def test_nothing_to_draw_is_none():
  assert _line([], []) is None
  assert _line([0, 1], [None, None]) is None
  bars = [charts.Layer('a', 'c-hard', [0, None])]
  labels = {'label': 'l', 'x_label': 'epoch', 'y_label': 'tasks'}
  assert charts.stacked_bars(['1', '2'], bars, **labels) is None


def test_bars_stack_up_and_negative_ones_down():
  """12 + 3 up and 4 down from zero, on 188 px for the ticks -5 to 15."""
  layers = [
      charts.Layer('kept', 'c-slate', [12]),
      charts.Layer('injected', 'c-violet', [3]),
      charts.Layer('retired', 'c-hard', [-4]),
  ]
  chart = charts.stacked_bars(
      ['1'], layers, label='l', x_label='epoch', y_label='tasks'
  )
  low, high = -5, 15
  px = 188 / (high - low)
  rects = [r.attrib for r in ET.fromstring(chart.svg).iter('rect')]
  heights = [float(r['height']) for r in rects]
  assert heights == pytest.approx([12 * px, 3 * px, 4 * px], abs=0.1)
  zero = 26 + high * px
  assert float(rects[0]['y']) == pytest.approx(zero - 12 * px, abs=0.1)
  assert float(rects[1]['y']) == pytest.approx(zero - 15 * px, abs=0.1)
  assert float(rects[2]['y']) == pytest.approx(zero, abs=0.1)


def test_labels_that_would_overlap_are_left_out():
  layers = [charts.Layer('a', 'c-hard', [1] * 200)]
  chart = charts.stacked_bars(
      [str(i) for i in range(200)], layers, label='l', x_label='epoch',
      y_label='tasks',
  )
  at = [
      (float(t.get('x')), t.text)
      for t in ET.fromstring(chart.svg).iter('text')
      if t.get('text-anchor') == 'middle'
  ]
  assert 10 < len(at) < 60
  for (a, text), (b, next_text) in zip(at, at[1:]):
    assert b - a >= 3.6 * (len(text) + len(next_text))


def test_names_and_labels_are_escaped():
  bad = '</svg><script>x</script>"'
  series = charts.Series(bad, 'c-blue', [0, 1], [0, 1], 'points')
  chart = charts.line_chart(
      [series], label=bad, x_label=bad, y_label=bad, x_labels=[(0, bad)]
  )
  tags = {element.tag for element in ET.fromstring(chart.svg).iter()}
  assert tags == {'svg', 'text', 'path', 'circle', 'title'}
