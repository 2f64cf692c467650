"""Text of the policy to tool calls, and back.

The text is parsed here, by a small recursive-descent parser over a bounded
input; it is never evaluated, and it never reaches Python's own parser, whose
error recovery takes exponential time on some nested input. The grammar is the
part of Python's that BFCL ground truths use: calls of a bare name with literal
arguments. Calls are separated by newlines or ';', or stand in one bracket list
'[a(x=1), b()]', the official form.

Everything outside the grammar is a ParseError with a short reason, which goes
back to the policy.
"""

import ast
import keyword
import math
import re
import warnings
from typing import Any

from rods_jax.types import Call

MAX_CHARS = 20_000  # of one message; the longest ground truth call has 6,839
MAX_CALLS = 64  # in one message
MAX_DEPTH = 16  # of nested literals
MAX_INT_DIGITS = 300
_CONSTANTS = {'True': True, 'False': False, 'None': None}

_DIGITS = r'[0-9](?:_?[0-9])*'
_TOKEN = re.compile(
    r"""(?P<space>[ \t\f\r]+)
    |(?P<end>[\n;])
    |(?P<string>[rRuU]?(?:
        '''[^'\\]*(?:(?:\\.|''?(?!'))[^'\\]*)*'''
       |\"\"\"[^"\\]*(?:(?:\\.|""?(?!"))[^"\\]*)*\"\"\"
       |'(?!'')[^'\\\n]*(?:\\.[^'\\\n]*)*'
       |"(?!"")[^"\\\n]*(?:\\.[^"\\\n]*)*"
       ))
    |(?P<number>0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+
       |(?:D\.?(?:D)?|\.D)(?:[eE][+-]?D)?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>[\[\](){},:=+\-])
    """.replace('D', _DIGITS),
    re.VERBOSE | re.DOTALL,
)


class ParseError(ValueError):
  """The text is not a list of calls; the message says why, in a few words."""


def parse(text: str) -> list[Call]:
  """The calls of one message; [] for whitespace or an empty bracket list.

  Args:
    text: anything at all.

  Raises:
    ParseError: with a reason of at most about 100 characters.
  """
  if len(text) > MAX_CHARS:
    raise ParseError(f'message longer than {MAX_CHARS} characters')
  if not text or text.isspace():
    return []
  return _Parser(text).message()


def parse_ground_truth(text: str) -> Call:
  """One ground-truth call; ParseError if it is not exactly one."""
  calls = parse(text)
  if len(calls) != 1:
    raise ParseError(f'expected one call, found {len(calls)}')
  return calls[0]


def render(call: Call) -> str:
  """Canonical text on one line: parse(render(call)) == [call]."""
  parts = [repr(value) for value in call.args]
  parts += [f'{name}={value!r}' for name, value in call.kwargs.items()]
  return f'{call.name}({", ".join(parts)})'


def _tokens(text: str) -> list[tuple[str, str]]:
  """(kind, text) pairs, closed by ('eof', ''); linear in the text."""
  out = []
  position = 0
  while position < len(text):
    match = _TOKEN.match(text, position)
    if match is None:
      raise ParseError(f'unexpected {text[position]!a}')
    if match.lastgroup != 'space':
      out.append((match.lastgroup, match.group()))
    position = match.end()
  out.append(('eof', ''))
  return out


