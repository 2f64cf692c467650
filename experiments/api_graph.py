"""Shows which tool can feed or enable which other, and how that is known.

  python -m experiments.api_graph --out=graph.html [--json]
  python -m experiments.api_graph --out=graph.svg
  python -m experiments.api_graph --write

Shown is the graph that the composer's planner walks. --write builds it anew:
from the documentation, from the ground truths of the training scenarios of
configs/rods.py, and from probes (host/synthesis/api_build.py); with --out or
--json as well, that one is shown.

Tools stand around a circle, by class. Blue: a value can flow; red: a call needs
or shows what another has done; grey: names and types fit, but nothing was seen.
Full curves were observed in ground truths, the wider, the more scenarios; pale
ones only probes have shown. The page also lists every edge with its evidence,
and the parameters that take any value, which are not drawn; it shows the edges
of a tool alone while the pointer is on it. With --json the graph goes to
standard output.
"""

import argparse
import html
import json
import math
import pathlib

from configs import rods
from rods_jax.host import bfcl
from rods_jax.host.synthesis import api_build, api_graph, api_probe

SIZE = 1240  # of the square drawing, in pixels
RADIUS = 380  # of the circle that edges end at
GAP = 1.6  # tools that fit between two classes
LETTER = 5.8  # average width in a label
# Kind of a curve -> colour, meaning.
_KINDS = {
    'value': ('#2563a8', 'value that flowed'),
    'state': ('#c2452d', 'state that was needed'),
    'probed-value': ('#9dbfe6', 'value that a probe could pass'),
    'probed-state': ('#eab0a3', 'state that a probe showed'),
    'documented': ('#b9b9b9', 'only documented'),
}
_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;color:#222;margin:24px auto;
max-width:1180px}
svg text{font:10.5px system-ui,sans-serif;fill:#222}
svg text.cls{font-weight:700;font-size:14px}
svg text.idle{fill:#999}
svg path{fill:none;stroke-opacity:.62}
svg.one path{stroke-opacity:.05}
svg.one path.on{stroke-opacity:1}
table{border-collapse:collapse;margin:0 0 28px;font-size:13px}
td,th{text-align:left;padding:3px 9px 3px 0;border-bottom:1px solid #ddd;
vertical-align:top}
"""
_SCRIPT = """
const svg = document.querySelector('svg');
svg.querySelectorAll('[data-tool]').forEach(node => {
  const tool = node.dataset.tool;
  node.addEventListener('mouseenter', () => {
    svg.classList.add('one');
    svg.querySelectorAll('path').forEach(path => path.classList.toggle(
        'on', [path.dataset.from, path.dataset.to].includes(tool)));
  });
  node.addEventListener('mouseleave', () => svg.classList.remove('one'));
});
"""


def angles(tools: dict[str, str]) -> dict[str, float]:
  """Tool -> radians clockwise from the top; classes side by side."""
  classes = list(dict.fromkeys(tools.values()))
  step = 2 * math.pi / (len(tools) + GAP * len(classes))
  return {
      name: step * (i + GAP * (classes.index(cls) + 0.5) + 0.5)
      for i, (name, cls) in enumerate(tools.items())
  }


def at(angle: float, radius: float) -> tuple[float, float]:
  return (
      SIZE / 2 + radius * math.sin(angle),
      SIZE / 2 - radius * math.cos(angle),
  )


def edges(graph: api_graph.ApiGraph) -> list[tuple[str, str, str, int, str]]:
  """(kind, source, target, scenarios, title) of one curve each."""
  merged = {}
  for link in graph.links:
    kind = 'probed-value' if link.accepted else 'documented'
    kind = 'value' if link.scenarios else kind
    key = kind, link.source, link.target
    count, titles = merged.get(key, (0, []))
    titles.append(f'{link.output or "result"} -> {link.param}')
    merged[key] = max(count, len(link.scenarios)), titles
  for need in graph.needs:
    title = f'{", ".join(need.state)}; {len(need.scenarios)} of {need.of}'
    title += f', {need.shown} of {need.probes} probes'
    kind = 'state' if need.scenarios else 'probed-state'
    merged[kind, need.source, need.target] = len(need.scenarios), [title]
  order = list(_KINDS)[::-1]
  return sorted(
      (
          (*key, count, f'{key[1]} -> {key[2]}: {"; ".join(titles)}')
          for key, (count, titles) in merged.items()
      ),
      key=lambda edge: order.index(edge[0]),
  )


def draw(graph: api_graph.ApiGraph) -> str:
  """The graph as SVG."""
  angle = angles(dict(graph.tools))
  found = edges(graph)
  used = {name for _, a, b, _, _ in found for name in (a, b)}
  used |= {each.tool for each in graph.opens}
  parts = [
      f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" '
      f'role="img" aria-label="API graph"><style>{_STYLE}</style><defs>'
  ]
  for kind, (color, _) in _KINDS.items():
    parts.append(
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerUnits="userSpaceOnUse" markerWidth="8" markerHeight="8" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:{color}"/></marker>'
    )
  parts.append('</defs>')
  parts += [_curve(*edge, angle) for edge in found]
  parts += [_label(name, angle[name], name in used) for name in graph.tools]
  parts += [_heading(cls, graph, angle) for cls in bfcl.CLASSES]
  return '\n'.join(parts) + '\n</svg>'


def _curve(kind, source, target, count, title, angle) -> str:
  """Bent towards the middle, the more the further the ends are apart.

  Values leave and enter a little to one side of needs, so both are seen.
  """
  side = 0.006 if 'value' in kind else -0.006 if 'state' in kind else 0.0
  a, b = angle[source] + side, angle[target] + side
  (x1, y1), (x2, y2) = at(a, RADIUS), at(b, RADIUS)
  apart = math.hypot(x2 - x1, y2 - y1) / (2 * RADIUS)
  depth = RADIUS * (0.9 - 0.9 * min(1, apart + 0.12))
  if source == target:
    a, b = a - 0.02, b + 0.02
    (x1, y1), (x2, y2), depth = at(a, RADIUS), at(b, RADIUS), RADIUS * 0.86
  middle = (a + b) / 2 + (math.pi if abs(a - b) > math.pi else 0)
  cx, cy = at(middle, depth)
  width = 0.7 if not count else min(1 + 0.28 * count, 5)
  dash = ' stroke-dasharray="2 3"' if kind == 'documented' else ''
  return (
      f'<path d="M{x1:.1f} {y1:.1f}Q{cx:.1f} {cy:.1f} {x2:.1f} {y2:.1f}" '
      f'stroke="{_KINDS[kind][0]}" stroke-width="{width:.1f}"{dash} '
      f'marker-end="url(#{kind})" data-from="{source}" data-to="{target}">'
      f'<title>{html.escape(title)}</title></path>'
  )


def _label(name: str, angle: float, used: bool) -> str:
  x, y = at(angle, RADIUS + 8)
  degrees = math.degrees(angle) - 90
  left = angle > math.pi
  return (
      f'<text x="{x:.1f}" y="{y:.1f}" dy="3.5" data-tool="{name}" '
      f'class="{"" if used else "idle"}" '
      f'text-anchor="{"end" if left else "start"}" '
      f'transform="rotate({degrees - 180 * left:.1f} {x:.1f} {y:.1f})">'
      f'{name}</text>'
  )


def _heading(cls: str, graph: api_graph.ApiGraph, angle) -> str:
  mine = [name for name, c in graph.tools.items() if c == cls]
  middle = sum(angle[name] for name in mine) / len(mine)
  x, y = at(middle, RADIUS + 24 + LETTER * max(map(len, mine)))
  turned = math.degrees(middle)
  if 90 < turned < 270:  # readable at the bottom too
    turned -= 180
  return (
      f'<text class="cls" x="{x:.1f}" y="{y:.1f}" text-anchor="middle" '
      f'transform="rotate({turned:.1f} {x:.1f} {y:.1f})">{cls}</text>'
  )


def page(graph: api_graph.ApiGraph) -> str:
  """The drawing with its legend and a list of all edges and their evidence."""
  legend = ' &nbsp; '.join(
      f'<b style="color:{color}">{text}</b>' for color, text in _KINDS.values()
  )
  seen = {s for edge in graph.links + graph.needs for s in edge.scenarios}
  return (
      '<!doctype html><html lang="en"><meta charset="utf-8">'
      f'<title>API graph</title><style>{_STYLE}</style>'
      f'<h1>API graph</h1><p>{len(graph.tools)} tools; seen in {len(seen)} '
      f'training scenarios and in probes. {legend}</p>{draw(graph)}'
      f'<h2>Values</h2>{_table(_links(graph))}'
      '<h2>Parameters that take any value</h2>'
      f'{_table(_opens(graph))}<h2>State</h2>{_table(_needs(graph))}'
      f'<script>{_SCRIPT}</script></html>\n'
  )


def _best(edges: tuple) -> list:
  """Those that were observed most often first, then by name."""
  return sorted(edges, key=lambda edge: -len(edge.scenarios))


def _links(graph: api_graph.ApiGraph) -> list[tuple]:
  return [
      ('source', 'output', 'target', 'parameter', 'scenarios', 'documented',
       'probes', 'accepted'),
      *(
          (k.source, k.output or '(whole result)', k.target, k.param,
           len(k.scenarios) or '', 'yes' if k.documented else '',
           k.probes or '', k.accepted if k.probes else '')
          for k in _best(graph.links)
      ),
  ]  # pyformat: disable


def _opens(graph: api_graph.ApiGraph) -> list[tuple]:
  return [
      ('tool', 'parameter', 'takes any', 'probes', 'accepted'),
      *((k.tool, k.param, k.kind, k.probes, k.accepted) for k in graph.opens),
  ]


def _needs(graph: api_graph.ApiGraph) -> list[tuple]:
  return [
      ('left out', 'fails or differs', 'what the first had changed',
       'scenarios', 'of', 'fails', 'probes', 'shown', 'fails'),
      *(
          (n.source, n.target, ', '.join(n.state), len(n.scenarios), n.of,
           n.fails, n.probes, n.shown, n.broken)
          for n in _best(graph.needs)
      ),
  ]  # pyformat: disable


def _table(rows: list[tuple]) -> str:
  lines = [
      ''.join(f'<t{"d" if i else "h"}>{html.escape(str(c))}' for c in row)
      for i, row in enumerate(rows)
  ]
  return '<table><tr>' + '\n<tr>'.join(lines) + '</table>'


def build() -> api_graph.ApiGraph:
  """The graph of the training scenarios of configs/rods.py."""
  data = rods.get_config().data
  train, _ = bfcl.split(
      bfcl.load_tasks(), data.split, data.num_train_scenarios, data.split_seed
  )
  return api_build.build(train.values(), api_probe.Probes())


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--out', type=pathlib.Path, help='.html or .svg')
  parser.add_argument('--json', action='store_true')
  parser.add_argument(
      '--write', action='store_true', help='builds the shipped graph anew'
  )
  args = parser.parse_args()
  if not (args.out or args.json or args.write):
    parser.error('give --out=FILE, --json, --write, or several of them')
  graph = build() if args.write else api_graph.load()
  if args.write:
    api_graph.ASSET.write_text(graph.to_text(), encoding='utf-8')
  if args.json:
    print(json.dumps(graph.to_json(), indent=2))
  if args.out:
    text = draw(graph) if args.out.suffix == '.svg' else page(graph)
    args.out.write_text(text, encoding='utf-8')


if __name__ == '__main__':
  main()
