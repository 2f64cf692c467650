"""Where each argument of an executed ground truth comes from.

Kinds, in this order of precedence:
  user      the user has written it, in this or an earlier turn;
  constant  a switch, or an option that the tool's documentation names;
  output    it stands in an earlier result, whole, rounded or inside a text,
            or is a text that quotes an earlier result;
  user      the user has written it in other words ('May 5th' for a date,
            'Apple' for AAPL, 'the final report' for final_report.pdf);
  state     it stands in the initial configuration only;
  constant  none of these: something implied, a rule of thumb.
"""

import dataclasses
import functools
import re
from typing import Any, Iterator

from rods_jax.host import bfcl
from rods_jax.host.synthesis import states
from rods_jax.host.synthesis.reading import (
    TANK_GALLONS,
    Argument,
    arguments_of,
    is_number,
    scalars,
)
from rods_jax.host.synthesis.speech import (
    Speech,
    fold,
    numbers,
    quotes,
    squash,
)
from rods_jax.host.synthesis.trace import Step, Trace

USER, OUTPUT, STATE, CONSTANT = KINDS = ('user', 'output', 'state', 'constant')
SMALL = 13  # whole numbers below it coincide by chance
MIN_QUOTED = 3  # characters of a text found inside a longer one
MAX_TEXT = 2000  # characters; a longer text holds most numbers by chance
MIN_EMBEDDED = 8  # letters of a result found inside a sentence
_EXAMPLES = re.compile(r'\(e\.g\.[^)]*\)')


@dataclasses.dataclass(frozen=True)
class Flow:
  """One scalar argument and its origin.

  Attributes:
    argument: the scalar and where it stands.
    kind: one of KINDS.
    back: turns back to where it was said or returned last; 0 for the call's
      own turn, None for state and constants. A turn without calls counts as
      one with the turn that makes up for it.
    source: index of the call whose result holds it; None unless an output.
  """

  argument: Argument
  kind: str
  back: int | None = None
  source: int | None = None


def flows(trace: Trace) -> tuple[Flow, ...]:
  """The origin of every scalar argument, in the calls' order.

  A text that quotes results is followed by the numbers in it, each as an
  argument of its own whose path ends in '#' and its place.
  """
  origins = _Origins(trace)
  found = []
  for index, step in enumerate(trace.steps):
    mine = [origins.of(a) for a in arguments_of(step.turn, index, step.call)]
    listed = {f.argument.path[:2] for f in mine if _is_listed_output(f)}
    found += [
        origins.of(f.argument, among_outputs=True)
        if f.argument.path[:2] in listed else f
        for f in mine
    ]  # pyformat: disable
    found += [n for f in mine for n in origins.of_numbers(f)]
  return tuple(found)


def _is_listed_output(found: Flow) -> bool:
  return found.kind == OUTPUT and len(found.argument.path) > 2


class _Origins:
  """Looks arguments up in what was said, returned and configured."""

  def __init__(self, trace: Trace):
    self._trace = trace
    self._speech = [Speech(turn.user) for turn in trace.task.turns]
    answered = [bool(turn.ground_truth) for turn in trace.task.turns]
    self._rank = [sum(answered[:i]) for i in range(len(answered))]

  def of(self, argument: Argument, among_outputs: bool = False) -> Flow:
    """The origin of one scalar.

    Args:
      argument: the scalar.
      among_outputs: other items of the same list come from results; then a
        small number that a result holds is no coincidence either.
    """
    value = argument.value
    if isinstance(value, bool) or value is None or value == '':
      return Flow(argument, CONSTANT)
    back = self._said(argument, Speech.says)
    if back is not None:
      return Flow(argument, USER, back)
    if is_documented(argument):
      return Flow(argument, CONSTANT)
    output = self._returned(argument, among_outputs)
    if output is not None:
      return output
    back = self._said(argument, Speech.means)
    if back is not None:
      return Flow(argument, USER, back)
    if self._is_configured(argument):
      return Flow(argument, STATE)
    return Flow(argument, CONSTANT)

  def of_numbers(self, found: Flow) -> Iterator[Flow]:
    """Of the different numbers in a text that quotes results."""
    argument = found.argument
    if found.kind != OUTPUT or ' ' not in str(argument.value):
      return
    for place, number in enumerate(sorted(numbers(argument.value))):
      path = (*argument.path, '#', place)
      part = dataclasses.replace(argument, path=path, value=number)
      yield self._returned(part, small=True) or self.of(part)

  def _returned(self, argument: Argument, small: bool) -> Flow | None:
    """The value as an output; None where no result holds it."""
    holders = self._holders(argument, small)
    if not holders:
      return None
    last = self._trace.steps[max(holders)].turn
    back = self._back(argument.turn, last)
    return Flow(argument, OUTPUT, back, holders[-1])

  def _said(self, argument: Argument, test) -> int | None:
    """Turns back to where the user last says or means the value."""
    for turn in range(argument.turn, -1, -1):
      if test(self._speech[turn], argument.value):
        return self._back(argument.turn, turn)
    return None

  def _back(self, turn: int, earlier: int) -> int:
    return self._rank[turn] - self._rank[earlier]

  def _holders(self, argument: Argument, small: bool) -> list[int]:
    """Earlier calls whose results hold the value, the likeliest origin last.

    A call that was given the value only repeats it. Of the others the last one
    counts, and before them those that call it by the parameter's name. A
    small number needs such a name, unless `small` is set.
    """
    found = []
    for index, step in enumerate(self._trace.steps[: argument.call]):
      held = list(_holding(step, argument)) if step.ok else ()
      namesake = any(related for _, related in held)
      if namesake or held and (small or not _is_small(argument.value)):
        given = any(
            value == argument.value
            for _, value in scalars((step.call.args, step.call.kwargs))
        )
        found.append((not given, namesake, index))
    return [index for _, _, index in sorted(found)]

  def _is_configured(self, argument: Argument) -> bool:
    value, fuel = argument.value, self._trace.steps[argument.call].fuel
    if argument.param == 'fuelAmount' and is_number(value) and fuel is not None:
      return abs(fuel + value - TANK_GALLONS) < 1e-6
    return not _is_small(value) and fold(str(value)) in self._configured

  @functools.cached_property
  def _configured(self) -> frozenset[str]:
    """Every scalar and key of the initial configuration, folded."""
    task = states.complete(self._trace.task)
    found = set()
    for path, value in scalars(task.initial_config):
      found.update(fold(str(step)) for step in path)
      found.add(fold(str(value)))
    return frozenset(found)


