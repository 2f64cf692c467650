"""Runs a variant's ground truth in fresh simulators, call by call.

Arguments that the seed took from an earlier result are taken from the same
place of the variant's own results. The outcome has to be analogous to the
seed's: errors where it had errors and nowhere else, results of the same
structure, and the same truth values, because the dialogue depends on them
("since the car cannot make it, fill the tank").
"""

import collections
import dataclasses
import re
from typing import Any, Mapping

from rods_jax.host import simulators
from rods_jax.host.synthesis import entities, patience
from rods_jax.host.synthesis.reading import (
    TANK_GALLONS,
    Argument,
    Reading,
    Source,
    at_path,
    fuel_of,
    is_number,
    new_world,
    parsed,
    scalars,
)
from rods_jax.host.synthesis.records import Rejection
from rods_jax.host.synthesis.substitute import Writer, change_calls
from rods_jax.types import Call

STAGE = 'execute'
_TOKEN = re.compile(r'(?<![\w.])\d+(?:\.\d+)?(?!\w|\.\d)')


@dataclasses.dataclass
class Outcome:
  """An executed variant.

  Attributes:
    calls: the new calls, in order.
    results: their texts.
  """

  calls: list[Call]
  results: list[str]


def run(
    reading: Reading,
    writer: Writer,
    values: Mapping[int, Any],
    config: Mapping[str, Any],
) -> Outcome | Rejection:
  """Executes the seed's calls with exchanged values in a new world."""

  def attempt(limit_s: float) -> tuple[Outcome | Rejection, bool]:
    world = new_world(reading.seed, config)
    outcome = _run(reading, writer, values, world, limit_s)
    return outcome, not world.broken

  return patience.run(attempt)


def _run(
    reading: Reading,
    writer: Writer,
    values: Mapping[int, Any],
    world: simulators.World,
    limit_s: float,
) -> Outcome | Rejection:
  structures: list[Any] = []
  out = Outcome([], [])
  arguments = iter(reading.arguments)
  for index, (_, call) in enumerate(reading.calls):
    try:
      new = _call(reading, writer, values, call, arguments, structures, world)
    except KeyError as e:
      return Rejection(STAGE, f'{call.name}: {e.args[0]}')
    outcome = world.call(new, limit_s)
    if outcome.ok != reading.oks[index]:
      return Rejection(STAGE, f'{call.name}: {outcome.text[:80]}')
    structure = parsed(outcome.text)
    if outcome.text != reading.results[index]:
      reason = differs(reading.parsed[index], structure)
      if reason:
        return Rejection(STAGE, f'{call.name}: {reason}')
    structures.append(structure)
    reason = _turns_over(reading, writer, values, index, structure)
    if reason:
      return Rejection(STAGE, f'{call.name}: {reason}')
    out.calls.append(new)
    out.results.append(outcome.text)
  return out


_COMPARED = frozenset(('travel_cost_list', 'price', 'distance'))


def _turns_over(
    reading: Reading,
    writer: Writer,
    values: Mapping[int, Any],
    index: int,
    structure: Any,
) -> str:
  """Why a comparison with a number of the dialogue comes out otherwise.

  'Only if it costs at most $2400' has to stay true, or stay false.
  """
  if reading.calls[index][1].name not in _ASKING:
    return ''
  exchanged = {
      writer.slots[i].value: v
      for i, v in values.items()
      if writer.slots[i].numeric
  }
  before = dict(scalars(reading.parsed[index]))
  for path, new in scalars(structure):
    old = before.get(path)
    if not (_COMPARED & set(path)) or not (is_number(old) and is_number(new)):
      continue
    for limit in reading.amounts:
      if (old <= limit) != (new <= exchanged.get(limit, limit)):
        return f'{path[0]} is on the other side of {limit:g}'
  return ''


_ASKING = frozenset(('get_flight_cost', 'get_stock_info', 'estimate_distance'))


