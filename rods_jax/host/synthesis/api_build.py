"""Builds the API graph: from the documentation, observations and probes.

  documented  names and types of an output and a parameter fit;
  observed    a value flowed, or leaving out a call changed a later one, when
              the ground truths of tasks were executed;
  probed      short chains of calls showed it (api_probe.py).

Observations come from the tasks given to `build` alone, and probes draw their
worlds and values from the pools, so that a graph of the training scenarios
knows nothing of the held-out ones.
"""

import collections
import copy
import re
from typing import Any, Iterable, Iterator, Mapping

from rods_jax.host import bfcl
from rods_jax.host.synthesis import api_probe, flow, patience, reading, trace
from rods_jax.host.synthesis.api_graph import ApiGraph, Link, Need
from rods_jax.types import Task

# Names that say too little: a result's 'status' feeds no parameter 'status'.
_VAGUE = frozenset((
    'id', 'status', 'name', 'message', 'result', 'value', 'type', 'number',
    'mode', 'content', 'title', 'description', 'priority', 'amount',
))  # pyformat: disable
_TYPES = {'integer': 'number', 'float': 'number'}  # one feeds the other


def build(
    tasks: Iterable[Task], probes: api_probe.Probes | None = None
) -> ApiGraph:
  """The graph of all documented tools.

  Args:
    tasks: whose ground truths are executed, and no others.
    probes: what they have shown, if there are any.
  """
  flows = collections.defaultdict(set)
  seen = _Observations()
  for task in tasks:
    executed = trace.run(task)
    for key in _value_flows(executed):
      flows[key].add(task.scenario)
    seen.add(executed)
  documented = set(documented_links())
  probed = probes.links if probes else {}
  accepted = {key for key, (count, _) in probed.items() if count}
  links = tuple(
      Link(
          *key, key in documented, tuple(sorted(flows[key])),
          *probed.get(key, (0, 0)),
      )
      for key in sorted(documented | flows.keys() | accepted)
  )  # pyformat: disable
  names = [name for cls in bfcl.CLASSES for name in bfcl.tool_names(cls)]
  return ApiGraph(
      calls={name: len(seen.calls[name]) for name in names},
      outputs={n: probes.outputs[n] for n in names if n in probes.outputs}
      if probes else {},
      links=links,
      opens=probes.opens if probes else (),
      needs=seen.needs(probes.needs if probes else {}),
  )  # pyformat: disable


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

  def needs(
      self, probed: Mapping[tuple[str, str], api_probe.Shown]
  ) -> tuple[Need, ...]:
    """What was observed, and what probes have shown."""
    none = api_probe.Shown()
    pairs = {pair for pair, found in probed.items() if found.shown}
    return tuple(
        Need(
            *pair,
            state=tuple(sorted(self._state[pair] | found.state)),
            scenarios=tuple(sorted(self._needs[pair])),
            of=len(self._pairs[pair]),
            fails=len(self._fails[pair]),
            shown=found.shown,
            broken=found.broken,
            probes=found.probes,
        )
        for pair in sorted(pairs | self._needs.keys())
        for found in (probed.get(pair, none),)
    )


def changes(task: Task) -> tuple[frozenset[str], ...]:
  """Per call, the attributes 'Class.attribute' that it changed.

  Hidden ones count (the working directory is one), but not what ids and
  chances are drawn from.
  """
  world = reading.new_world(task, task.initial_config)
  found = []
  for step in trace.run(task).steps:
    before = copy.deepcopy(world)
    world.call(step.call, patience.LIMITS_S[-1])
    found.append(trace.changed(before, world))
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
