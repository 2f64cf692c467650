"""Tests of sharding.py: errors name the fault. test_meshes.py computes."""

import types

import jax
from jax.sharding import PartitionSpec
import pytest

from rods_jax import sharding


def _mesh(data, fsdp, tensor):
  """Only the sizes: what `spec` needs of a mesh."""
  sizes = dict(data=data, fsdp=fsdp, tensor=tensor)
  return types.SimpleNamespace(shape=sizes)


def test_make_mesh_fills_in_what_is_left():
  count = len(jax.devices())
  assert dict(sharding.make_mesh(-1, 1, 1).shape) == dict(
      data=count, fsdp=1, tensor=1
  )
  assert dict(sharding.make_mesh(1, 1, -1).shape)['tensor'] == count


@pytest.mark.parametrize(
    'sizes, message',
    [
        ((3, 5, 7), 'does not multiply to the'),
        ((-1, 5, 7), 'does not multiply to the'),
        ((-1, -1, 1), 'one of them may be -1'),
        ((0, 1, 1), 'must be at least 1'),
        ((-2, 1, 1), 'must be at least 1'),
    ],
)
def test_mesh_errors_are_one_clear_line(sizes, message):
  with pytest.raises(ValueError, match=message) as error:
    sharding.make_mesh(*sizes)
  assert '\n' not in str(error.value)


def test_spec_follows_the_table():
  mesh = _mesh(2, 2, 2)
  got = sharding.spec(('vocab', 'embed'), (96, 32), mesh)
  assert got == PartitionSpec('tensor', 'fsdp')
  got = sharding.spec(('batch', None), (8, 5), mesh)
  assert got == PartitionSpec(('data', 'fsdp'), None)


@pytest.mark.parametrize(
    'axes, shape, message',
    [
        (('heads', 'mlp'), (4, 4), "'heads' and 'mlp'.*'tensor'"),
        (('batch', 'embed'), (4, 4), "'batch' and 'embed'.*'fsdp'"),
        (('kv_heads',), (3,), 'kv_heads has size 3.* = 2 do not divide'),
        (('batch',), (6,), r'batch has size 6.*data\*fsdp = 4'),
        (('hedas',), (4,), "'hedas' is not in the table"),
        (('heads',), (4, 4), 'do not name the shape'),
    ],
)
def test_what_does_not_fit_is_an_error(axes, shape, message):
  with pytest.raises(ValueError, match=message):
    sharding.spec(axes, shape, _mesh(2, 2, 2))
