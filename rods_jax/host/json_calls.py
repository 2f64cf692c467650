"""Calls as pretrained policies write them, in JSON, read from sampled text.

Three forms, one parser each:

  tagged      thinking, words, and <tool_call>{"name": ..., "arguments": {...}}
              </tool_call> any number of times (Qwen2.5, Qwen3)
  tagged list <tool_call>[{"name": ..., "arguments": {...}}, ...]</tool_call>
              (SmolLM2)
  bare        {"name": ..., "parameters": {...}}, several with ';' between, or
              in one list, perhaps behind <|python_tag|>; or, behind the tag,
              name.call(argument="value") (Llama-3.1)

A message without any call is an answer and gives []. Everything that begins a
call and is none is a ParseError with a short reason, for the policy to read.
Length, depth and digits are bounded as in tool_calls.py, and so is the time:
the text is read once, from left to right.
"""

import json
import keyword
import math
import re
from typing import Any

from rods_jax.host import tool_calls
from rods_jax.types import Call

ParseError = tool_calls.ParseError

THINK, THINK_END = '<think>', '</think>'
OPEN, CLOSE = '<tool_call>', '</tool_call>'
PYTHON_TAG = '<|python_tag|>'
_BLANK = re.compile(r'[ \t\r\n]*')
_BETWEEN = re.compile(r'[ \t\r\n]*[;,]?[ \t\r\n]*')
_LIST = re.compile(r'\[[ \t\r\n]*\{')
_NAME = re.compile(r'[A-Za-z_][A-Za-z0-9_]*')
_METHOD = re.compile(r'[ \t\r\n]*([A-Za-z_][A-Za-z0-9_]*)\.call(?=\()')


def parse_tagged(text: str, thinks: bool = False) -> list[Call]:
  """Calls between tags, one each; other words are allowed around them.

  Args:
    text: anything at all.
    thinks: the prompt has opened the thinking already.
  """
  text = _after_thinking(_bounded(text), thinks)
  calls = []
  for value in _tagged(text):
    if not isinstance(value, dict):
      raise ParseError(f'{OPEN} must hold one JSON object')
    calls.append(_call(value, 'arguments'))
  return _counted(calls)


def parse_tagged_list(text: str) -> list[Call]:
  """Calls between tags, in a list; a single object is taken too."""
  calls = []
  for value in _tagged(_bounded(text)):
    calls += _calls(value, 'arguments')
  return _counted(calls)


def parse_bare(text: str) -> list[Call]:
  """Calls that are the whole message, or all of it behind <|python_tag|>."""
  text = _bounded(text).strip()
  if text[:1] == '{' or _LIST.match(text):  # a tag in a string is text then
    return _counted(_objects(text))
  _, tag, code = text.partition(PYTHON_TAG)
  return _counted(_code(code)) if tag else []


def _bounded(text: str) -> str:
  if len(text) > tool_calls.MAX_CHARS:
    raise ParseError(f'message longer than {tool_calls.MAX_CHARS} characters')
  return text


def _counted(calls: list[Call]) -> list[Call]:
  if len(calls) > tool_calls.MAX_CALLS:
    raise ParseError(f'more than {tool_calls.MAX_CALLS} calls in one message')
  return calls


def _after_thinking(text: str, thinks: bool) -> str:
  """What follows the thinking; calls that are only thought of do not count."""
  if not thinks and not text.lstrip().startswith(THINK):
    return text
  _, end, rest = text.partition(THINK_END)
  if not end:
    raise ParseError(f'thinking without {THINK_END}')
  return rest


def _tagged(text: str) -> list[Any]:
  """The JSON value inside each pair of tags, in order.

  The value is read from the opening tag on, so that a tag inside one of its
  strings is text.
  """
  values = []
  position = 0
  while (start := text.find(OPEN, position)) >= 0:
    _refuse_close(text[position:start])
    value, end = _value(text, start + len(OPEN))
    end = _BLANK.match(text, end).end()
    if not text.startswith(CLOSE, end):
      raise ParseError(f'expected {CLOSE}, found {_shown(text, end)}')
    values.append(value)
    position = end + len(CLOSE)
  _refuse_close(text[position:])
  return values


def _refuse_close(text: str) -> None:
  if CLOSE in text:
    raise ParseError(f'{CLOSE} without {OPEN}')


