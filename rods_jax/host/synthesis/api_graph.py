"""Which tool can feed or enable which other: documented and observed.

  links  an output of one tool can be an argument of another: by name and type
         in the documentation, and by values that flowed in ground truths;
  needs  a call of one tool needs what a call of another has done: leaving the
         first out made the second fail or answer something else.

Observations come from the tasks given to `build` alone, so that a graph of the
training scenarios knows nothing of the held-out ones.
"""

import collections
import copy
import dataclasses
import re
from typing import Any, Iterable, Iterator, Mapping

import networkx as nx

from rods_jax.host import bfcl
from rods_jax.host.synthesis import flow, patience, reading, trace
from rods_jax.types import Task

# Names that say too little: a result's 'status' feeds no parameter 'status'.
_VAGUE = frozenset((
    'id', 'status', 'name', 'message', 'result', 'value', 'type', 'number',
    'mode', 'content', 'title', 'description', 'priority', 'amount',
))  # pyformat: disable
_TYPES = {'integer': 'number', 'float': 'number'}  # one feeds the other


@dataclasses.dataclass(frozen=True)
class Link:
  """An output that can feed a parameter.

  Attributes:
    source: tool; output: a key of its result, '' for the result as a whole.
    target: tool; param: one of its parameters.
    documented: whether names and types in the documentation fit.
    scenarios: scenarios of the tasks in which a value flowed.
  """

  source: str
  output: str
  target: str
  param: str
  documented: bool
  scenarios: tuple[int, ...]


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
  """

  source: str
  target: str
  state: tuple[str, ...]
  scenarios: tuple[int, ...]
  of: int
  fails: int


@dataclasses.dataclass(frozen=True)
class ApiGraph:
  """Tools, links and needs; each sorted.

  Attributes:
    tools: tool -> its class.
    calls: tool -> scenarios that call it.
  """

  tools: Mapping[str, str]
  calls: Mapping[str, int]
  links: tuple[Link, ...]
  needs: tuple[Need, ...]

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  def graph(self) -> nx.MultiDiGraph:
    """Tools as nodes (cls), links ('value') and needs ('state') as edges."""
    graph = nx.MultiDiGraph()
    for name, cls in self.tools.items():
      graph.add_node(name, cls=cls)
    for kind, edges in (('value', self.links), ('state', self.needs)):
      for edge in edges:
        graph.add_edge(edge.source, edge.target, kind=kind, edge=edge)
    return graph


def build(tasks: Iterable[Task]) -> ApiGraph:
  """The graph of all documented tools.

  Args:
    tasks: whose ground truths are executed, and no others.
  """
  tools = {n: cls for cls in bfcl.CLASSES for n in bfcl.tool_names(cls)}
  flows = collections.defaultdict(set)
  seen = _Observations()
  for task in tasks:
    executed = trace.run(task)
    for key in _value_flows(executed):
      flows[key].add(task.scenario)
    seen.add(executed)
  documented = set(documented_links())
  links = tuple(
      Link(*key, key in documented, tuple(sorted(flows[key])))
      for key in sorted(documented | flows.keys())
  )
  calls = {name: len(seen.calls[name]) for name in tools}
  return ApiGraph(tools, calls, links, seen.needs())


def _value_flows(executed: trace.Trace) -> Iterator[tuple[str, str, str, str]]:
  """(source, output, target, parameter) of every value that flowed."""
  for found in flow.flows(executed):
    if found.source is not None:
      step = executed.steps[found.source]
      keys = flow.outputs_holding(step, found.argument)
      yield step.call.name, keys[0], found.argument.tool, found.argument.param


class _Observations:
  """What leaving calls out has shown, by pairs of tools."""

  def __init__(self):
    self.calls = collections.defaultdict(set)
    self._pairs = collections.defaultdict(set)
    self._needs = collections.defaultdict(set)
    self._fails = collections.defaultdict(set)
    self._state = collections.defaultdict(set)

  def add(self, executed: trace.Trace) -> None:
    scenario, steps = executed.task.scenario, executed.steps
    changed = changes(executed.task)
    for j, target in enumerate(steps):
      self.calls[target.call.name].add(scenario)
      for i in range(j):
        pair = steps[i].call.name, target.call.name
        self._pairs[pair].add(scenario)
        if (i, j) in executed.needs:
          self._needs[pair].add(scenario)
          self._state[pair] |= changed[i]
          if executed.needs[i, j]:
            self._fails[pair].add(scenario)

  def needs(self) -> tuple[Need, ...]:
    return tuple(
        Need(
            *pair,
            state=tuple(sorted(self._state[pair])),
            scenarios=tuple(sorted(scenarios)),
            of=len(self._pairs[pair]),
            fails=len(self._fails[pair]),
        )
        for pair, scenarios in sorted(self._needs.items())
    )


def changes(task: Task) -> tuple[frozenset[str], ...]:
  """Per call, the attributes 'Class.attribute' that it changed.

  Hidden ones count (the working directory is one), but not what ids and
  chances are drawn from.
  """
  world = reading.new_world(task, task.initial_config)
  found = []
  for step in trace.run(task).steps:
    before = {
        name: copy.deepcopy(vars(instance))
        for name, instance in world.instances.items()
    }
    world.call(step.call, patience.LIMITS_S[-1])
    found.append(
        frozenset(
            f'{name}.{key}'
            for name, instance in world.instances.items()
            for key, value in vars(instance).items()
            if key not in trace.DISPENSERS and before[name].get(key) != value
        )
    )
  return tuple(found)


def documented_links() -> Iterator[tuple[str, str, str, str]]:
  """(source, output, target, parameter) whose names and types fit.

  Names fit when one ends in the other ('access_token' and 'token') and says
  enough; the 'id' that post_tweet returns is a tweet_id.
  """
  outputs, params = [], []
  for cls in bfcl.CLASSES:
    for name in bfcl.tool_names(cls):
      doc = bfcl.tool_doc(name)
      for key, spec in doc['response'].get('properties', {}).items():
        outputs.append((name, key, _meaning(name, key), _type(spec)))
      for key, spec in doc['parameters']['properties'].items():
        params.append((name, key, _words(key), _type(spec)))
  for source, output, meaning, kind in outputs:
    for target, param, words, wanted in params:
      if source != target and kind == wanted and _fits(meaning, words):
        yield source, output, target, param


def _type(spec: Mapping[str, Any]) -> str:
  kind = spec.get('type', '')
  if kind == 'array':  # its items can be arguments one by one
    kind = spec.get('items', {}).get('type', '')
  return _TYPES.get(kind, kind)


def _words(name: str) -> tuple[str, ...]:
  """'booking_id' and 'bookingId' -> ('booking', 'id'); plurals are one."""
  parts = [p.lower() for p in re.findall(r'[A-Z]?[a-z]+|[A-Z]+|\d+', name)]
  return tuple(p if p in _VAGUE else p.removesuffix('s') for p in parts)


def _meaning(tool: str, key: str) -> tuple[str, ...]:
  """The words of an output; a bare 'id' is one of what the tool makes."""
  words = _words(key)
  return (_words(tool)[-1], 'id') if words == ('id',) else words


def _fits(output: tuple[str, ...], param: tuple[str, ...]) -> bool:
  short, long = sorted((output, param), key=len)
  if not short or long[len(long) - len(short) :] != short:
    return False
  return len(short) > 1 or short[0] not in _VAGUE
