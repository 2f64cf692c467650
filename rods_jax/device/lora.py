"""LoRA: small trained matrices beside frozen ones (arXiv 2106.09685).

A target matrix W of the base acts as W + (alpha / rank) A B, of which only A
and B are trained. B starts as zeros, so a run starts from the base exactly, and
the base without adapters is the reference of the KL term: there is no second
copy of the weights. Training and rollouts compute x W + (x A) B: both see the
same policy also in bfloat16, where W + A B would round A B away. Only an
exported policy has the sum.

Adapters stand in the tree of parameters beside the matrix they belong to.

Shapes: R rank; axes before (I) and after (O) are those of the matrix.
"""

from collections.abc import Iterator
import math
from typing import Any

from flax import nnx
import jax.numpy as jnp
from jaxtyping import Array, Float

from rods_jax.device import layers
from rods_jax.device import model_config
from rods_jax.device import parameters

_SUFFIX = '_adapter'


class Adapter(nnx.Module):
  """What is added to the products with one matrix."""

  def __init__(
      self,
      matrix: nnx.Param,
      num_inputs: int,
      config: model_config.ModelConfig,
      rngs: nnx.Rngs,
  ):
    """An adapter that adds nothing yet.

    Args:
      matrix: the target.
      num_inputs: leading axes of it that a product sums over.
      config: rank and alpha.
      rngs: the stream `adapters`; that of the base stays as it is.
    """
    shape, names = matrix.shape, matrix.get_metadata('logical_axes')
    inputs, outputs = shape[:num_inputs], shape[num_inputs:]
    rank = config.lora_rank
    self.scale = config.lora_alpha / rank
    self.a = parameters.make(
        rngs, (*inputs, rank), (*names[:num_inputs], 'rank'),
        math.prod(inputs) ** -0.5, stream='adapters',
    )
    self.b = parameters.make(
        rngs, (rank, *outputs), ('rank', *names[num_inputs:]), 0
    )

  def __call__(self, x: Float[Array, '... I']) -> Float[Array, '... O']:
    a = parameters.weight(self.a, x.dtype).reshape(x.shape[-1], -1)
    inner = self.scale * layers.linear(x, a)
    return layers.linear(inner, parameters.weight(self.b, x.dtype))


def attach(
    module: nnx.Module,
    config: model_config.ModelConfig,
    rngs: nnx.Rngs,
    **num_inputs: int,
) -> None:
  """Gives a module an adapter for each of its matrices that is a target.

  Args:
    module: with the matrices as attributes.
    config: the decoder's.
    rngs: with a stream `adapters`.
    **num_inputs: name of a matrix -> see Adapter.
  """
  for name, count in num_inputs.items():
    if config.lora_rank and name in config.lora_targets:
      adapter = Adapter(getattr(module, name), count, config, rngs)
      setattr(module, name + _SUFFIX, adapter)


def linear(
    module: nnx.Module,
    name: str,
    x: Float[Array, '... I'],
    weight: Float[Array, 'I ...'],
) -> Float[Array, '...']:
  """x @ weight, and what the adapter of matrix `name` adds if it has one."""
  out = layers.linear(x, weight)
  adapter = getattr(module, name + _SUFFIX, None)
  return out if adapter is None else out + adapter(x)


def _is_adapter(path: tuple[Any, ...]) -> bool:
  return any(isinstance(p, str) and p.endswith(_SUFFIX) for p in path)


def split(params: Any) -> tuple[Any, Any]:
  """(adapters, base) of the decoder's parameters."""
  flat = list(nnx.to_flat_state(params))
  parts = (
      [item for item in flat if _is_adapter(item[0]) == wanted]
      for wanted in (True, False)
  )
  return tuple(map(nnx.from_flat_state, parts))


def join(adapters: Any, base: Any) -> Any:
  """The inverse of `split`; nothing is copied."""
  return nnx.from_flat_state(
      [*nnx.to_flat_state(base), *nnx.to_flat_state(adapters)]
  )


def merged(
    params: Any, config: model_config.ModelConfig
) -> Iterator[tuple[tuple[Any, ...], nnx.Variable]]:
  """Path and value of each parameter of a policy without adapters.

  One sum at a time, so that it needs no second copy of the weights.
  """
  adapters, base = map(dict, map(nnx.to_flat_state, split(params)))
  for path, variable in base.items():
    beside = (*path[:-1], f'{path[-1]}{_SUFFIX}')
    if (*beside, 'a') in adapters:
      a, b = (adapters[*beside, name].get_value() for name in ('a', 'b'))
      variable = variable.replace(_sum(variable.get_value(), a, b, config))
    yield path, variable


def _sum(weight, a, b, config: model_config.ModelConfig) -> Array:
  """W + (alpha / rank) A B, with an axis of layers before or without."""
  stacked = a.ndim + b.ndim - 2 > weight.ndim
  layers_axis = weight.shape[:1] if stacked else ()
  rank = config.lora_rank
  product = jnp.matmul(
      a.reshape(*layers_axis, -1, rank), b.reshape(*layers_axis, rank, -1),
      precision='highest',
  )
  return weight + config.lora_alpha / rank * product.reshape(weight.shape)
