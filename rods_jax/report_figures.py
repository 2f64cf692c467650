"""The figures of report.html: one function each, from a Run to a chart.

A figure is None where the run has no data for it yet.
"""

import collections
import dataclasses
import statistics
from typing import Any, Sequence

from rods_jax import charts
from rods_jax import report_data
from rods_jax import terminal

_ZONE_TEXT = {'hard': 'Hard', 'boundary': 'Boundary', 'mastered': 'Mastered'}
_CLOUD_CELLS = 1500  # at most so many marks in the scatter plot


@dataclasses.dataclass(frozen=True)
class Bar:
  """A horizontal bar, drawn in HTML: `share` of the full width is coloured.

  Attributes:
    name: what it is.
    css: class that sets the colour.
    share: 0 to 1.
    text: the numbers, in words.
    rest: whether the other part of the width is drawn as a remainder.
  """

  name: str
  css: str
  share: float
  text: str
  rest: bool = False


def _smooth(
    values: Sequence[float | None], window: int
) -> list[float | None]:
  """Centered moving average; shorter at the ends, None where no value is."""
  half = window // 2
  return [
      None if value is None
      else report_data.mean(values[max(0, i - half) : i + half + 1])
      for i, value in enumerate(values)
  ]


def _window(steps: Sequence[int]) -> int:
  """Odd number of steps to smooth over: an eighth of the run, 3 to 51."""
  return min(51, max(3, len(steps) // 8 | 1))


def _epoch_text(epoch: Any) -> str:
  """Epochs count from 0 in files, from 1 for readers."""
  return str(epoch + 1) if isinstance(epoch, int) else str(epoch)


def _epoch_labels(run: report_data.Run) -> list[str]:
  return [_epoch_text(row['train/epoch']) for row in run.epochs]


def reward(run: report_data.Run) -> charts.Chart | None:
  steps = [row['step'] for row in run.steps]
  rewards = report_data.numbers(run.steps, 'reward/mean')
  window = _window(steps)
  series = [
      charts.Series('training, each step', 'c-blue', steps, rewards, 'dots'),
      charts.Series(
          f'training, mean of {window} steps', 'c-blue', steps,
          _smooth(rewards, window),
      ),
  ]
  decoding = report_data.decoding(run)
  for split, name, css in (
      ('heldout_variants', 'held-out variants', 'c-violet'),
      ('heldout_scenarios', 'held-out scenarios', 'c-amber'),
  ):
    values = report_data.numbers(run.evaluations, f'eval/{split}_progress')
    at = [row['step'] for row in run.evaluations]
    series.append(
        charts.Series(f'{decoding}, {name}', css, at, values, 'points')
    )
  return charts.line_chart(
      series, label='Progress reward over optimizer steps',
      x_label='optimizer step', y_label='progress reward (0 to 1)',
      verticals=_epoch_starts(run),
  )


def _epoch_starts(run: report_data.Run) -> list[float]:
  """Between the steps where the epoch changes; none if they would crowd."""
  pairs = zip(run.steps, run.steps[1:])
  starts = [
      (a['step'] + b['step']) / 2
      for a, b in pairs
      if a['train/epoch'] != b['train/epoch']
  ]
  return starts if len(starts) <= 30 else []


def partition(run: report_data.Run) -> charts.Chart | None:
  layers = [
      charts.Layer(
          _ZONE_TEXT[zone], f'c-{zone}',
          report_data.numbers(run.epochs, f'boundary/{zone}'),
      )
      for zone in report_data.ZONES
  ]
  return charts.stacked_bars(
      _epoch_labels(run), layers, label='Tasks by zone in each epoch',
      x_label='epoch', y_label='tasks visited',
  )


def pool(run: report_data.Run) -> charts.Chart | None:
  sizes = report_data.numbers(run.epochs, 'pool/size')
  generated = report_data.numbers(run.epochs, 'pool/generated')
  human = [
      None if size is None else size - (made or 0)
      for size, made in zip(sizes, generated)
  ]
  layers = [
      charts.Layer('human', 'c-slate', human),
      charts.Layer('generated', 'c-violet', generated),
  ]
  return charts.stacked_bars(
      _epoch_labels(run), layers, label='Pool size in each epoch',
      x_label='epoch', y_label='active tasks',
  )


def changes(run: report_data.Run) -> charts.Chart | None:
  changes = report_data.pool_changes(run)
  layers = [
      charts.Layer('injected', 'c-violet', [c[0] for c in changes.values()]),
      charts.Layer('retired', 'c-hard', [-c[1] for c in changes.values()]),
  ]
  return charts.stacked_bars(
      [_epoch_text(epoch) for epoch in changes], layers,
      label='Tasks injected and retired in each epoch', x_label='epoch',
      y_label='injected (up), retired (down)', height=170,
  )


def variance(run: report_data.Run) -> charts.Chart | None:
  """Mean variance inside a group, by zone, over epochs."""
  xs = list(range(len(run.epochs)))
  series = [
      charts.Series(
          _ZONE_TEXT[zone], f'c-{zone}', xs,
          report_data.numbers(run.epochs, f'boundary/variance_{zone}'),
      )
      for zone in report_data.ZONES
  ]
  return charts.line_chart(
      series, label='Reward variance by zone in each epoch', x_label='epoch',
      y_label='reward variance in a group',
      x_labels=list(enumerate(_epoch_labels(run))),
  )


def cloud(run: report_data.Run) -> charts.Chart | None:
  """Variance of each visit over its mean, under the bound r (1 - r)."""
  digits = 3
  counts = collections.Counter(
      (round(v.mean, digits), round(v.variance, digits), v.zone)
      for v in run.visits
  )
  if len(counts) > _CLOUD_CELLS:
    counts = collections.Counter(
        (round(2 * v.mean, 1) / 2, round(4 * v.variance, 1) / 4, v.zone)
        for v in run.visits
    )
  points = [
      charts.Point(
          x, y, f'c-{zone}', n,
          f'{_ZONE_TEXT[zone]}: mean {x:.3f}, variance {y:.3f}, {n} visits',
      )
      for (x, y, zone), n in sorted(counts.items())
  ]
  grid = [i / 50 for i in range(51)]
  curve = charts.Series(
      'largest possible, r(1 − r)', 'c-slate', grid,
      [x * (1 - x) for x in grid], 'dashed',
  )
  edges = [
      report_data.number(run.config.get('boundary', {}), key)
      for key in ('hard_below', 'mastered_above')
  ]
  legend = [
      charts.LegendItem(_ZONE_TEXT[zone], f'c-{zone}', 'dots')
      for zone in report_data.ZONES
  ]
  return charts.scatter(
      points, label='Reward variance against mean reward of each group',
      x_label='mean reward r of the group', y_label='reward variance',
      curve=curve, edges=[e for e in edges if e is not None], legend=legend,
  )


def rates(run: report_data.Run) -> charts.Chart | None:
  """Tool and parse errors over steps."""
  steps = [row['step'] for row in run.steps]
  window = _window(steps)
  series = []
  for key, name, css in (
      ('rollout/tool_error_rate', 'tool errors', 'c-hard'),
      ('rollout/parse_error_rate', 'parse errors', 'c-violet'),
  ):
    values = report_data.numbers(run.steps, key)
    series.append(charts.Series(name, css, steps, _smooth(values, window)))
  return charts.line_chart(
      series, label='Error rates over optimizer steps',
      x_label='optimizer step', y_label=f'rate, mean of {window} steps',
      verticals=_epoch_starts(run),
  )


def flat(run: report_data.Run) -> charts.Chart | None:
  """Share of the groups whose rewards are all equal, over steps."""
  steps = [row['step'] for row in run.steps]
  window = _window(steps)
  values = report_data.numbers(run.steps, 'reward/flat_groups')
  series = charts.Series(
      'groups without reward spread', 'c-slate', steps,
      _smooth(values, window),
  )
  return charts.line_chart(
      [series], label='Share of groups without reward spread',
      x_label='optimizer step', y_label=f'share, mean of {window} steps',
      verticals=_epoch_starts(run),
  )


def zone_bars(run: report_data.Run) -> list[Bar]:
  """Mean variance of each zone over all visits."""
  zones = report_data.zone_variance(run)
  top = max((value for value, _ in zones.values()), default=0) or 1
  return [
      Bar(
          _ZONE_TEXT[zone], f'c-{zone}', value / top,
          f'{value:.4f} over {count} group visits',
      )
      for zone, (value, count) in zones.items()
  ]


def stage_bars(run: report_data.Run) -> list[Bar]:
  """Share of the attempts that each synthesis stage accepted."""
  return [
      Bar(
          stage.replace('_', ' '), 'c-mastered', accepted / (accepted + lost),
          f'{100 * accepted / (accepted + lost):.0f} % of '
          f'{accepted + lost:,.0f} accepted, {lost:,.0f} rejected',
          rest=True,
      )
      for stage, accepted, lost in report_data.synthesis_stages(run)
  ]


def phase_bars(run: report_data.Run) -> list[Bar]:
  """Seconds of each phase over all steps, with the median step."""
  phases = report_data.phase_seconds(run)
  total = sum(seconds for _, seconds in phases) or 1.0
  bars = []
  for name, seconds in phases:
    steps = [
        value
        for value in report_data.numbers(run.steps, f'time/{name}')
        if value is not None
    ]
    median = f', median step {statistics.median(steps):.2f} s' if steps else ''
    text = (
        f'{terminal.format_seconds(seconds)}, {100 * seconds / total:.1f} %'
        f'{median}'
    )
    css = 'c-slate' if name == 'rest' else 'c-blue'
    bars.append(Bar(name, css, seconds / total, text))
  return bars
