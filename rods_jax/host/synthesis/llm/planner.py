"""The planner: a language model writes the chain of calls, the program checks.

It is shown an initial state, the tools on offer and the structure that is
wanted, and answers with a story, changes of the state, and calls with values or
references to earlier results. What it writes becomes a Plan like any other: its
calls are run, and its dependencies are measured and compared with the seed's.
After a rejection it is told why, and answers again in the same conversation.
"""

import copy
import dataclasses
import json
import math
from typing import Any, Mapping

import networkx as nx
import numpy as np

from rods_jax.host import bfcl, simulators, tool_calls
from rods_jax.host.synthesis import profile, trace
from rods_jax.host.synthesis.compose import execute, tables, worlds
from rods_jax.host.synthesis.compose.plan import STAGE
from rods_jax.host.synthesis.compose.records import (
    Brief,
    Execution,
    Gates,
    Plan,
    Slot,
    Step,
    Thing,
)
from rods_jax.host.synthesis.compose.values import shown
from rods_jax.host.synthesis.llm import answers, calls, prompts
from rods_jax.host.synthesis.llm.answers import Unusable
from rods_jax.host.synthesis.reading import scalars
from rods_jax.host.synthesis.records import Rejection
from rods_jax.types import Turn

MAX_STORY = 2000  # characters
MAX_CHANGES = 20  # of the initial state


@dataclasses.dataclass(frozen=True)
class Draft:
  """What the planner wrote, its form checked.

  Attributes:
    story: the narrative.
    config: the initial state with its changes.
    calls: (turn, call); a Reference may stand for an argument.
  """

  story: str
  config: Mapping[str, Any]
  calls: tuple[tuple[int, calls.Draft], ...]


class Planner:
  """Plans one task; holds the conversation."""

  def __init__(self, ask: answers.Ask, gates: Gates = Gates()):
    self._ask, self._gates = ask, gates
    self._config: Mapping[str, Any] = {}
    self._messages: prompts.Messages = ()

  def plan(
      self,
      brief: Brief,
      blocked: frozenset[str],
      rng: np.random.Generator,
      last: Rejection | None = None,
  ) -> Plan | Rejection:
    """A plan whose calls run and depend as the seed's, or why there is none.

    Args:
      brief: what the variant has to look like.
      blocked: tools not to use.
      rng: draws the initial state, and seeds the sampling.
      last: why the plan before was rejected.
    """
    if not self._messages:
      self._config = worlds.draw(brief.seed.classes, rng).config
      self._messages = prompts.messages('planner', self._data(brief))
    if last is not None:
      self._messages += (('user', prompts.note('replan', {
          'stage': last.stage, 'reason': last.reason, 'detail': last.detail,
          'blocked': sorted(blocked),
      })),)  # pyformat: disable
    allowed = brief.offered - blocked
    found = answers.obtain(
        self._ask,
        STAGE,
        self._messages,
        int(rng.integers(2**31)),
        lambda data: self._draft(data, brief, allowed),
    )
    if isinstance(found, Rejection):
      self._reply('{}')  # Roles take turns.
      return found
    draft, text = found
    self._reply(text)
    return _measured(brief, draft, self._gates)

  def _reply(self, text: str) -> None:
    self._messages += (('assistant', text),)

  def _data(self, brief: Brief) -> dict[str, Any]:
    return {
        'initial_state': self._config,
        'tools': [
            {**calls.doc(name), 'class': cls} for cls in brief.seed.classes
            for name in bfcl.tool_names(cls) if name in brief.offered
        ],
        'calls_per_turn': brief.calls,
        'classes': profile.of(brief.seed).classes,
        'turns_that_need_an_earlier_one': _turns_back(brief, self._gates),
        'dependencies': sorted(brief.links),
        'avoid': brief.tools,
    }  # pyformat: disable

  def _draft(
      self, data: dict[str, Any], brief: Brief, allowed: frozenset[str]
  ) -> Draft:
    """Checks the form. Raises Unusable."""
    story = answers.field(data, 'story', str, MAX_STORY)
    config = copy.deepcopy(dict(self._config))
    if 'changes' in data:
      for change in answers.field(data, 'changes', list, MAX_CHANGES):
        _change(config, change)
      _load(brief, config)
    turns = answers.field(data, 'turns', list)
    counts = [len(t) if isinstance(t, list) else 0 for t in turns]
    if tuple(counts) != brief.calls:
      raise Unusable(
          'another number of calls in the turns',
          f'wanted {list(brief.calls)}, found {counts}',
      )
    made = []
    for turn, written in enumerate(turns):
      for call in written:
        made.append((turn, calls.check(call, allowed, len(made))))
    if tuple(call.tool for _, call in made) == brief.tools:
      raise Unusable("the seed's calls again")
    return Draft(story, config, tuple(made))


def _change(config: dict[str, Any], change: Any) -> None:
  """Sets one value of the state to another of the same kind.

  Raises:
    Unusable: there is no such value, or it is of another kind.
  """
  path = answers.field(change, 'path', list)
  where: Any = config
  for key in path[:-1]:
    where = _inside(where, key)
  if not path or isinstance(_inside(where, path[-1]), (dict, list)):
    raise Unusable('a change of what is no single value', _clip(path))
  old, new = where[path[-1]], change.get('value')
  if type(old) is float and type(new) is int:
    new = float(new)
  if type(new) is not type(old):
    raise Unusable('a change to another kind of value', _clip(path))
  where[path[-1]] = new