def _code(code: str) -> list[Call]:
  """What stands behind the python tag."""
  method = _METHOD.match(code)
  if method:
    return tool_calls.parse(method.group(1) + code[method.end():].rstrip())
  if code.lstrip()[:1] not in ('{', '['):
    raise ParseError(f'expected a call behind {PYTHON_TAG}')
  return _objects(code)


def _objects(text: str) -> list[Call]:
  """Objects or lists of them, up to the end of the text."""
  calls, position = [], 0
  while position < len(text):
    value, position = _value(text, position)
    calls += _calls(value, 'parameters')
    position = _BETWEEN.match(text, position).end()
  return calls


def _calls(value: Any, arguments: str) -> list[Call]:
  values = value if isinstance(value, list) else [value]
  if not all(isinstance(item, dict) for item in values):
    raise ParseError('a call must be a JSON object')
  return [_call(item, arguments) for item in values]


def _call(value: dict[str, Any], arguments: str) -> Call:
  """{"name": ..., arguments: {...}}; "type": "function" may stand there."""
  given = dict(value)
  if given.pop('type', 'function') != 'function':
    raise ParseError('"type" must be "function"')
  for key in ('name', arguments):
    if key not in given:
      raise ParseError(f'a call needs "{key}"')
  unknown = given.keys() - {'name', arguments}
  if unknown:
    raise ParseError(f'a call has no {tool_calls.short(min(unknown))!a}')
  name, kwargs = given['name'], given[arguments]
  if not isinstance(name, str) or not _is_name(name):
    raise ParseError('"name" must be the name of a tool')
  if not isinstance(kwargs, dict):
    raise ParseError(f'"{arguments}" must be a JSON object')
  for key, item in kwargs.items():
    if not _is_name(key):
      raise ParseError(f'{tool_calls.short(key)!a} cannot be an argument name')
    _check(item, 1)
  return Call(name, (), kwargs)


def _is_name(text: str) -> bool:
  return bool(_NAME.fullmatch(text)) and not keyword.iskeyword(text)


def _value(text: str, position: int) -> tuple[Any, int]:
  """The JSON value at a position, and where it ends."""
  position = _BLANK.match(text, position).end()
  try:
    value, end = _DECODER.raw_decode(text, position)
  except json.JSONDecodeError as error:
    what = _REASONS.get(error.msg, error.msg)
    raise ParseError(f'{what}, at {_shown(text, error.pos)}') from None
  except RecursionError:
    raise _too_deep() from None
  return value, end


# What the decoder says, in plainer words.
_REASONS = {
    'Expecting value': 'expected a JSON value',
    'Expecting property name enclosed in double quotes': (
        'expected a name in double quotes'
    ),
}


def _check(value: Any, depth: int) -> None:
  """Refuses what is nested too deep, and strings that cannot be encoded."""
  if depth > tool_calls.MAX_DEPTH:
    raise _too_deep()
  if isinstance(value, str):
    if not tool_calls.encodable(value):
      raise ParseError('a string holds half a surrogate pair')
  elif isinstance(value, dict):
    for key, item in value.items():
      _check(key, depth)
      _check(item, depth + 1)
  elif isinstance(value, list):
    for item in value:
      _check(item, depth + 1)


def _too_deep() -> ParseError:
  return ParseError(f'nested deeper than {tool_calls.MAX_DEPTH}')


def _short_number(text: str) -> str:
  if len(text) > tool_calls.MAX_INT_DIGITS:
    raise ParseError(f'number longer than {tool_calls.MAX_INT_DIGITS} digits')
  return text


def _integer(text: str) -> int:
  return int(_short_number(text))


def _float(text: str) -> float:
  value = float(_short_number(text))
  if not math.isfinite(value):
    raise ParseError('number out of range')
  return value


def _constant(text: str) -> None:
  raise ParseError(f'{text} is no JSON value')


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = {}
  for key, value in pairs:
    if key in found:
      raise ParseError(f'{tool_calls.short(key)!a} given twice')
    found[key] = value
  return found


def _shown(text: str, position: int) -> str:
  rest = text[position : position + 25]
  return f'{tool_calls.short(rest)!a}' if rest else 'the end of the message'


_DECODER = json.JSONDecoder(
    parse_int=_integer,
    parse_float=_float,
    parse_constant=_constant,
    object_pairs_hook=_object,
)
