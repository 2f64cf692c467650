"""The turn checker: progress reward R_P and accuracy both come from it.

A turn is right when the public state of every simulator equals the ground
truth's after the same turn, and every ground-truth result of the turn occurs
among all the trajectory's results so far (a multiset, in any order).

Source: RODS (arXiv 2606.19047) and the official BFCL multi-turn checker, with
which it agrees except where that one accepts a wrong trajectory: a turn closed
by the round budget, and calls of withheld tools.
"""

import collections
from typing import Any, Mapping, Sequence

from rods_jax.host import differences
from rods_jax.types import TurnScore

NO_CALL = 'no call'
NEEDLESS_CALL = 'call where none is due'
FORCED = 'closed by the round budget'
TIMEOUT = 'a tool call timed out'
NEVER_REACHED = 'never reached'
_SHOWN = 80  # characters of a missing result that a reason quotes


def score_turn(
    expected_results: Sequence[str],
    expected_state: Mapping[str, Mapping[str, Any]],
    instances: Mapping[str, Any],
    seen: Mapping[str, int],
    num_calls: int,
    num_executed: int,
    forced: bool = False,
) -> TurnScore:
  """Scores the turn that just ended.

  Args:
    expected_results: results of this turn's ground-truth calls. None of them:
      the right answer is to call nothing.
    expected_state: class -> public attributes after this turn.
    instances: class -> the trajectory's live simulator.
    seen: result -> how often the trajectory got it, over all turns so far.
    num_calls: calls of this turn, those of tools not on offer included.
    num_executed: calls of this turn that reached a simulator.
    forced: the turn was closed from outside.

  Returns:
    The verdict. Where nothing is to be called both checks stand for that rule,
    because the state there may differ from earlier failures.
  """
  if not expected_results:
    quiet = num_calls == 0
    reason = '' if quiet else NEEDLESS_CALL
    state_ok = response_ok = quiet
  else:
    difference = state_difference(instances, expected_state)
    if difference:
      class_name, _, attribute = difference.partition('.')
      difference = differences.describe(
          difference,
          getattr(instances[class_name], attribute),
          expected_state[class_name][attribute],
      )
    missing = missing_results(expected_results, seen)
    state_ok, response_ok = not difference, not missing
    reason = _reason(difference, missing, num_executed)
  return TurnScore(state_ok, response_ok, FORCED if forced else reason)


def _reason(
    difference: str, missing: Sequence[str], num_executed: int
) -> str:
  if not num_executed:
    return NO_CALL
  if difference:
    return f'state differs: {difference}'
  if missing:
    return f'result missing: {missing[0][:_SHOWN]}'
  return ''


def state_difference(
    instances: Mapping[str, Any],
    expected_state: Mapping[str, Mapping[str, Any]],
) -> str:
  """The first attribute that differs, as 'Class.attribute'; '' if none."""
  for class_name, attributes in expected_state.items():
    for name, value in attributes.items():
      if differences.differs(getattr(instances[class_name], name), value):
        return f'{class_name}.{name}'
  return ''


def missing_results(
    expected: Sequence[str], seen: Mapping[str, int]
) -> list[str]:
  """Expected results that were not seen often enough."""
  left = collections.Counter(expected)
  left.subtract({text: seen.get(text, 0) for text in left})
  return [text for text, count in left.items() if count > 0]