def _call(
    reading, writer, values, call, arguments, structures, world
) -> Call:
  """The variant's call; KeyError with a reason where a source is lost."""

  def change(path, value):
    argument = next(arguments)
    new = writer.argument(argument, values)
    sentence = isinstance(value, str) and ' ' in value
    if new != value and not sentence:
      return new
    key = (argument.call, path)
    sources = reading.sources.get(key)
    spoken = key in reading.spoken
    if sources and not (spoken and new != value):
      derived = _derived(reading, argument, sources, structures, world)
      if spoken and derived != value:
        raise KeyError(f'{argument.param} is said and would change')
      return derived
    if sentence and not spoken:
      return _embedded(reading, new, argument, structures)
    return new

  args, kwargs = change_calls(call, change)
  return Call(call.name, args, kwargs)


def _derived(
    reading: Reading,
    argument: Argument,
    sources: list[Source],
    structures: list[Any],
    world: simulators.World,
) -> Any:
  """The value at the seed's source in this run, with the argument's type."""
  found = []
  for source in sources:
    if source.call < 0:
      found.append(round(TANK_GALLONS - fuel_of(world), 6))
      continue
    value = at_path(structures[source.call], source.path)
    if source.decimals is not None:
      value = round(value, source.decimals)
    found.append(value)
  if any(value != found[0] for value in found) and not sources[0].related:
    latest = max(source.call for source in sources)
    found = [v for v, s in zip(found, sources) if s.call == latest]
    if any(value != found[0] for value in found):
      raise KeyError(f'{argument.param} has several possible sources')
  if isinstance(argument.value, str) and is_number(found[0]):
    return _as_written(reading, sources[0], argument.value, found[0])
  return _typed(found[0], argument.value)


def _as_written(
    reading: Reading, source: Source, text: str, value: float
) -> str:
  """A number inside a text argument, as the seed wrote its own number.

  'Just the nearest integer' made '6500' of 6500.0; then 5375.5 is '5376'.
  """
  old = at_path(reading.parsed[source.call], source.path)
  if str(old) == text:
    return str(value)
  return entities.number_text(value, str(len(text.partition('.')[2])))


def _typed(value: Any, like: Any) -> Any:
  """The value with the type that the seed's argument had."""
  if isinstance(like, str) or not is_number(like) or not is_number(value):
    return str(value) if isinstance(like, str) else value
  if isinstance(like, int) and float(value).is_integer():
    return int(value)
  return float(value)


def _embedded(
    reading: Reading, new: str, argument: Argument, structures: list[Any]
) -> str:
  """Numbers of earlier results inside a sentence, written as they were.

  Where several results held the same number and now differ, they are taken in
  their order if the sentence has as many; KeyError if it has not.
  """
  holders = collections.defaultdict(list)
  for call in range(argument.call):
    pairs = zip(scalars(reading.parsed[call]), scalars(structures[call]))
    for (_, before), (_, after) in pairs:
      if is_number(before) and is_number(after):
        holders[float(before)].append(after)
  written = collections.Counter(map(float, _TOKEN.findall(new)))
  turn = collections.Counter()

  def put(match: re.Match) -> str:
    text, before = match.group(), float(match.group())
    found = holders.get(before, [before])
    after = found[0]
    if any(other != after for other in found):
      if written[before] != len(found):
        raise KeyError(f'{argument.param} quotes one of several results')
      after = found[turn[before]]
      turn[before] += 1
    if after == before:
      return text
    return entities.number_text(after, str(len(text.partition('.')[2])))

  return _TOKEN.sub(put, new)


def differs(old: Any, new: Any) -> str:
  """Why two results are not analogous; '' where they are."""
  if isinstance(old, bool) or old is None or isinstance(new, bool):
    return '' if old == new else f'{old!r} became {new!r}'
  if is_number(old):
    return '' if is_number(new) else 'a number became something else'
  if type(old) is not type(new):
    return f'{type(old).__name__} became {type(new).__name__}'
  if isinstance(old, str):
    return '' if bool(old) == bool(new) else 'a text became empty or not'
  if len(old) != len(new):
    return f'{len(old)} items became {len(new)}'
  if isinstance(old, dict):
    # Keys keep their order; names among them may have been exchanged.
    pairs = zip(old.values(), new.values())
  else:
    pairs = zip(old, new)
  return next((reason for a, b in pairs if (reason := differs(a, b))), '')
