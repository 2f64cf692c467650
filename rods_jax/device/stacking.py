"""Parameters of equal layers on one leading axis, and layer by layer again.

A scan over layers wants every parameter of a block once, as [L, ...]. Files and
rollouts want the layers apart: so a policy is the same on disk whichever way it
was trained, and decoding reads each layer's matrices where they lie instead of
cutting them out of a stacked array at every token.
"""

from collections.abc import Sequence
from typing import Any

from flax import nnx
import jax.numpy as jnp

LAYERS = 'layers'  # the logical axis
_BLOCKS = 'blocks'


def join(layers: Sequence[nnx.State]) -> nnx.State:
  """One state of [L, ...] arrays from those of L equal blocks."""
  flat = [nnx.to_flat_state(state) for state in layers]
  joined = []
  for entries in zip(*flat, strict=True):
    path, first = entries[0]
    value = jnp.stack([variable.get_value() for _, variable in entries])
    names = (LAYERS, *first.get_metadata('logical_axes'))
    joined.append((path, nnx.Param(value, logical_axes=names)))
  return nnx.from_flat_state(joined)


def is_stacked(params: Any) -> bool:
  """Whether the decoder's layers are stacked."""
  return any(is_stacked_path(path) for path, _ in nnx.to_flat_state(params))


def unstack(params: Any) -> Any:
  """The decoder's parameters with each layer's apart."""
  flat = []
  for path, variable in nnx.to_flat_state(params):
    if not is_stacked_path(path):
      flat.append((path, variable))
      continue
    value, names = variable.get_value(), variable.get_metadata('logical_axes')
    flat += [
        (
            (_BLOCKS, layer, *path[1:]),
            nnx.Param(value[layer], logical_axes=names[1:]),
        )
        for layer in range(value.shape[0])
    ]
  return nnx.from_flat_state(flat)


def stack(params: Any) -> Any:
  """The inverse of `unstack`."""
  flat, layers = [], {}
  for path, variable in nnx.to_flat_state(params):
    if path[0] == _BLOCKS:
      layers.setdefault(path[1], []).append((path[2:], variable))
    else:
      flat.append((path, variable))
  states = [nnx.from_flat_state(layers[i]) for i in sorted(layers)]
  for path, variable in nnx.to_flat_state(join(states)):
    flat.append(((_BLOCKS, *path), variable))
  return nnx.from_flat_state(flat)


def is_stacked_path(path: tuple[Any, ...]) -> bool:
  """Whether a path of a flat state leads to a stacked parameter."""
  return path[0] == _BLOCKS and not isinstance(path[1], int)
