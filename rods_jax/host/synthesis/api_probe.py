"""Probes: what short chains of calls show about tools.

Each use of a tool (compose/tables.py says how arguments are drawn) is called in
worlds that are drawn from the pools, long contexts in every second one. Then
every use of the same class is called after it, and again in the world that the
first call would have found: what fails or answers something else needs, or
shows, what the first has done. Simulators share nothing, so state does not join
classes. Arguments are drawn, or are one of the first call's arguments, or one
of its outputs: what is taken without an error can be fed with it.

A parameter that takes most values of its kind, wherever they come from, is
open: who feeds it is no matter of the tool.
"""

import collections
import dataclasses
import pickle
from typing import Any, Iterator, Mapping

import numpy as np

from rods_jax.host import bfcl, simulators
from rods_jax.host.synthesis import flow, patience, reading, trace
from rods_jax.host.synthesis.api_graph import NUMBER, TEXT, Open
from rods_jax.host.synthesis.compose import execute, tables, values, worlds
from rods_jax.types import Call

DRAWS = 6  # worlds for each use
FOREIGN = 24  # outputs of other classes that a parameter is tried with
MIN_OPEN = 0.5  # share of them that an open one takes
PATCHES = 3  # of the state, until a first call goes well
_LIMIT_S = patience.LIMITS_S[-1]
_OPTIONS = '[Enum]'  # where the documentation lists all values
_KINDS = {'integer': NUMBER, 'float': NUMBER, 'string': TEXT}


@dataclasses.dataclass
class Shown:
  """What probes of a pair of tools have shown; see api_graph.Need."""

  shown: int = 0
  broken: int = 0
  probes: int = 0
  state: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Begun:
  """A first call that went well.

  Attributes:
    use: of the tables; args: its arguments.
    result: parsed.
    things: of its world.
    before: the pickled world that it found, with the ids and chances that it
      left.
    after: the pickled world that it left.
    state: what it has changed.
  """

  use: tables.Use
  args: Mapping[str, Any]
  result: Any
  things: tuple[tuple[str, Any, str], ...]
  before: bytes
  after: bytes
  state: frozenset[str]


