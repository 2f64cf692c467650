"""The one table of logical axes, and hints where activations live.

Arrays name their dimensions by logical axes ('vocab', 'embed', ...), and the
table alone says which mesh axis each of them is cut along. sharding.py places
parameters by it; `constrain` tells the compiler the same about what lies
between them. Between two layers the activations of a row are cut along its
tokens, so that what a checkpointed layer keeps is shared among the devices that
share its heads.
"""

import math

import jax
from jax.sharding import PartitionSpec

MESH_AXES = ('data', 'fsdp', 'tensor')

# Logical axis -> mesh axes. Heads and kv heads are cut alike, so that a query
# head stays on the device of the kv head it reads.
RULES: dict[str, tuple[str, ...]] = {
    'batch': ('data', 'fsdp'),
    'sequence': ('tensor',),
    'layers': (),
    'rank': (),
    'vocab': ('tensor',),
    # Of logits in training: all devices that share a replica of the parameters
    # share the vocabulary, so that the wide matrix stays where it is and only
    # activations and their gradients travel.
    'replica': ('data',),
    'spread_vocab': ('tensor', 'fsdp'),
    'embed': ('fsdp',),
    'heads': ('tensor',),
    'kv_heads': ('tensor',),
    'mlp': ('tensor',),
}


def is_spread() -> bool:
  """Whether the surrounding program is laid out over several devices."""
  mesh = jax.sharding.get_abstract_mesh()
  return not mesh.empty and mesh.size > 1


def partition(*names: str | None) -> PartitionSpec:
  """What the table says of an array whose dimensions have these names."""
  return PartitionSpec(*(RULES[name] if name else None for name in names))


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
  """x, cut along the mesh of the surrounding program as the table says.

  Without a mesh, or with one of a single device, it is x itself. A dimension
  that the mesh does not divide is left whole: here it is a matter of speed
  only.
  """
  if not is_spread():
    return x
  mesh = jax.sharding.get_abstract_mesh()
  parts = []
  for name, size in zip(names, x.shape, strict=True):
    axes = () if name is None else RULES[name]
    fits = size % math.prod(mesh.shape[axis] for axis in axes) == 0
    parts.append(axes if axes and fits else None)
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*parts))


def gathered(names: tuple[str | None, ...]) -> tuple[str | None, ...]:
  """Names of a parameter whose parts along 'embed' were brought together."""
  return tuple(None if name == 'embed' else name for name in names)
