"""Reads a seed task: its calls, their results, and where arguments come from.

An argument of a ground-truth call is *said* (the user wrote it in this or an
earlier turn), *derived* (it equals part of an earlier result, or follows from
it by rounding or filling the tank) or *constant* (implied, as the doors of a
car are). Only said ones are exchanged; derived ones are computed anew when a
variant runs; constants stay.
"""

import ast
import dataclasses
import functools
import json
import re
from typing import Any, Callable, Iterator

from rods_jax.host import bfcl, simulators, tool_calls
from rods_jax.host.synthesis import patience
from rods_jax.types import Call, Task

TANK_GALLONS = 50.0  # of the simulated car
_DIGITS = re.compile(r'(?<![\w.])\d[\d,]*(?<=\d)(?:\.\d+)?(?!\w)')
_AMOUNT = re.compile(
    r'(?:\$ ?|(?:under|over|above|below|exceed\w*|than|least|most|around|'
    r'only have|up to) \$?)(\d[\d,]*(?<=\d)(?:\.\d+)?)'
)
_MPF = re.compile(r"mpf\('([^']*)'\)")


@dataclasses.dataclass(frozen=True)
class Argument:
  """One scalar inside the arguments of one call.

  Attributes:
    turn: of the call.
    call: its index among all calls of the task.
    path: ('args', 0, ...) or ('kwargs', name, ...).
    tool: name of the tool.
    param: the parameter's name, also for positional arguments.
    value: str, int, float, bool or None.
  """

  turn: int
  call: int
  path: tuple
  tool: str
  param: str
  value: Any


@dataclasses.dataclass(frozen=True)
class Source:
  """Where a derived argument comes from.

  Attributes:
    call: index of the call whose result holds it; -1 for the car's tank.
    path: inside the parsed result.
    related: the result's key names the parameter.
    decimals: rounding applied, or None.
  """

  call: int
  path: tuple = ()
  related: bool = False
  decimals: int | None = None


