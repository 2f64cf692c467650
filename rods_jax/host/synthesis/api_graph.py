"""Which tool can feed or enable which other: the graph that Plan walks.

  links  an output of one tool can be an argument of another;
  opens  a parameter takes any number or any text, so every such output;
  needs  a call of one tool needs, or shows, what a call of another has done.

Each tells its evidence: the documentation, the scenarios in which it was
observed, and how many probes have shown it (api_build.py puts them together).
`python -m experiments.api_graph --write` builds the graph of the training
scenarios of configs/rods.py and writes assets/api_graph.json, which `load`
reads whatever the run's split is. Of what the composer can use all but one edge
(message_login enables delete_message) is there without an observation. So a run
that holds out other scenarios learns next to nothing of them here.
"""

import collections
import dataclasses
import functools
import json
import pathlib
from typing import Any, Mapping

import networkx as nx

from rods_jax.host import bfcl

ASSET = pathlib.Path(__file__).parents[2] / 'assets' / 'api_graph.json'
NUMBER, TEXT = 'number', 'text'  # kinds of values, alone or in a list


@dataclasses.dataclass(frozen=True)
class Link:
  """An output that can feed a parameter.

  Attributes:
    source: tool; output: a key of its result, '' for the result as a whole.
    target: tool; param: one of its parameters.
    documented: whether names and types in the documentation fit.
    scenarios: scenarios of the tasks in which a value flowed.
    accepted: probes in which the target took the output; of so many `probes`.
  """

  source: str
  output: str
  target: str
  param: str
  documented: bool
  scenarios: tuple[int, ...] = ()
  accepted: int = 0
  probes: int = 0


@dataclasses.dataclass(frozen=True)
class Open:
  """A parameter that takes whatever has the right kind.

  Attributes:
    kind: NUMBER or TEXT; a number can be quoted in a text.
    accepted: probes in which it took an output of another class; of so many
      `probes`.
  """

  tool: str
  param: str
  kind: str
  accepted: int
  probes: int


@dataclasses.dataclass(frozen=True)
class Need:
  """A tool whose calls need what calls of another tool have done.

  Attributes:
    source: the tool that was left out.
    target: the tool that failed, or whose result changed, without it.
    state: 'Class.attribute' of all that those calls of source had changed.
    scenarios: scenarios in which that was so.
    of: scenarios in which source was called before target at all.
    fails: scenarios in which target failed, rather than answer another thing.
    shown: probes that showed it; of so many `probes`, of which target failed
      in `broken`.
  """

  source: str
  target: str
  state: tuple[str, ...]
  scenarios: tuple[int, ...] = ()
  of: int = 0
  fails: int = 0
  shown: int = 0
  broken: int = 0
  probes: int = 0


@dataclasses.dataclass(frozen=True)
class ApiGraph:
  """Tools and what joins them; each sorted.

  Attributes:
    calls: tool -> scenarios that call it.
    outputs: tool -> key of its result -> kind.
  """

  calls: Mapping[str, int]
  outputs: Mapping[str, Mapping[str, str]]
  links: tuple[Link, ...]
  opens: tuple[Open, ...]
  needs: tuple[Need, ...]

  @functools.cached_property
  def tools(self) -> dict[str, str]:
    """Tool -> its class, in the documentation's order."""
    return {n: cls for cls in bfcl.CLASSES for n in bfcl.tool_names(cls)}

  def feeds(self, source: str, output: str, target: str, param: str) -> bool:
    """Whether an output can be, or be quoted in, an argument."""
    if (source, output, target, param) in self._links:
      return True
    taken = self._opens.get((target, param), ())
    return self.outputs.get(source, {}).get(output) in taken

  def enables(self, source: str, target: str) -> bool:
    """Whether a call of target can need, or show, what source has done."""
    return (source, target) in self._needs

  @functools.cached_property
  def successors(self) -> Mapping[str, frozenset[str]]:
    """Tool -> tools that can depend on it in any way."""
    found = {tool: set() for tool in self.tools}
    for edge in (*self.links, *self.needs):
      found[edge.source].add(edge.target)
    for tool, outputs in self.outputs.items():
      for (target, _), taken in self._opens.items():
        if not taken.isdisjoint(outputs.values()):
          found[tool].add(target)
    return {tool: frozenset(targets) for tool, targets in found.items()}

  @functools.cached_property
  def _links(self) -> frozenset[tuple[str, str, str, str]]:
    return frozenset(
        (k.source, k.output, k.target, k.param) for k in self.links
    )

  @functools.cached_property
  def _needs(self) -> frozenset[tuple[str, str]]:
    return frozenset((n.source, n.target) for n in self.needs)

  @functools.cached_property
  def _opens(self) -> Mapping[tuple[str, str], set[str]]:
    """(tool, parameter) -> kinds that it takes."""
    found = collections.defaultdict(set)
    for each in self.opens:
      both = {NUMBER, TEXT} if each.kind == TEXT else {NUMBER}
      found[each.tool, each.param] |= both
    return dict(found)

  def graph(self) -> nx.MultiDiGraph:
    """Tools as nodes (cls), links ('value') and needs ('state') as edges.

    Open parameters are left out: they join nearly all tools.
    """
    graph = nx.MultiDiGraph()
    for name, cls in self.tools.items():
      graph.add_node(name, cls=cls)
    for kind, edges in (('value', self.links), ('state', self.needs)):
      for edge in edges:
        graph.add_edge(edge.source, edge.target, kind=kind, edge=edge)
    return graph

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  def to_text(self) -> str:
    """The asset: JSON with a line for each tool and edge."""
    outputs = (
        f'{json.dumps(tool)}: {json.dumps(keys)}'
        for tool, keys in self.outputs.items()
    )
    parts = [
        f'"calls": {json.dumps(self.calls)}',
        f'"outputs": {{\n  {_JOIN.join(outputs)}\n }}',
    ]
    for name, kind in _EDGES.items():
      rows = [[field.name for field in dataclasses.fields(kind)]]
      rows += map(dataclasses.astuple, getattr(self, name))
      text = _JOIN.join(json.dumps(row) for row in rows)
      parts.append(f'"{name}": [\n  {text}\n ]')
    return '{\n ' + ',\n '.join(parts) + '\n}\n'

  @classmethod
  def from_text(cls, text: str) -> 'ApiGraph':
    data = json.loads(text)
    for name, kind in _EDGES.items():
      fields, *rows = data[name]
      data[name] = tuple(
          kind(**{
              field: tuple(value) if isinstance(value, list) else value
              for field, value in zip(fields, row)
          }) for row in rows
      )  # pyformat: disable
    return cls(**data)


_EDGES = {'links': Link, 'opens': Open, 'needs': Need}
_JOIN = ',\n  '  # of the asset's lines


@functools.cache
def load() -> ApiGraph:
  """The graph that is shipped; see the module's docstring."""
  return ApiGraph.from_text(ASSET.read_text(encoding='utf-8'))