class _Parser:
  """Recursive descent over the tokens of one message."""

  def __init__(self, text: str):
    self._tokens = _tokens(text.strip())
    self._next = 0
    self._depth = 0

  def message(self) -> list[Call]:
    if self._text() == '[':
      calls = self._bracket_list()
    else:
      calls = [self._call()]
      while self._kind() == 'end':
        self._skip_ends()
        if self._kind() != 'eof':
          calls.append(self._call())
    if self._kind() != 'eof':
      raise ParseError(f'expected the end of the call, found {self._shown()}')
    if len(calls) > MAX_CALLS:
      raise ParseError(f'more than {MAX_CALLS} calls in one message')
    return calls

  def _bracket_list(self) -> list[Call]:
    self._take('[')
    calls = []
    while self._inner() != ']':
      calls.append(self._call())
      if self._inner() != ']':
        self._take(',')
    self._take(']')
    return calls

  def _call(self) -> Call:
    kind, name = self._tokens[self._next]
    if kind != 'name' or keyword.iskeyword(name):
      raise ParseError(f'expected a tool name, found {self._shown()}')
    self._next += 1
    self._take('(')
    args, kwargs = [], {}
    while self._inner() != ')':
      self._argument(args, kwargs)
      if self._inner() != ')':
        self._take(',')
    self._take(')')
    return Call(name, tuple(args), kwargs)

  def _argument(self, args: list[Any], kwargs: dict[str, Any]) -> None:
    kind, name = self._tokens[self._next]
    if kind == 'name' and self._tokens[self._next + 1] == ('mark', '='):
      if keyword.iskeyword(name):
        raise ParseError(f'{name} cannot be an argument name')
      if name in kwargs:
        raise ParseError(f'argument {short(name)} given twice')
      self._next += 2
      kwargs[name] = self._value()
    elif kwargs:
      raise ParseError('positional argument after a named one')
    else:
      args.append(self._value())

  def _value(self) -> Any:
    self._depth += 1
    if self._depth > MAX_DEPTH:
      raise ParseError(f'nested deeper than {MAX_DEPTH}')
    self._inner()
    kind, text = self._tokens[self._next]
    if kind == 'string':
      value = self._strings()
    elif kind == 'number':
      self._next += 1
      value = _number(text)
    elif kind == 'name' and text in _CONSTANTS:
      self._next += 1
      value = _CONSTANTS[text]
    elif text in ('+', '-'):
      value = self._signed()
    elif text == '[':
      value = self._items(']')[0]
    elif text == '(':
      items, comma = self._items(')')
      value = items[0] if len(items) == 1 and not comma else tuple(items)
    elif text == '{':
      value = self._dict()
    else:
      raise ParseError(f'expected a literal, found {self._shown()}')
    self._depth -= 1
    return value

  def _signed(self) -> Any:
    sign = self._text()
    self._next += 1
    value = self._value()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
      raise ParseError(f'{sign} before something that is not a number')
    return -value if sign == '-' else value

  def _items(self, close: str) -> tuple[list[Any], bool]:
    """Items up to the closing mark, and whether a comma was seen."""
    self._next += 1
    items, comma = [], False
    while self._inner() != close:
      items.append(self._value())
      if self._inner() != close:
        self._take(',')
        comma = True
    self._take(close)
    return items, comma

  def _dict(self) -> dict[Any, Any]:
    self._next += 1
    out = {}
    while self._inner() != '}':
      key = self._value()
      self._inner()
      self._take(':')
      try:
        out[key] = self._value()
      except TypeError:
        raise ParseError('a list or dict cannot be a dict key') from None
      if self._inner() != '}':
        self._take(',')
    self._take('}')
    return out

  def _strings(self) -> str:
    """One string, or several side by side, which Python joins."""
    out = ''
    while self._kind() == 'string':
      out += _string(self._text())
      self._next += 1
    return out

  def _kind(self) -> str:
    return self._tokens[self._next][0]

  def _text(self) -> str:
    return self._tokens[self._next][1]

  def _inner(self) -> str:
    """The next token's text; inside brackets a newline is white space."""
    while self._tokens[self._next] == ('end', '\n'):
      self._next += 1
    return self._text()

  def _skip_ends(self) -> None:
    """A ';' must follow a call, so at most one; newlines are free."""
    seen = False
    while self._kind() == 'end':
      if self._text() == ';':
        if seen:
          raise ParseError("expected a tool name, found ';'")
        seen = True
      self._next += 1

  def _take(self, mark: str) -> None:
    if self._tokens[self._next] != ('mark', mark):
      raise ParseError(f"expected '{mark}', found {self._shown()}")
    self._next += 1

  def _shown(self) -> str:
    kind, text = self._tokens[self._next]
    return 'the end of the message' if kind == 'eof' else f'{short(text)!a}'


def short(text: str) -> str:
  return text if len(text) <= 24 else text[:24] + '...'


def _number(text: str) -> int | float:
  if len(text) > MAX_INT_DIGITS:
    raise ParseError(f'number longer than {MAX_INT_DIGITS} digits')
  try:
    return int(text, 0)  # base 0 reads Python's own integer forms
  except ValueError:
    pass
  if text.isdigit():
    raise ParseError('number with leading zeros')
  value = float(text)
  if not math.isfinite(value):
    raise ParseError('number out of range')
  return value


def _string(text: str) -> str:
  """The value of one string token."""
  if '\0' in text:
    raise ParseError('null byte in a string')
  if '\\' not in text and text[0] in '\'"' and text[1:3] not in ("''", '""'):
    value = text[1:-1]
  else:
    try:
      with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # an unknown escape stays as it is
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError):
      raise ParseError(f'malformed string {short(text)!a}') from None
  if not value.isascii() and not encodable(value):
    raise ParseError('a string holds half a surrogate pair')
  return value


def encodable(value: str) -> bool:
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return True