def scalars(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
  """(path, scalar) of all scalars inside nested dicts, lists and tuples."""
  if isinstance(value, dict):
    for key, item in value.items():
      yield from scalars(item, (*path, key))
  elif isinstance(value, (list, tuple)):
    for i, item in enumerate(value):
      yield from scalars(item, (*path, i))
  else:
    yield path, value


def rebuild(value: Any, change: Callable[[tuple, Any], Any], path: tuple = ()):
  """A copy of nested data with every scalar replaced by change(path, it)."""
  if isinstance(value, dict):
    return {k: rebuild(v, change, (*path, k)) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    items = [rebuild(v, change, (*path, i)) for i, v in enumerate(value)]
    return tuple(items) if isinstance(value, tuple) else items
  return change(path, value)


def parsed(text: str) -> Any:
  """A result's structure; the text itself where it has none."""
  if text[:1] not in '{[':
    return text
  try:
    return json.loads(text)
  except ValueError:
    pass
  try:
    return ast.literal_eval(_MPF.sub(r'\1', text))
  except (ValueError, SyntaxError):
    return text


def at_path(value: Any, path: tuple) -> Any:
  """The scalar at a path; KeyError where the structure has changed."""
  for step in path:
    try:
      value = value[step]
    except (KeyError, IndexError, TypeError) as e:
      raise KeyError(path) from e
  if isinstance(value, (dict, list)):
    raise KeyError(path)
  return value


def is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


class Reading:
  """A seed task, read and executed once.

  Attributes:
    seed: the task.
    calls: (turn, Call) of the whole ground truth.
    arguments: all scalars of all calls.
    results: text of each call's result.
    oks: whether it was free of errors.
    parsed: structure of each result.
    fuel: fuel in the tank before each call; None without a car.
    spoken: (call, path) of the arguments that the user has said literally.
    sources: (call, path) of an argument -> its possible sources, best first.
  """

  def __init__(self, seed: Task):
    self.seed = seed
    self.calls = [
        (t, tool_calls.parse_ground_truth(text))
        for t, turn in enumerate(seed.turns)
        for text in turn.ground_truth
    ]
    self.arguments = [
        argument
        for i, (t, call) in enumerate(self.calls)
        for argument in arguments_of(t, i, call)
    ]
    patience.run(self._execute)
    self.parsed = [parsed(text) for text in self.results]
    self._index = self._values()
    self.spoken = {
        (a.call, a.path) for a in self.arguments if self._says(a)
    }
    self.sources = {}
    for argument in self.arguments:
      found = self._find_sources(argument)
      if found:
        self.sources[argument.call, argument.path] = found

  def _execute(self, limit_s: float) -> tuple[None, bool]:
    """Fills in results, oks and fuel; True where no call was stopped."""
    world = new_world(self.seed, self.seed.initial_config)
    self.results, self.oks, self.fuel = [], [], []
    for _, call in self.calls:
      self.fuel.append(fuel_of(world))
      outcome = world.call(call, limit_s)
      self.results.append(outcome.text)
      self.oks.append(outcome.ok)
    return None, not world.broken

  @functools.cached_property
  def texts(self) -> tuple[str, ...]:
    return tuple(turn.user for turn in self.seed.turns)

  @functools.cached_property
  def amounts(self) -> frozenset[float]:
    """Numbers with a currency, or after a word of comparison, in the texts."""
    text = ' '.join(self.texts)
    return frozenset(
        float(match[1].replace(',', '')) for match in _AMOUNT.finditer(text)
    )

  def said(self, pattern: str, turn: int) -> bool:
    """Whether the user writes the pattern in this or an earlier turn."""
    regex = re.compile(pattern)
    return any(regex.search(text) for text in self.texts[: turn + 1])

  def in_results(self, value: str, call: int) -> bool:
    """Whether the text occurs in a result before this call."""
    return any(value in text for text in self.results[:call])

  def _says(self, argument: Argument) -> bool:
    """Whether the user wrote the argument's value before it is needed."""
    value, text = argument.value, '\n'.join(self.texts[: argument.turn + 1])
    if isinstance(value, str):
      return bool(value) and value.lstrip('#@') in text.replace("\\'", "'")
    if is_number(value):
      return any(
          float(token.replace(',', '')) == value
          for token in _DIGITS.findall(text)
      )
    return False

  def _values(self) -> dict[Any, list[tuple[int, tuple]]]:
    """Scalar -> (call, path) where results hold it, in order."""
    index = {}
    for i, structure in enumerate(self.parsed):
      for path, value in scalars(structure):
        if isinstance(value, bool) or value is None or value == '':
          continue
        index.setdefault(value, []).append((i, path))
        if is_number(value) and not float(value).is_integer():
          for decimals in (0, 1, 2, 3):
            key = ('round', decimals, round(value, decimals))
            index.setdefault(key, []).append((i, path))
    return index

  def _find_sources(self, argument: Argument) -> list[Source]:
    value = argument.value
    if isinstance(value, bool) or value is None or value == '':
      return []
    found = []
    for key, decimals in self._keys(value):
      for call, path in self._index.get(key, ()):
        if call < argument.call:
          related = _related(argument, path)
          found.append(Source(call, path, related, decimals))
      if found:
        break
    if is_number(value) and abs(value) < 13:
      found = [s for s in found if s.related or s.decimals is not None]
    if argument.tool == 'fillFuelTank' and self._fills_tank(argument):
      return [Source(-1)]
    return sorted(found, key=lambda s: (s.related, s.call), reverse=True)

  def _keys(self, value: Any) -> Iterator[tuple[Any, int | None]]:
    yield value, None
    if is_number(value) and not float(value).is_integer():
      decimals = len(repr(float(value)).partition('.')[2])
      yield ('round', decimals, value), decimals
    elif isinstance(value, str) and re.fullmatch(r'\d+(\.\d+)?', value):
      yield float(value), None

  def _fills_tank(self, argument: Argument) -> bool:
    before = self.fuel[argument.call]
    if before is None or not is_number(argument.value):
      return False
    full = abs(before + argument.value - TANK_GALLONS) < 1e-6
    doubled = abs(before - argument.value) < 1e-6
    return full and not doubled


def new_world(seed: Task, config: Any) -> simulators.World:
  """Fresh simulators for a seed, or a variant with its own configuration."""
  long_context = seed.category == 'long_context'
  return simulators.World(seed.classes, config, long_context)


def fuel_of(world: simulators.World) -> float | None:
  car = world.instances.get('VehicleControlAPI')
  return None if car is None else car.fuelLevel


def arguments_of(turn: int, index: int, call: Call) -> Iterator[Argument]:
  names = bfcl.parameters(call.name)
  for i, value in enumerate(call.args):
    for path, scalar in scalars(value, ('args', i)):
      yield Argument(turn, index, path, call.name, names[i], scalar)
  for name, value in call.kwargs.items():
    for path, scalar in scalars(value, ('kwargs', name)):
      yield Argument(turn, index, path, call.name, name, scalar)


def _related(argument: Argument, path: tuple) -> bool:
  """Whether a result's key names the parameter: 'id' of a tweet, tweet_id."""
  key = next((str(p) for p in reversed(path) if isinstance(p, str)), '')
  key, param = key.lower(), argument.param.lower()
  return bool(key) and (key in param or param in key)
