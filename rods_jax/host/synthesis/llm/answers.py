"""From what a language model writes to what was asked for, or why not.

The text may hold anything: thoughts, prose around the JSON, fences, half an
object, several. Just one object may pass the check; with two different ones
nobody knows which was meant, and one may be quoted from data.
"""

import functools
import json
import re
from typing import Any, Callable, TypeVar

from rods_jax.host.synthesis.llm import prompts
from rods_jax.host.synthesis.llm.records import Answer, Failure, Question
from rods_jax.host.synthesis.records import Rejection

T = TypeVar('T')
Ask = Callable[[Question], Answer | Failure]
TRIES = 2  # answers in a form that cannot be used
MAX_CHARS = 100_000  # of an answer
MAX_OBJECTS = 64  # looked at in an answer
_SHOWN = 4000  # characters of an unusable answer that are sent back
_MARKS = re.compile(r'[{}]|"(?:[^"\\]|\\.)*(?:"|$)', re.DOTALL)


class Unusable(Exception):
  """An answer that is not what was asked for.

  Attributes:
    reason: one short line of ours; it is counted.
    detail: what else the model should know of it.
  """

  def __init__(self, reason: str, detail: str = ''):
    super().__init__(reason)
    self.reason, self.detail = reason, detail


def obtain(
    ask: Ask,
    stage: str,
    messages: prompts.Messages,
    seed: int,
    check: Callable[[dict[str, Any]], T],
) -> tuple[T, str] | Rejection:
  """What was asked for, and the text that it stood in.

  Args:
    ask: gives answers.
    stage: that rejects.
    messages: of the question.
    seed: of the sampling.
    check: from a JSON object to what it says; may raise Unusable.
  """
  for attempt in range(TRIES):
    answer = ask(Question(messages, seed + attempt))
    if isinstance(answer, Failure):
      return Rejection(stage, answer.reason)
    try:
      return read(answer, check), answer.text
    except Unusable as error:
      problem = error
    messages += (
        ('assistant', answer.text[:_SHOWN]),
        ('user', prompts.note(
            'retry', {'problem': problem.reason, 'detail': problem.detail}
        )),
    )  # pyformat: disable
  return Rejection(stage, problem.reason, problem.detail)


def read(answer: Answer, check: Callable[[dict[str, Any]], T]) -> T:
  """What the one object says that passes the check.

  Raises:
    Unusable: there is none, or more than one.
  """
  text = answer.text.rpartition('</think>')[2]
  found, first = [], None
  for candidate in objects(text):
    try:
      value = check(candidate)
    except Unusable as error:
      first = first or error
      continue
    if value not in found:
      found.append(value)
  if len(found) > 1:
    raise Unusable('it holds more than one answer')
  if found:
    return found[0]
  if answer.cut or _is_open(text):
    raise Unusable('it ends before the JSON does')
  raise first or Unusable('it holds no JSON object')


def objects(text: str) -> list[dict[str, Any]]:
  """The JSON objects in a text that are inside no other one."""
  found, position = [], 0
  text = text[:MAX_CHARS]
  for _ in range(MAX_OBJECTS):
    position = text.find('{', position)
    if position < 0:
      break
    try:
      value, position = _decoder().raw_decode(text, position)
      # Neither half characters nor numbers that are too large.
      json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
      found.append(value)
    except (ValueError, RecursionError):
      position = _behind(text, position)
  return found


def _behind(text: str, start: int) -> int:
  """Where to look on after a brace that begins no good object.

  A broken object is passed over with all that is in it: an inner object is no
  answer. A brace of prose is no object at all.
  """
  if not re.match(r'\{\s*"', text[start : start + 100]):
    return start + 1
  depth = 0
  for token in _MARKS.finditer(text, start):
    depth += {'{': 1, '}': -1}.get(token.group(), 0)
    if depth == 0:
      return token.end()
  return len(text)


def _is_open(text: str) -> bool:
  """Whether the first brace is never closed."""
  start = text.find('{')
  return start >= 0 and text.count('{', start) > text.count('}', start)


@functools.cache
def _decoder() -> json.JSONDecoder:
  return json.JSONDecoder(
      object_pairs_hook=_without_repeats, parse_constant=_no_number
  )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """A key that comes twice has two meanings."""
  found = dict(pairs)
  if len(found) < len(pairs):
    raise ValueError('a key comes twice')
  return found


def _no_number(name: str) -> float:
  raise ValueError(f'{name} is no number')


def field(data: Any, name: str, kind: type, most: int = 0) -> Any:
  """A field of an object, of a type; numbers are no switches.

  Args:
    data: the object.
    name: of the field.
    kind: str, int, bool, list or dict.
    most: characters or items; 0 for any number.

  Raises:
    Unusable: it is missing, or something else.
  """
  value = data.get(name) if isinstance(data, dict) else None
  if type(value) is not kind:
    raise Unusable(f'{name!r} is missing or is no {kind.__name__}')
  if kind is str and not value.strip():
    raise Unusable(f'{name!r} is empty')
  if most and len(value) > most:
    raise Unusable(f'{name!r} is longer than {most}')
  return value
