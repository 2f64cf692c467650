"""Whether a task can be solved from what it shows, and whether it is new.

Solvable: every argument of the ground truth was said by the user, returned by
an earlier call, or is an option that the tools' documentation names. New: no
known task has both nearly the same texts and nearly the same calls.
"""

import dataclasses
import hashlib
import json
import math
import re
import sys
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
  return _sequence(text for turn in task.turns for text in turn.ground_truth)


def _sequence(texts: Iterable[str]) -> tuple[str, ...]:
  return tuple(_spelled(tool_calls.parse_ground_truth(text)) for text in texts)


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
  """Tasks that others must differ from.

  Tasks are near each other only where calls are the same, so one that is
  nearer than a bound holds one of the rarest calls of the other. Only those
  are compared, and no near one is missed.
  """

  def __init__(self, tasks: Iterable[Task] = ()):
    self._ids: list[str] = []
    self._texts: list[frozenset[int]] = []
    self._calls: list[tuple[str, ...]] = []
    self._holders: dict[str, list[int]] = {}  # call -> numbers of tasks
    for task in tasks:
      self.add(task)

  def __len__(self) -> int:
    return len(self._ids)

  def add(self, task: Task) -> None:
    texts, calls = _compared(task)
    for call in set(calls):
      self._holders.setdefault(call, []).append(len(self._ids))
    self._ids.append(task.task_id)
    self._texts.append(texts)
    self._calls.append(tuple(map(sys.intern, calls)))

  def nearest(
      self, task: Task, within: float = 1.0, among: int | None = None
  ) -> Nearest | None:
    """The most similar known task; None if none is nearer than `within`.

    A task of the same task_id does not count, nor do those after the first
    `among`.
    """
    texts, calls = _compared(task)
    best = None
    for number in sorted(self._candidates(calls, within)):
      if among is not None and number >= among:
        break
      if self._ids[number] == task.task_id:
        continue
      others = self._texts[number]
      both = len(texts & others)
      apart = 1 - both / (len(texts) + len(others) - both)
      if apart >= within:
        continue
      found = Nearest(
          self._ids[number], apart, edit_distance(calls, self._calls[number])
      )
      if found.distance < within:
        best, within = found, found.distance
    return best

  def is_new(
      self, task: Task, min_distance: float, among: int | None = None
  ) -> bool:
    """Whether all (or the first `among`) are at least `min_distance` away."""
    return self.nearest(task, min_distance, among) is None

  def _candidates(self, calls: tuple[str, ...], within: float) -> set[int]:
    """Numbers of all tasks whose calls are nearer than `within`.

    Of n calls more than (1 - within) n are the same then; so is one of as many
    as are left when these are taken away, whichever they are, and one more.
    """
    same = math.floor(len(calls) * (1 - within) - 1e-9)
    rarest = sorted(calls, key=lambda c: len(self._holders.get(c, ())))
    return {
        number
        for call in rarest[: len(calls) - max(same, 0)]
        for number in self._holders.get(call, ())
    }


def _compared(task: Task) -> tuple[frozenset[int], tuple[str, ...]]:
  """Shingles, as hashes of this process, and calls; at least one of each."""
  return frozenset(map(hash, shingles(task))), call_sequence(task) or ('',)


class Novelty:
  """Lets tasks through that are unlike all that came before.

  Neither content, nor words but for numbers, nor calls may come again, and
  every known task has to be `min_distance` away.

  Attributes:
    contents: content hashes of all known tasks.
  """

  def __init__(self, min_distance: float, tasks: Iterable[Task] = ()):
    self._min_distance = min_distance
    self.contents: set[str] = set()
    self._first: dict[bytes, int] = {}  # key -> the first task that has it
    self._known = Known()
    for task in tasks:
      self.add(task)

  def __len__(self) -> int:
    return len(self._known)

  def accepts(self, task: Task, among: int | None = None) -> bool:
    """Whether it is unlike all known tasks, or the first `among` of them."""
    among = len(self) if among is None else among
    return all(
        self._first.get(key, among) >= among for key in keys(task)
    ) and self._known.is_new(task, self._min_distance, among)

  def knows_calls(
      self, calls: Iterable[Call], among: int | None = None
  ) -> bool:
    """Whether a known task has these calls: no words would make it new."""
    among = len(self) if among is None else among
    key = _calls_key(_sequence(map(tool_calls.render, calls)))
    return self._first.get(key, among) < among

  def add(self, task: Task) -> None:
    for key in keys(task):
      self._first.setdefault(key, len(self))
    self.contents.add(task.content_hash())
    self._known.add(task)


def keys(task: Task) -> tuple[bytes, ...]:
  """Hashes of the content, of the words without numbers, of the calls."""
  words = ' '.join(turn.user for turn in task.turns).lower()
  words = re.sub(r'\d+', '0', words)
  return (
      _key('content', task.content_hash()),
      _key('words', words),
      _calls_key(call_sequence(task)),
  )


def _calls_key(sequence: tuple[str, ...]) -> bytes:
  return _key('calls', json.dumps(sequence))


def _key(kind: str, text: str) -> bytes:
  return hashlib.blake2b(f'{kind}:{text}'.encode(), digest_size=12).digest()