class Probes:
  """All probes of some classes, run at once.

  Attributes:
    outputs: tool -> key of its result -> kind.
    opens: open parameters.
    links: (source, output, target, parameter) -> [accepted, probes].
    needs: (source, target) -> what was shown.
  """

  def __init__(self, classes: tuple[str, ...] = bfcl.CLASSES):
    self._classes = classes
    self._begun = [
        begun for cls in classes for use in tables.uses(cls)
        for begun in _first_calls(use)
    ]  # pyformat: disable
    self._samples = self._outputs()
    self.outputs = collections.defaultdict(dict)
    for (tool, key), sample in self._samples.items():
      self.outputs[tool][key] = _kind_of(sample)
    self.opens = tuple(self._open_params())
    self._closed = _closed_params(classes, self.opens)
    self.links = collections.defaultdict(lambda: [0, 0])
    self.needs = collections.defaultdict(Shown)
    self._chances: set[tuple[str, str]] = set()
    for begun in self._begun:
      self._follow(begun)

  def _outputs(self) -> dict[tuple[str, str], Any]:
    """(tool, key) -> the first value that was seen; sorted."""
    found = {}
    for begun in self._begun:
      for key, value in outputs_of(begun.result):
        found.setdefault((begun.use.tool, key), value)
    return dict(sorted(found.items()))

  def _open_params(self) -> Iterator[Open]:
    """Tries each parameter with outputs of other classes."""
    for cls in self._classes:
      for tool in bfcl.tool_names(cls):
        for param in bfcl.parameters(tool):
          kind = _kind(tool, param)
          foreign = [
              sample for (source, _), sample in self._samples.items()
              if bfcl.owner(source) != cls and _kind_of(sample) == kind
          ]  # pyformat: disable
          foreign = foreign[:: max(1, len(foreign) // FOREIGN)]
          taken = _taken(tool, param, foreign)
          if kind and foreign and taken >= MIN_OPEN * len(foreign):
            yield Open(tool, param, kind, taken, len(foreign))

  def _follow(self, begun: Begun) -> None:
    """Every use of the class after a first call."""
    rng = np.random.default_rng(len(begun.after))
    for use in tables.uses(bfcl.owner(begun.use.tool)):
      args = _drawn(use, pickle.loads(begun.after), begun.things, rng)
      if args is None:
        continue
      if begun.state:
        self._pair(begun, use, args)
      closed = self._closed[use.tool] & args.keys()
      for param in sorted(closed):
        wanted = _kind(use.tool, param)
        for value in begun.args.values() if begun.state else ():
          if _kind_of(value) == wanted:
            self._pair(begun, use, {**args, param: _shaped(
                use.tool, param, value)})  # pyformat: disable
        for key, value in outputs_of(begun.result):
          if _kind_of(value) == wanted:
            ok = self._pair(begun, use, {**args, param: _shaped(
                use.tool, param, value)})  # pyformat: disable
            link = self.links[begun.use.tool, key, use.tool, param]
            link[0] += ok
            link[1] += 1

  def _pair(
      self, begun: Begun, use: tables.Use, args: Mapping[str, Any]
  ) -> bool:
    """One probe; whether the second call goes well after the first."""
    world = pickle.loads(begun.after)
    ids = pickle.dumps(trace.dispensers(world))
    call = Call(use.tool, (), dict(args))
    outcome = world.call(call, _LIMIT_S)
    good = _went_well(use.tool, outcome)
    if not begun.state:
      return good
    other = pickle.loads(begun.before)
    without = other.call(call, _LIMIT_S)
    found = self.needs[begun.use.tool, use.tool]
    found.probes += 1
    if outcome.ok and without.text != outcome.text:
      found.shown += 1
      found.broken += not without.ok
      found.state |= begun.state
      has_drawn = pickle.dumps(trace.dispensers(world)) != ids
      key = begun.use.tool, use.tool
      if has_drawn and not without.ok and key not in self._chances:
        self._chances.add(key)
        self._third(begun, world, other)
    return good

  def _third(
      self, begun: Begun, world: simulators.World, other: simulators.World
  ) -> None:
    """Calls that the first one changes by what the second then draws.

    Args:
      begun: the first call.
      world: after both.
      other: without the first, so that the second failed and drew nothing.
    """
    rng = np.random.default_rng(len(begun.after))
    alone = pickle.loads(begun.after)
    for name, drawn in trace.dispensers(world).items():
      vars(alone.instances[name]).update(drawn)
    both, none, alone = map(pickle.dumps, (world, other, alone))
    for use in tables.uses(bfcl.owner(begun.use.tool)):
      args = _drawn(use, pickle.loads(both), begun.things, rng)
      if args is None:
        continue
      call = Call(use.tool, (), args)
      texts = []
      for start in (both, none, alone):
        outcome = pickle.loads(start).call(call, _LIMIT_S)
        texts.append(outcome.text if outcome.ok else None)
      if texts[0] is None or texts[0] != texts[2]:
        continue  # It fails, or shows what the second has done.
      found = self.needs[begun.use.tool, use.tool]
      found.probes += 1
      if texts[0] != texts[1]:
        found.shown += 1
        found.state |= begun.state


def outputs_of(result: Any) -> Iterator[tuple[str, Any]]:
  """(key, value) of a parsed result: numbers, texts and lists of either."""
  seen = set()
  for path, value in reading.scalars(result):
    key = flow.key_of(path)
    if key in seen or _kind_of(value) is None or value in ('', 'None'):
      continue
    seen.add(key)
    if path and isinstance(path[-1], int):
      items = [v for p, v in reading.scalars(result) if p[:-1] == path[:-1]]
      yield key, list(map(_plain, items))
    else:
      yield key, _plain(value)


def _plain(value: Any) -> Any:
  """What is found in the current folder is called by its name."""
  return value.removeprefix('./') if isinstance(value, str) else value


def _first_calls(use: tables.Use) -> Iterator[Begun]:
  for draw in range(DRAWS):
    rng = np.random.default_rng([draw, use.index])
    begun = _begin(use, rng, draw % 2 == 1)
    if begun is not None:
      yield begun


def _begin(
    use: tables.Use, rng: np.random.Generator, long_context: bool
) -> Begun | None:
  """The use in a new world, patched where that helps; None if it fails."""
  config, things = _config(use, rng)
  for _ in range(PATCHES):
    world = simulators.World((bfcl.owner(use.tool),), config, long_context)
    before = pickle.dumps(world)
    args = _drawn(use, world, things, rng)
    if args is None:
      return None
    outcome = world.call(Call(use.tool, (), args), _LIMIT_S)
    if _went_well(use.tool, outcome):
      break
    patched = worlds.patched(config, outcome.text)
    if patched is None:
      return None
    config = patched[0]
  else:
    return None
  bare = pickle.loads(before)
  state = trace.changed(bare, world)
  for name, drawn in trace.dispensers(world).items():
    vars(bare.instances[name]).update(drawn)
  return Begun(
      use, args, reading.parsed(outcome.text), things, pickle.dumps(bare),
      pickle.dumps(world), state,
  )  # pyformat: disable


def _config(use: tables.Use, rng: np.random.Generator):
  """A configuration in which the use is possible, and its things."""
  owner = bfcl.owner(use.tool)
  drawn = worlds.draw((owner,), rng)
  wanted = tuple((owner, key, value) for key, value in use.config)
  return worlds.with_initial(drawn.config, wanted), drawn.things


def _drawn(
    use: tables.Use,
    world: simulators.World,
    things: tuple[tuple[str, Any, str], ...],
    rng: np.random.Generator,
) -> dict[str, Any] | None:
  """Arguments of a use; None where a kind has no value that fits.

  A thing that no initial state holds is replaced by any value of its type.
  """
  context = values.Context(rng, world.instances)
  parts = []
  for params, sources in use.args:
    there = [
        s for s in sources
        if s.how != tables.THING or any(s.kind == t[0] for t in things)
    ]  # pyformat: disable
    source = there[int(rng.integers(len(there)))] if there else None
    parts.append((params, source))
  parts.sort(key=_is_drawn)
  for params, source in parts:
    value = _value(use.tool, params, source, things, context)
    if value is None:
      return None
    context.args.update(zip(params, value if len(params) > 1 else (value,)))
  return dict(context.args)


def _is_drawn(part: tuple[tuple[str, ...], tables.Source | None]) -> bool:
  """Whether an argument comes last, as it may have to fit the others."""
  source = part[1]
  return source is not None and source.how in (tables.POOL, tables.NEW)


def _value(tool, params, source, things, context) -> Any:
  """What one argument, or several together, are drawn as."""
  rng = context.rng
  if source is None:
    if _kind(tool, params[0]) == NUMBER:
      return float(rng.integers(20, 900))
    return _shaped(tool, params[0], worlds.sentence(rng))
  if source.how in (tables.CONST, tables.OPTION):
    return worlds.pick(rng, source.values)
  if source.how == tables.THING:
    return worlds.pick(rng, [t[1] for t in things if t[0] == source.kind])
  try:
    return values.draw(source.kind, context)
  except (LookupError, StopIteration):
    return None  # It is drawn from a thing that is elsewhere.


def _taken(tool: str, param: str, foreign: list[Any]) -> int:
  """How many of these values a parameter takes."""
  for use in tables.uses(bfcl.owner(tool)):
    if use.tool != tool or all(param not in params for params, _ in use.args):
      continue
    begun = next(_first_calls(use), None)
    if begun is not None:
      calls = [
          Call(tool, (), {**begun.args, param: _shaped(tool, param, value)})
          for value in foreign
      ]
      return sum(
          _went_well(tool, pickle.loads(begun.before).call(call, _LIMIT_S))
          for call in calls
      )
  return 0


def _went_well(tool: str, outcome: simulators.Outcome) -> bool:
  return outcome.ok and not execute.is_soft_failure(
      tool, reading.parsed(outcome.text)
  )


def _closed_params(
    classes: tuple[str, ...], opens: tuple[Open, ...]
) -> dict[str, set[str]]:
  """Tool -> parameters that take numbers or texts, but not any of them."""
  known = {(each.tool, each.param) for each in opens}
  return {
      tool: {
          param for param in bfcl.parameters(tool)
          if _kind(tool, param) and (tool, param) not in known
      }
      for cls in classes for tool in bfcl.tool_names(cls)
  }  # pyformat: disable


def _spec(tool: str, param: str) -> Mapping[str, Any]:
  properties = bfcl.tool_doc(tool)['parameters']['properties']
  return properties.get(param, {})


def _kind(tool: str, param: str) -> str | None:
  """Kind of the values, or of a list's items; None for options and others."""
  spec = _spec(tool, param)
  if _OPTIONS in spec.get('description', ''):
    return None
  if spec.get('type') == 'array':
    spec = spec.get('items', {})
  return _KINDS.get(spec.get('type'))


def _kind_of(value: Any) -> str | None:
  if isinstance(value, (list, tuple)) and value:
    value = value[0]
  if reading.is_number(value):
    return NUMBER
  return TEXT if isinstance(value, str) else None


def _shaped(tool: str, param: str, value: Any) -> Any:
  """The value as a list where one is wanted, else its first item."""
  is_list = isinstance(value, (list, tuple))
  if _spec(tool, param).get('type') == 'array':
    return value if is_list else [value]
  return value[0] if is_list else value
