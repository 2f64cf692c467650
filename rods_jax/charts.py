"""Small SVG charts for report.html, as text that is safe to embed.

Colours are CSS classes ('c-hard' sets currentColor), so that a chart follows
the page into dark mode and draws in milliseconds. Every text goes through
markupsafe's escape. Each chart comes with its legend, which the page sets in
HTML, where it wraps on a narrow screen. Marks carry a <title>: the value shows
where the pointer rests.
"""

import dataclasses
import math
from typing import Iterable, Sequence

import markupsafe

WIDTH, HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 26, 36
_MAX_POINTS = 600  # per series; longer ones are thinned
_MAX_BARS = 150


@dataclasses.dataclass(frozen=True)
class Series:
  """Points of one colour.

  Attributes:
    name: the legend's text.
    css: class that sets the colour.
    xs: positions.
    ys: values; None is a gap.
    mark: 'line', 'dashed', 'dots' or 'points' (big, joined by dashes).
  """

  name: str
  css: str
  xs: Sequence[float]
  ys: Sequence[float | None]
  mark: str = 'line'


@dataclasses.dataclass(frozen=True)
class Layer:
  """One colour of a bar chart: a value for each bar."""

  name: str
  css: str
  values: Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class Point:
  """One mark of a scatter plot; `weight` observations lie on it."""

  x: float
  y: float
  css: str
  weight: int
  title: str


@dataclasses.dataclass(frozen=True)
class LegendItem:
  name: str
  css: str
  mark: str  # 'line', 'dashed', 'dots', 'points' or 'bar'


@dataclasses.dataclass(frozen=True)
class Chart:
  """An SVG element and its legend."""

  svg: markupsafe.Markup
  legend: tuple[LegendItem, ...] = ()


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
  """About `count` round numbers that cover [low, high]."""
  if not high > low:
    high = low + 1
  rough = (high - low) / count
  power = 10.0 ** math.floor(math.log10(rough))
  multiples = (m * power for m in (1, 2, 2.5, 5, 10))
  step = next(m for m in multiples if m >= rough * 0.99)
  first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
  return [round(i * step, 12) for i in range(first, last + 1)]


def format_number(value: float) -> str:
  """Short: 1200 -> '1,200', 0.25 -> '0.25', 0.4267 -> '0.427'."""
  if abs(value) >= 100 or float(value).is_integer():
    return f'{value:,.0f}'
  return f'{value:.3f}'.rstrip('0').rstrip('.')


class _Plot:
  """A frame with two axes that marks are added to."""

  def __init__(
      self,
      x_range: tuple[float, float],
      y_range: tuple[float, float],
      *,
      x_label: str,
      y_label: str,
      height: int = HEIGHT,
  ):
    self._x_range, self._y_range = x_range, y_range
    self._height = height
    self._parts: list[str] = []
    self.text(2, 12, y_label, 'start')
    if x_label:
      self.text(WIDTH - _RIGHT, height - 3, x_label, 'end')

  def x(self, value: float) -> float:
    low, high = self._x_range
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * (value - low) / (high - low)

  def y(self, value: float) -> float:
    low, high = self._y_range
    span = self._height - _TOP - _BOTTOM
    return _TOP + span * (high - value) / (high - low)

  def add(self, element: str) -> None:
    self._parts.append(element)

  def text(self, x: float, y: float, text: str, anchor: str) -> None:
    self.add(
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f'{markupsafe.escape(text)}</text>'
    )

  def y_axis(self, ticks: Sequence[float]) -> None:
    for tick in ticks:
      y = self.y(tick)
      css = 'axis' if tick == 0 else 'grid'
      self.add(
          f'<path class="{css}" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>'
      )
      self.text(_LEFT - 6, y + 4, format_number(tick), 'end')

  def x_axis(self, ticks: Iterable[tuple[float, str]]) -> None:
    """Labels at positions; those that would touch the last one are left out."""
    end = -math.inf
    for position, label in ticks:
      x, half = self.x(position), 3.6 * len(label)
      if x - half > end + 6:
        self.text(x, self._height - _BOTTOM + 16, label, 'middle')
        end = x + half

  def rect(
      self, left: float, right: float, low: float, high: float,
      css: str, title: str = '',
  ) -> None:
    """A box in data coordinates."""
    x, y = self.x(left), self.y(high)
    width, height = self.x(right) - x, self.y(low) - y
    if height <= 0:
      return
    self.add(
        f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}">{_title(title)}</rect>'
    )

  def vertical(self, value: float) -> None:
    x = self.x(value)
    bottom = self._height - _BOTTOM
    self.add(f'<path class="epoch" d="M{x:.1f} {_TOP}V{bottom}"/>')

  def series(self, series: Series) -> None:
    xs, ys = _thin(series.xs, series.ys)
    if series.mark != 'dots':
      dashed = series.mark in ('dashed', 'points')
      css = f'line {"dash " if dashed else ""}{series.css}'
      self.add(f'<path class="{css}" d="{self._path(xs, ys)}"/>')
    if series.mark in ('dots', 'points') or _is_isolated(ys):
      radius = 2 if series.mark == 'dots' else 4.5
      css = 'faint' if series.mark == 'dots' else 'dot'
      for x, y in zip(xs, ys):
        if y is not None:
          title = f'{series.name}: {format_number(y)} at {format_number(x)}'
          self.dot(x, y, radius, f'{css} {series.css}', title)

  def dot(
      self, x: float, y: float, radius: float, css: str, title: str
  ) -> None:
    self.add(
        f'<circle class="{css}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" '
        f'r="{radius:.1f}">{_title(title)}</circle>'
    )

  def svg(self, label: str) -> markupsafe.Markup:
    return markupsafe.Markup(
        f'<svg viewBox="0 0 {WIDTH} {self._height}" role="img" '
        f'aria-label="{markupsafe.escape(label)}">{"".join(self._parts)}</svg>'
    )

  def _path(
      self, xs: Sequence[float], ys: Sequence[float | None]
  ) -> str:
    """Moves at the start and after each gap, lines elsewhere."""
    parts, command = [], 'M'
    for x, y in zip(xs, ys):
      if y is None:
        command = 'M'
        continue
      parts.append(f'{command}{self.x(x):.1f} {self.y(y):.1f}')
      command = 'L'
    return ''.join(parts)


