"""How parameters are made and used: named axes, casts, and gathers."""

from typing import Any

from flax import nnx
import jax
from jax import Array
import jax.numpy as jnp

from rods_jax.device import axes as axes_lib


def make(
    rngs: nnx.Rngs,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    scale: float | None = None,
    stream: str = 'params',
) -> nnx.Param:
  """A normal parameter of deviation `scale`; all ones (None) or zeros (0)."""
  if scale is None:
    value = jnp.ones(shape, jnp.float32)
  elif scale == 0:
    value = jnp.zeros(shape, jnp.float32)
  else:
    value = scale * jax.random.normal(rngs[stream](), shape, jnp.float32)
  return nnx.Param(value, logical_axes=axes)


def weight(param: nnx.Param, dtype: Any) -> Array:
  """A parameter as a layer uses it: cast first, then gathered."""
  value = param[...]
  here, wanted = jnp.finfo(value.dtype), jnp.finfo(dtype)
  if wanted.bits < here.bits:
    # The rounding of the cast, done apart: a cast alone of one of the stacked
    # layers becomes, in XLA for TPU, one of all of them before the scan.
    value = jax.lax.reduce_precision(value, wanted.nexp, wanted.nmant)
  value = value.astype(dtype)
  # A layer of stacked parameters has lost the axis, but not its name.
  names = param.get_metadata('logical_axes')[-value.ndim :]
  return axes_lib.constrain(value, *axes_lib.gathered(names))
