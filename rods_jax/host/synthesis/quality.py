"""Whether a task can be solved from what it shows, and whether it is new.

Solvable: every argument of the ground truth was said by the user, returned by
an earlier call, or is an option that the tools' documentation names. New: no
known task has both nearly the same texts and nearly the same calls.
"""

import dataclasses
import re
from typing import Any, Iterable

from rods_jax.host import bfcl, tool_calls
from rods_jax.host.synthesis import flow, trace
from rods_jax.host.synthesis.profile import edit_distance
from rods_jax.host.synthesis.reading import Argument, is_number
from rods_jax.host.synthesis.speech import numbers
from rods_jax.types import Call, Task

SHINGLE = 3  # words that are compared as one
_HERE = frozenset(('.', '..', '/', '~'))  # folders that need no name


def unsourced(
    executed: trace.Trace, discoverable: bool = True
) -> tuple[Argument, ...]:
  """Arguments whose value comes from nowhere.

  Args:
    executed: the ground truth.
    discoverable: whether a value of the initial state counts as known, though
      the ground truth never asks for it: a tool could show it.
  """
  return tuple(
      found.argument
      for found in flow.flows(executed)
      if found.kind == flow.CONSTANT
      and not _is_known(found.argument)
      or found.kind == flow.STATE
      and not discoverable
  )


def _is_known(argument: Argument) -> bool:
  """Whether no one has to be told: a switch, an option, a default."""
  value = argument.value
  if value is None or value == '' or isinstance(value, bool):
    return True
  if isinstance(value, str) and value in _HERE:
    return True
  text = bfcl.parameter_text(argument.tool, argument.param)
  if is_number(value):
    return value in numbers(text)
  return flow.is_documented(argument)


def shingles(task: Task) -> frozenset[tuple[str, ...]]:
  """Runs of SHINGLE words of what the user says, in lower case.

  Numbers are all alike, and so is what stands around words.
  """
  text = ' '.join(turn.user for turn in task.turns).lower()
  words = re.findall(r"[a-z']+|\d+", text)
  words = ['0' if word.isdigit() else word for word in words]
  last = max(1, len(words) - SHINGLE + 1)
  return frozenset(tuple(words[i : i + SHINGLE]) for i in range(last))


def call_sequence(task: Task) -> tuple[str, ...]:
  """The ground truth in one spelling: arguments by name, sorted."""
  calls = (
      tool_calls.parse_ground_truth(text)
      for turn in task.turns
      for text in turn.ground_truth
  )
  return tuple(_spelled(call) for call in calls)


def _spelled(call: Call) -> str:
  given: dict[str, Any] = dict(zip(bfcl.parameters(call.name), call.args))
  given |= call.kwargs
  return tool_calls.render(Call(call.name, (), dict(sorted(given.items()))))


@dataclasses.dataclass(frozen=True)
class Nearest:
  """The known task that is most like another.

  Attributes:
    task_id: of the known task.
    texts: 0 (the same words) to 1 (no three words in a row are shared).
    calls: 0 (the same calls) to 1 (all to be exchanged).
  """

  task_id: str
  texts: float
  calls: float

  @property
  def distance(self) -> float:
    """Tasks are alike only where both are: the larger part."""
    return max(self.texts, self.calls)


class Known:
  """Tasks that others must differ from."""

  def __init__(self, tasks: Iterable[Task] = ()):
    self._tasks: dict[str, tuple[frozenset, tuple[str, ...]]] = {}
    for task in tasks:
      self.add(task)

  def __len__(self) -> int:
    return len(self._tasks)

  def add(self, task: Task) -> None:
    self._tasks[task.task_id] = shingles(task), call_sequence(task)

  def nearest(self, task: Task) -> Nearest | None:
    """The most similar known task; None if there is none.

    A task of the same task_id does not count.
    """
    texts, calls = shingles(task), call_sequence(task)
    best = None
    for task_id, (other_texts, other_calls) in self._tasks.items():
      if task_id == task.task_id:
        continue
      apart = 1 - len(texts & other_texts) / len(texts | other_texts)
      if best is not None and apart >= best.distance:
        continue
      found = Nearest(task_id, apart, edit_distance(calls, other_calls))
      if best is None or found.distance < best.distance:
        best = found
    return best

  def is_new(self, task: Task, min_distance: float) -> bool:
    """Whether every known task is at least `min_distance` away."""
    found = self.nearest(task)
    return found is None or found.distance >= min_distance
