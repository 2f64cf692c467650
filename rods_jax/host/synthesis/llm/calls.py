"""Calls as a language model writes them: {"tool": ..., "args": {...}}.

An argument is a value, or {"call": i, "path": "a.0.b"}: what the result of the
i-th call of the dialogue holds there.
"""

import dataclasses
import functools
import re
from typing import Any, Mapping

from rods_jax.host import bfcl, tool_calls
from rods_jax.host.synthesis.llm.answers import Unusable, field
from rods_jax.types import Call

_PATH = re.compile(r'\w[\w ()-]*(\.\w[\w ()-]*)*')
_PREFIX = re.compile(r'^This tool belongs to .*? Tool description: ', re.DOTALL)
MAX_DOC = 400  # characters of a tool's or a parameter's description
_TYPES = {
    'string': (str,),
    'integer': (int,),
    'float': (int, float),
    'boolean': (bool,),
    'array': (list,),
    'dict': (dict,),
}


@dataclasses.dataclass(frozen=True)
class Reference:
  """Part of an earlier call's result."""

  call: int
  path: str


@dataclasses.dataclass(frozen=True)
class Draft:
  """A call before it is run; values of args may be References."""

  tool: str
  args: Mapping[str, Any]


@functools.cache
def doc(name: str) -> dict[str, Any]:
  """The documentation of a tool, in short. Shared: do not change it."""
  found = bfcl.tool_doc(name)
  parameters = found['parameters']
  return {
      'tool': name,
      'does': _PREFIX.sub('', found['description'])[:MAX_DOC],
      'args': {
          param: f'{entry["type"]}: {entry.get("description", "")}'[:MAX_DOC]
          for param, entry in parameters['properties'].items()
      },
      'required': parameters['required'],
      'result': sorted(found.get('response', {}).get('properties', {})),
  }


def check(data: Any, allowed: frozenset[str], index: int) -> Draft:
  """A call of an allowed tool with arguments that fit its documentation.

  Args:
    data: what was written.
    allowed: tools that may be used.
    index: of the call; references name smaller ones.

  Raises:
    Unusable: with the first fault.
  """
  tool = field(data, 'tool', str)
  if tool not in allowed:
    raise Unusable('a tool that is not to be used', tool[:60])
  args = field(data, 'args', dict)
  parameters = bfcl.tool_doc(tool)['parameters']
  for param in parameters['required']:
    if param not in args:
      raise Unusable('an argument is missing', f'{param} of {tool}')
  checked = {}
  for param, value in args.items():
    if param not in parameters['properties']:
      raise Unusable('an argument that the tool has not', f'{param} of {tool}')
    kind = parameters['properties'][param]['type']
    checked[param] = _argument(value, kind, f'{param} of {tool}', index)
  plain = {
      param: 0 if isinstance(value, Reference) else value
      for param, value in checked.items()
  }
  try:
    tool_calls.parse_ground_truth(
        tool_calls.render(Call(tool, (), plain))
    )
  except tool_calls.ParseError as error:
    raise Unusable('a call that cannot be written down', str(error)) from None
  return Draft(tool, checked)


def _argument(value: Any, kind: str, name: str, index: int) -> Any:
  if isinstance(value, dict) and value.keys() == {'call', 'path'}:
    call, path = field(value, 'call', int), field(value, 'path', str, 100)
    if not 0 <= call < index or not _PATH.fullmatch(path):
      raise Unusable('a reference to no earlier result', name)
    return Reference(call, path)
  if type(value) not in _TYPES[kind]:
    raise Unusable('an argument of the wrong type', f'{name} is a {kind}')
  return value
