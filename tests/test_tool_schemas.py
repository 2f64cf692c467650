"""Tools as JSON schemas: the types, the order, and that nothing is lost."""

import pytest

from rods_jax.host import bfcl
from rods_jax.host import tool_schemas

JSON_TYPES = {'object', 'number', 'integer', 'string', 'boolean', 'array'}
ALL = [name for cls in bfcl.CLASSES for name in bfcl.tool_names(cls)]


def inner(schema):
  """The schema and all inside it."""
  yield schema
  for value in schema.get('properties', {}).values():
    yield from inner(value)
  if 'items' in schema:
    yield from inner(schema['items'])


def test_one_by_hand():
  """BFCL calls the outer type dict and the numbers float."""
  found = tool_schemas.schema('mean')
  description = found['function'].pop('description')
  numbers = found['function']['parameters']['properties']['numbers']
  assert numbers.pop('description').startswith('List of numbers')
  assert description.endswith('numbers.')
  assert found == {
      'type': 'function',
      'function': {
          'name': 'mean',
          'parameters': {
              'type': 'object',
              'properties': {
                  'numbers': {'type': 'array', 'items': {'type': 'number'}}
              },
              'required': ['numbers'],
          },
      },
  }
  tool_schemas.schema.cache_clear()  # it was changed above


def test_all_types_are_of_json_schema():
  assert len(ALL) == 128
  seen = set()
  for found in tool_schemas.schemas(ALL):
    parameters = found['function']['parameters']
    seen |= {part['type'] for part in inner(parameters)}
  assert seen == JSON_TYPES


@pytest.mark.parametrize('name', ALL)
def test_the_documentation_itself_is_unchanged_and_whole(name):
  doc = bfcl.tool_doc(name)
  function = tool_schemas.schema(name)['function']
  assert set(doc) - set(function) == {'response'}
  assert doc['parameters']['type'] == 'dict'
  for old, new in zip(
      inner(doc['parameters']), inner(function['parameters']), strict=True
  ):
    rest = set(old) - {'type', 'properties', 'items'}
    assert {k: old[k] for k in rest} == {k: new[k] for k in rest}


def test_the_order_is_the_documentations_for_any_set():
  names = {'ls', 'cd', 'mean', 'post_tweet'}
  found = [s['function']['name'] for s in tool_schemas.schemas(names)]
  assert found == [name for name in ALL if name in names]
  assert found.index('ls') < found.index('mean') < found.index('post_tweet')
  assert tool_schemas.schemas([]) == []