def _title(text: str) -> str:
  return f'<title>{markupsafe.escape(text)}</title>' if text else ''


def _is_isolated(ys: Sequence[float | None]) -> bool:
  """True where a line would not show: no two values in a row."""
  return not any(
      a is not None and b is not None for a, b in zip(ys, ys[1:])
  )


def _thin(
    xs: Sequence[float], ys: Sequence[float | None]
) -> tuple[Sequence[float], Sequence[float | None]]:
  """Every k-th point and the last one, so that at most _MAX_POINTS stay."""
  stride = math.ceil(len(xs) / _MAX_POINTS)
  if stride <= 1:
    return xs, ys
  keep = sorted({*range(0, len(xs), stride), len(xs) - 1})
  return [xs[i] for i in keep], [ys[i] for i in keep]


def _legend_mark(series: Series) -> LegendItem:
  return LegendItem(series.name, series.css, series.mark)


def line_chart(
    all_series: Sequence[Series],
    *,
    label: str,
    x_label: str,
    y_label: str,
    x_labels: Sequence[tuple[float, str]] | None = None,
    verticals: Sequence[float] = (),
) -> Chart | None:
  """Lines and points over a common axis from 0 up; None without a value."""
  shown = [s for s in all_series if any(y is not None for y in s.ys)]
  if not shown:
    return None
  xs = [x for s in shown for x in s.xs]
  top = max(y for s in shown for y in s.ys if y is not None)
  y_ticks = nice_ticks(0, top if top > 0 else 1)
  low, high = min(xs), max(xs)
  pad = (high - low) * 0.03 or 1
  plot = _Plot(
      (low - pad, high + pad), (0, y_ticks[-1]), x_label=x_label,
      y_label=y_label,
  )
  plot.y_axis(y_ticks)
  if x_labels is None:
    ticks = nice_ticks(low, high, 6)
    x_labels = [
        (t, format_number(t))
        for t in ticks
        if low <= t <= high and float(t).is_integer()
    ]
  plot.x_axis(x_labels)
  for position in verticals:
    plot.vertical(position)
  for series in shown:
    plot.series(series)
  return Chart(plot.svg(label), tuple(_legend_mark(s) for s in shown))


def stacked_bars(
    labels: Sequence[str],
    layers: Sequence[Layer],
    *,
    label: str,
    x_label: str,
    y_label: str,
    height: int = HEIGHT,
) -> Chart | None:
  """One bar for each label, the first layer at the bottom.

  Negative values are stacked downwards from 0. Of more than _MAX_BARS bars
  every k-th is shown, and the axis says so. None without a value.
  """
  if not any(v for layer in layers for v in layer.values):
    return None
  stride = math.ceil(len(labels) / _MAX_BARS)
  labels = labels[::stride]
  columns = list(zip(*(layer.values for layer in layers)))[::stride]
  if stride > 1:
    x_label = f'{x_label} (one in {stride})'
  top = max(sum(v for v in c if v and v > 0) for c in columns)
  bottom = min(sum(v for v in c if v and v < 0) for c in columns)
  y_ticks = nice_ticks(bottom, top, 5 if height == HEIGHT else 3)
  plot = _Plot(
      (-0.5, len(labels) - 0.5), (y_ticks[0], y_ticks[-1]), x_label=x_label,
      y_label=y_label, height=height,
  )
  plot.y_axis(y_ticks)
  plot.x_axis(list(enumerate(labels)))
  for i, column in enumerate(columns):
    up = down = 0.0
    for layer, value in zip(layers, column):
      if not value:
        continue
      start = up if value > 0 else down
      number = format_number(abs(value))
      title = f'{layer.name}: {number} ({x_label} {labels[i]})'
      ends = sorted((start, start + value))
      plot.rect(i - 0.36, i + 0.36, *ends, f'bar {layer.css}', title)
      if value > 0:
        up += value
      else:
        down += value
  legend = tuple(LegendItem(a.name, a.css, 'bar') for a in layers)
  return Chart(plot.svg(label), legend)


def scatter(
    points: Sequence[Point],
    *,
    label: str,
    x_label: str,
    y_label: str,
    curve: Series,
    edges: Sequence[float],
    legend: Sequence[LegendItem],
) -> Chart | None:
  """Points under a curve; x runs from 0 to 1, `edges` are dotted lines."""
  if not points:
    return None
  top = max(y for y in curve.ys if y is not None)
  y_ticks = nice_ticks(0, max(top, max(p.y for p in points)))
  plot = _Plot(
      (-0.02, 1.02), (0, y_ticks[-1]), x_label=x_label, y_label=y_label
  )
  plot.y_axis(y_ticks)
  plot.x_axis([(t, format_number(t)) for t in nice_ticks(0, 1)])
  for edge in edges:
    plot.vertical(edge)
  plot.series(curve)
  for point in points:
    radius = min(9.0, 2.0 + 0.9 * math.sqrt(point.weight))
    plot.dot(point.x, point.y, radius, f'cloud {point.css}', point.title)
  return Chart(plot.svg(label), (*legend, _legend_mark(curve)))