def _load(brief: Brief, config: Mapping[str, Any]) -> None:
  """Raises Unusable for a state that the simulators cannot start from."""
  try:
    simulators.World(brief.seed.classes, config, brief.long_context)
  except Exception as error:  # whatever a simulator raises
    raise Unusable(
        'no initial state after the changes', type(error).__name__
    ) from error


def _inside(where: Any, key: Any) -> Any:
  fits = isinstance(where, dict) and isinstance(key, str) or (
      isinstance(where, list) and type(key) is int and key >= 0
  )
  try:
    if fits:
      return where[key]
  except (KeyError, IndexError):
    pass
  raise Unusable('a change of what is not in the state', _clip(key))


def _clip(value: Any) -> str:
  return json.dumps(value)[:200]


def _turns_back(brief: Brief, gates: Gates) -> int:
  """Turns that must need an earlier one, at least.

  Where the seed lets the user say a value late, that counts as an earlier turn,
  and comes by itself; so what the seed has without it is enough here.
  """
  wanted = min(profile.of(t).turns_back for t in (brief.seed, brief.base))
  return math.ceil(gates.min_cross_turn * wanted)


def _measured(brief: Brief, draft: Draft, gates: Gates) -> Plan | Rejection:
  """The draft as a plan with the dependencies that its execution shows."""
  plan = _as_plan(brief, draft)
  # Nothing is left to chance in it.
  executed = execute.execute(plan, np.random.default_rng(0))
  if isinstance(executed, Rejection):
    if execute.NOTHING_AT in executed.reason:  # no fault of the tool
      return Rejection(STAGE, 'a reference to nothing', executed.reason)
    return executed
  try:
    found = profile.measure(trace.run(_spoken(brief, plan, executed)))
  except tool_calls.ParseError as error:
    return Rejection(STAGE, 'a call cannot be written down', str(error))
  wanted = nx.DiGraph()
  wanted.add_nodes_from(range(len(brief.tools)))
  wanted.add_edges_from(brief.links)
  if not nx.is_isomorphic(found.graph, wanted):
    return Rejection(
        STAGE,
        'the calls have other dependencies',
        f'wanted {sorted(brief.links)}, found {sorted(found.links)}',
    )
  classes = profile.of(brief.seed).classes
  if profile.edit_distance(found.classes, classes) > gates.max_class_distance:
    return Rejection(
        STAGE,
        'the calls are of other classes',
        f'wanted {list(classes)}, found {list(found.classes)}',
    )
  wanted_back, back = _turns_back(brief, gates), _may_refer(plan, executed)
  back |= {
      plan.steps[j].turn for i, j in found.links
      if plan.steps[i].turn < plan.steps[j].turn
  }  # pyformat: disable
  if len(back) < wanted_back:
    return Rejection(
        STAGE,
        'too few turns need an earlier one',
        f'wanted {wanted_back}, found {len(back)}: turns {sorted(back)}',
    )
  return dataclasses.replace(plan, links=found.links)


def _as_plan(brief: Brief, draft: Draft) -> Plan:
  things: dict[calls.Reference, Thing] = {}
  steps = []
  for turn, call in draft.calls:
    slots = []
    for param, value in call.args.items():
      if isinstance(value, calls.Reference):
        thing = things.setdefault(
            value,
            Thing(
                len(things), 'value', maker=value.call, source=value.call,
                path=value.path,
            ),
        )  # pyformat: disable
        source = tables.Source(tables.THING, 'value')
        slots.append(Slot((param,), source, thing.number))
      else:
        source = tables.Source(tables.CONST, values=(value,))
        slots.append(Slot((param,), source))
    steps.append(Step(turn, tables.Use(0, call.tool, ()), tuple(slots)))
  return Plan(
      brief, draft.config, tuple(things.values()), tuple(steps), frozenset(),
      draft.story,
  )  # pyformat: disable


def said(plan: Plan, executed: Execution) -> tuple[tuple[Any, ...], ...]:
  """Per turn, the single values that the user has to bring, each once."""
  found: list[dict] = [{} for _ in plan.brief.calls]
  for step, values in zip(plan.steps, executed.values):
    for slot in step.slots:
      if slot.thing is None:
        for _, value in scalars(values[slot.params[0]]):
          if not isinstance(value, bool) and value not in (None, ''):
            found[step.turn][shown(value)] = value
  return tuple(tuple(values.values()) for values in found)


def _may_refer(plan: Plan, executed: Execution) -> set[int]:
  """Turns with a value that the user may leave to an earlier one."""
  heard: set[str] = set()
  found = set()
  for turn, values in enumerate(said(plan, executed)):
    texts = set(map(shown, values))
    if texts & heard:
      found.add(turn)
    heard |= texts
  return found


def _spoken(brief: Brief, plan: Plan, executed: Execution):
  """The task, before there are words: the user says the values alone."""
  rendered = [[] for _ in brief.calls]
  for step, call in zip(plan.steps, executed.calls):
    rendered[step.turn].append(tool_calls.render(call))
  turns = tuple(
      Turn('; '.join(map(shown, values)), tuple(made))
      for values, made in zip(said(plan, executed), rendered)
  )
  return dataclasses.replace(
      brief.base, initial_config=executed.config, turns=turns
  )