def is_documented(argument: Argument) -> bool:
  """Whether the parameter's documentation names the value as an option.

  "(e.g., 'Technology')" names an example and no option.
  """
  if not isinstance(argument.value, str):
    return False
  text = bfcl.parameter_text(argument.tool, argument.param)
  return quotes(fold(_EXAMPLES.sub('', text)), fold(argument.value))


def outputs_holding(step: Step, argument: Argument) -> list[str]:
  """Keys of a result that hold the argument, those with its name first.

  '' stands for a result without keys.
  """
  held = dict.fromkeys(_holding(step, argument))
  return [key for key, _ in sorted(held, key=lambda pair: not pair[1])]


def _holding(step: Step, argument: Argument) -> Iterator[tuple[str, bool]]:
  """(key, whether it names the parameter) of what holds the value."""
  value, param = argument.value, argument.param
  if is_number(value):
    for path, found in scalars(step.parsed):
      key = key_of(path)
      if isinstance(found, str):
        if len(found) <= MAX_TEXT and value in numbers(found):
          yield key, _related(param, key)
      elif is_number(found) and _rounds_to(found, value):
        yield key, _related(param, key)
      elif is_number(found) and _fills_tank(argument, key, found):
        yield key, True
  elif len(value) >= MIN_QUOTED and (
      ' ' in value or fold(value) in step.folded
  ):
    for path, found in scalars(step.parsed):
      key = key_of(path)
      if _holds(found, value):
        yield key, _related(param, key)
      elif value in path and not value.islower():
        yield key, True  # a name or an id that is a key itself


def _holds(found: Any, value: str) -> bool:
  """Whether a part of a result holds a text, or a sentence quotes the part."""
  if is_number(found):
    said = numbers(value)
    return any(_rounds_to(found, n) and not _is_small(n) for n in said)
  if not isinstance(found, str) or len(found) < MIN_QUOTED:
    return False
  if quotes(fold(found), fold(value)):
    return True
  if ' ' not in value:
    return False
  whole, part = squash(fold(value)), squash(fold(found))
  return len(part) >= MIN_EMBEDDED and (part in whole or whole in part)


def _rounds_to(found: float, value: float) -> bool:
  if found == value:
    return True
  decimals = len(repr(float(value)).removesuffix('.0').partition('.')[2])
  return not float(found).is_integer() and round(found, decimals) == value


def _fills_tank(argument: Argument, key: str, found: float) -> bool:
  """The car was asked for its fuel, and is filled up."""
  return (
      argument.tool == 'fillFuelTank'
      and key == 'fuelLevel'
      and abs(found + argument.value - TANK_GALLONS) < 1e-6
  )


def key_of(path: tuple) -> str:
  """The innermost key of a path: what a result calls the value."""
  return next((str(p) for p in reversed(path) if isinstance(p, str)), '')


def _related(param: str, key: str) -> bool:
  """Whether a key names the parameter: 'id' of a tweet and tweet_id."""
  key, param = key.lower(), param.lower()
  return bool(key) and (key in param or param in key)


def _is_small(value: Any) -> bool:
  return is_number(value) and abs(value) < SMALL and float(value).is_integer()
