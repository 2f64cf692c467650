"""Tools as JSON schemas, made from BFCL's documentation.

The documentation names types in its own words ("dict", "float"); pretrained
policies know those of JSON schema. What a tool returns is left out, as in the
official prompts for function calling.
"""

from collections.abc import Iterable, Mapping
import functools
from typing import Any

from rods_jax.host import bfcl

# Type in the documentation -> in JSON schema.
_TYPES = {
    'dict': 'object',
    'float': 'number',
    'array': 'array',
    'boolean': 'boolean',
    'integer': 'integer',
    'string': 'string',
}


@functools.cache
def schema(name: str) -> Mapping[str, Any]:
  """One tool in the form {"type": "function", "function": ...}.

  Shared: do not change it.

  Raises:
    KeyError: there is no such tool.
  """
  doc = bfcl.tool_doc(name)
  return {
      'type': 'function',
      'function': {
          'name': doc['name'],
          'description': doc['description'],
          'parameters': _parameters(doc['parameters']),
      },
  }


def schemas(names: Iterable[str]) -> list[Mapping[str, Any]]:
  """Of all these tools, in the order of the documentation."""
  return [schema(name) for name in sorted(names, key=_order().__getitem__)]


@functools.cache
def _order() -> Mapping[str, int]:
  names = [name for cls in bfcl.CLASSES for name in bfcl.tool_names(cls)]
  return {name: i for i, name in enumerate(names)}


def _parameters(doc: Mapping[str, Any]) -> dict[str, Any]:
  """A schema of the documentation with the types of JSON schema."""
  found = dict(doc) | {'type': _TYPES[doc['type']]}
  if 'properties' in doc:
    found['properties'] = {
        name: _parameters(inner) for name, inner in doc['properties'].items()
    }
  if 'items' in doc:
    found['items'] = _parameters(doc['items'])
  return found
