"""Runs of our own calls that a busy machine must not change.

A simulator's call is bounded by the clock, and on a starved machine a call of
microseconds can be stopped all the same. What the synthesizer makes must not
depend on that: a run in which a call was stopped is run again from its start,
with more time. What is stopped by the longest limit too is really endless.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar('T')

LIMITS_S = (1.0, 10.0, 60.0)  # seconds that one call may take, try by try


def run(attempt: Callable[[float], tuple[T, bool]]) -> T:
  """The first result without a stopped call, else the last one.

  Args:
    attempt: limit in seconds -> (result, whether no call was stopped); it
      starts anew each time and draws the same chances.
  """
  for limit in LIMITS_S:
    result, finished = attempt(limit)
    if finished:
      break
  return result
