"""Calls for probes: drawn arguments, first calls, and what a value is.

Worlds come from the pools, and arguments as the composer's tables say; what no
initial state holds is replaced by any value of its type.
"""

import copy
import dataclasses
import pickle
from typing import Any, Iterator, Mapping

import numpy as np

from rods_jax.host import bfcl, simulators
from rods_jax.host.synthesis import flow, patience, reading, trace
from rods_jax.host.synthesis.api_graph import NUMBER, TEXT
from rods_jax.host.synthesis.compose import execute, tables, values, worlds
from rods_jax.types import Call

DRAWS = 6  # worlds for each use of a tool; long contexts in every second one
PATCHES = 3  # of the state, until a first call goes well
LIMIT_S = patience.LIMITS_S[-1]
_KINDS = {'integer': NUMBER, 'float': NUMBER, 'string': TEXT}
_OPTIONS = '[Enum]'  # where the documentation lists all values


@dataclasses.dataclass(frozen=True)
class Begun:
  """A first call that went well.

  Attributes:
    key: of its random stream.
    use: of the tables; args: its arguments.
    result: parsed.
    things: of its world.
    before: the pickled world that it found, with the ids and chances that it
      left.
    after: the pickled world that it left.
    state: what it has changed.
  """

  key: tuple[int, ...]
  use: tables.Use
  args: Mapping[str, Any]
  result: Any
  things: tuple[tuple[str, Any, str], ...]
  before: bytes
  after: bytes
  state: frozenset[str]


def first_calls(use: tables.Use) -> Iterator[Begun]:
  """The use in DRAWS worlds, where it goes well."""
  for draw in range(DRAWS):
    begun = _begin(use, (draw, use.index), draw % 2 == 1)
    if begun is not None:
      yield begun


def _begin(
    use: tables.Use, key: tuple[int, ...], long_context: bool
) -> Begun | None:
  """The use in a new world, patched where that helps; None if it fails."""
  rng = np.random.default_rng(key)
  config, things = _config(use, rng)
  for _ in range(PATCHES):
    world = simulators.World((bfcl.owner(use.tool),), config, long_context)
    before = pickle.dumps(world)
    args = arguments(use, world, things, rng)
    if args is None:
      return None
    outcome = world.call(Call(use.tool, (), args), LIMIT_S)
    if went_well(use.tool, outcome):
      break
    patched = worlds.patched(config, outcome.text)
    if patched is None:
      return None
    config = patched[0]
  else:
    return None
  bare = pickle.loads(before)
  state = trace.changed(bare, world)
  pass_on(world, bare)
  return Begun(
      key, use, args, reading.parsed(outcome.text), things,
      pickle.dumps(bare), pickle.dumps(world), state,
  )  # pyformat: disable


def pass_on(world: simulators.World, other: simulators.World) -> None:
  """Other goes on with the ids and chances that the world has left."""
  for name, left in trace.dispensers(world).items():
    vars(other.instances[name]).update(copy.deepcopy(left))


def _config(use: tables.Use, rng: np.random.Generator):
  """A configuration in which the use is possible, and its things."""
  owner = bfcl.owner(use.tool)
  drawn = worlds.draw((owner,), rng)
  wanted = tuple((owner, key, value) for key, value in use.config)
  return worlds.with_initial(drawn.config, wanted), drawn.things


def arguments(
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
    if kind_taken(tool, params[0]) == NUMBER:
      return float(rng.integers(20, 900))
    return shaped(tool, params[0], worlds.sentence(rng))
  if source.how in (tables.CONST, tables.OPTION):
    return worlds.pick(rng, source.values)
  if source.how == tables.THING:
    return worlds.pick(rng, [t[1] for t in things if t[0] == source.kind])
  try:
    return values.draw(source.kind, context)
  except (LookupError, StopIteration):
    return None  # It is drawn from a thing that is elsewhere.


def went_well(tool: str, outcome: simulators.Outcome) -> bool:
  """Whether there is no error, and something came of it."""
  return outcome.ok and not execute.is_soft_failure(
      tool, reading.parsed(outcome.text)
  )


def outputs_of(result: Any) -> Iterator[tuple[str, Any]]:
  """(key, value) of a parsed result: numbers, texts and lists of either."""
  seen = set()
  for path, value in reading.scalars(result):
    key = flow.key_of(path)
    if key in seen or kind_of(value) is None or value in ('', 'None'):
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


def kind_taken(tool: str, param: str) -> str | None:
  """Kind of the values, or of a list's items; None for options and others."""
  spec = _spec(tool, param)
  if _OPTIONS in spec.get('description', ''):
    return None
  if spec.get('type') == 'array':
    spec = spec.get('items', {})
  return _KINDS.get(spec.get('type'))


def kind_of(value: Any) -> str | None:
  """Kind of a value, or of a list's items; None for all others."""
  if isinstance(value, (list, tuple)) and value:
    value = value[0]
  if reading.is_number(value):
    return NUMBER
  return TEXT if isinstance(value, str) else None


def shaped(tool: str, param: str, value: Any) -> Any:
  """The value as a list where one is wanted, else its first item."""
  is_list = isinstance(value, (list, tuple))
  if _spec(tool, param).get('type') == 'array':
    return value if is_list else [value]
  return value[0] if is_list else value


def _spec(tool: str, param: str) -> Mapping[str, Any]:
  properties = bfcl.tool_doc(tool)['parameters']['properties']
  return properties.get(param, {})
