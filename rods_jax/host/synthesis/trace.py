"""Runs a ground truth, and what becomes of it when one call is left out.

Leaving out call i and running the rest in the state that i would have found
shows which later calls need what i did: their results change or fail. Numbers
that a simulator hands out (ids by counter, ids and temperatures by chance) go
on as if the call had run: "the second booking has another id" is no need.
"""

import dataclasses
import functools
import pickle
from typing import Any

from rods_jax.host import simulators, tool_calls
from rods_jax.host.synthesis import patience, reading
from rods_jax.types import Call, Task

# Attributes from which simulators hand out ids, and draw.
DISPENSERS = (
    '_random', 'generated_ids', 'message_count', 'tweet_counter',
    'ticket_counter', 'order_counter',
)  # pyformat: disable


@dataclasses.dataclass(frozen=True)
class Step:
  """One executed ground-truth call.

  Attributes:
    turn: of the call.
    call: parsed.
    text: the whole result.
    ok: False for an error of any kind.
    fuel: gallons in the car's tank before the call; None without a car.
  """

  turn: int
  call: Call
  text: str
  ok: bool
  fuel: float | None = None

  @functools.cached_property
  def parsed(self) -> Any:
    """The result's structure; the text itself where it has none."""
    return reading.parsed(self.text)

  @functools.cached_property
  def folded(self) -> str:
    """The result in lower case."""
    return self.text.lower()


@dataclasses.dataclass(frozen=True)
class Trace:
  """An executed ground truth.

  Attributes:
    task: what was run.
    steps: all calls, in order.
    needs: (i, j) -> True where j fails without i, False where its result is
      another one. Only pairs with such a difference; i < j.
    finished: whether no call was stopped by its time limit, the longest one.
  """

  task: Task
  steps: tuple[Step, ...]
  needs: dict[tuple[int, int], bool]
  finished: bool = True


def run(task: Task) -> Trace:
  """Executes the ground truth once, and once more without each call.

  Raises:
    ParseError: a ground-truth text is not one call of literals.
  """
  calls = [
      (turn, tool_calls.parse_ground_truth(text))
      for turn, content in enumerate(task.turns)
      for text in content.ground_truth
  ]

  def attempt(limit_s: float) -> tuple[Trace, bool]:
    executed = _run(task, calls, limit_s)
    return executed, executed.finished

  return patience.run(attempt)


def _run(
    task: Task, calls: list[tuple[int, Call]], limit_s: float
) -> Trace:
  world = reading.new_world(task, task.initial_config)
  steps, before, dispensed = [], [], []
  for turn, call in calls:
    before.append(pickle.dumps(world))  # in C, so faster than a deep copy
    fuel = reading.fuel_of(world)
    outcome = world.call(call, limit_s)
    steps.append(Step(turn, call, outcome.text, outcome.ok, fuel))
    dispensed.append(pickle.dumps(dispensers(world)))
  needs, finished = {}, not world.broken
  for i in range(len(steps) - 1):
    other = pickle.loads(before[i])
    for name, values in pickle.loads(dispensed[i]).items():
      vars(other.instances[name]).update(values)
    needs |= _differences(other, steps, i, limit_s)
    finished = finished and not other.broken
  return Trace(task, tuple(steps), needs, finished)


def _differences(
    world: simulators.World, steps: list[Step], left_out: int, limit_s: float
) -> dict[tuple[int, int], bool]:
  """Runs the calls after `left_out` and compares their results."""
  found = {}
  for j in range(left_out + 1, len(steps)):
    outcome = world.call(steps[j].call, limit_s)
    if outcome.text != steps[j].text:
      found[left_out, j] = steps[j].ok and not outcome.ok
  return found


def dispensers(world: simulators.World) -> dict[str, dict[str, Any]]:
  """Class -> what it hands out ids and chances from; live objects."""
  return {
      name: {
          key: value
          for key, value in vars(instance).items()
          if key in DISPENSERS
      }
      for name, instance in world.instances.items()
  }


def changed(
    before: simulators.World, after: simulators.World
) -> frozenset[str]:
  """'Class.attribute' of all that differs but `dispensers`, hidden ones too.

  The working directory is a hidden one.
  """
  return frozenset(
      f'{name}.{key}'
      for name, instance in after.instances.items()
      for key, value in vars(instance).items()
      if key not in DISPENSERS
      and vars(before.instances[name]).get(key) != value
  )
