"""The jitted programs of the rollout engine, with their shapes and layouts.

One extend per piece length, one decode, one copy (device/generate.py and
cache.py), and the conversion of the policy's parameters into the form that they
read. Shapes and shardings are fixed here alone, so each is compiled once.

Where a run has several processes, each has programs of its own, over its own
devices: it plays by itself. Only the parameters come from all of them.
"""

import dataclasses
import functools
from typing import Any, Callable

from flax import nnx
import jax
import jax.numpy as jnp

from rods_jax import sharding
from rods_jax.device import cache as cache_lib
from rods_jax.device import generate
from rods_jax.device import model
from rods_jax.device import sampling


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What the shapes of the programs come from.

  Attributes:
    num_slots: B.
    cache_buckets: where the segments of the cache end, rising.
    extend_rows: lanes per prefill step.
    max_lanes: lanes per prefill call, a multiple of extend_rows.
    max_new: most new tokens per slot and call of decode.
  """

  num_slots: int
  cache_buckets: tuple[int, ...]
  extend_rows: int
  max_lanes: int
  max_new: int


def _platform(mesh: jax.sharding.Mesh) -> str:
  return mesh.devices.flat[0].platform


def _in_rollouts(
    config: model.ModelConfig, mesh: jax.sharding.Mesh
) -> model.ModelConfig:
  """The shape of the decoder in rollouts.

  Layers are apart: each writes into a cache of its own. On a CPU a head of its
  own stands beside the embedding, transposed: with tied ones XLA's backend
  transposes the table at every token, which takes a tenth of a step.
  """
  tied = config.tie_embeddings and _platform(mesh) != 'cpu'
  return dataclasses.replace(config, scan_layers=False, tie_embeddings=tied)


class Programs:
  """The programs; see generate.extend, generate.decode and cache.copy.

  Attributes:
    extend: (params, cache, lanes) -> cache; the cache is donated.
    decode: (params, cache, slots, sampler, min_running) -> (cache, sampled);
      the cache is donated.
    copy: (cache, src, dsts, count, length) -> cache; the cache is donated.
    num_traces: programs compiled so far.
  """

  def __init__(
      self,
      graphdef: nnx.GraphDef,
      mesh: jax.sharding.Mesh,
      config: model.ModelConfig,
      sizes: Sizes,
      *,
      end_id: int | tuple[int, ...],
      pad_id: int,
  ):
    """Jits everything, compiles nothing.

    Args:
      graphdef: of model.create.
      mesh: of sharding.make_mesh.
      config: shape of the decoder.
      sizes: of this process's slots.
      end_id: token that ends a message, or all that do.
      pad_id: fills unused places.
    """
    self._config, self._sizes = config, sizes
    self._mesh = sharding.local_mesh(mesh)
    self.num_traces = 0
    self._inside = _in_rollouts(config, mesh)
    if self._inside != config:
      graphdef = model.definition(self._inside)
    shapes = jax.eval_shape(self._converted, jax.random.key(0))
    # Not cut along 'embed': a decode step would gather them at every token.
    self._params = sharding.param_shardings(shapes, self._mesh, gathered=True)
    self._cache = sharding.named(
        ('batch', 'kv_heads', None, None),
        (sizes.num_slots, config.num_kv_heads, 1, 1), self._mesh,
    )
    params, cache = self._params, self._cache
    everywhere = sharding.replicated(self._mesh)
    self._everywhere = sharding.param_shardings(shapes, mesh, gathered=True)
    self._convert = jax.jit(
        functools.partial(model.for_rollouts, self._inside),
        out_shardings=self._everywhere,
    )
    extend = functools.partial(
        generate.extend, graphdef, block_rows=sizes.extend_rows
    )
    decode = functools.partial(
        generate.decode, graphdef, max_new=sizes.max_new, end_id=end_id,
        pad_id=pad_id, apart=self._mesh.size > 1 or _platform(mesh) == 'tpu',
    )
    self.extend = self._jit(extend, (params, cache, everywhere), cache)
    self.decode = self._jit(
        decode, (params, cache, *[everywhere] * 3), (cache, everywhere)
    )
    self.copy = self._jit(
        cache_lib.copy, (cache, *[everywhere] * 4), cache, donate=0
    )

  def _jit(
      self, function: Callable[..., Any], inputs, outputs, donate: int = 1
  ) -> Callable[..., Any]:
    """jit that counts its traces: with fixed shardings, one per program."""

    def traced(*args):
      self.num_traces += 1
      with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
        return function(*args)

    return jax.jit(
        traced, in_shardings=inputs, out_shardings=outputs,
        donate_argnums=donate,
    )

  def _converted(self, key):
    params = model.create(self._config, key)[1]
    return model.for_rollouts(self._inside, params)

  def place(self, params: Any) -> Any:
    """Parameters of model.create in the form and layout of the programs."""
    c = self._config
    if c.dtype == 'float32' and not c.scan_layers:  # copies only if need be
      params = model.for_rollouts(self._inside, params)
      params = jax.device_put(params, self._everywhere)
    else:
      params = self._convert(params)
    return sharding.localize(params, self._params)

  def empty_cache(self) -> cache_lib.Cache:
    """Zeros, not leftovers: NaN of a broken policy would outlive its mask."""
    return self._make_cache(self._cache)

  def _make_cache(self, device: jax.sharding.Sharding | None):
    c, sizes = self._config, self._sizes
    shape = (sizes.num_slots, c.num_kv_heads, c.head_dim)
    return cache_lib.empty(
        c.num_layers, shape, sizes.cache_buckets, c.dtype, device
    )

  def lower(self, chunk: int) -> dict[str, Any]:
    """The lowered decode, and extend with pieces of `chunk` tokens.

    No device is needed; the mesh may be of a topology description.
    """
    place = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
    params = jax.tree.map(
        place, jax.eval_shape(self._converted, jax.random.key(0)), self._params
    )
    cache = jax.tree.map(
        lambda x: place(x, self._cache),
        jax.eval_shape(lambda: self._make_cache(None)),
    )
    lanes, slots = self._sizes.max_lanes, self._sizes.num_slots
    ints = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
    sampler = jax.eval_shape(
        lambda key: sampling.Sampler(
            key, jnp.float32(1), jnp.bool_(False), jnp.int32(0), jnp.float32(1)
        ), jax.random.key(0)
    )
    uids = jax.ShapeDtypeStruct((slots,), jnp.uint32)
    return {
        'decode': self.decode.lower(
            params, cache, generate.Slots(*[ints(slots)] * 4, uids), sampler,
            ints(),
        ),
        'extend': self.extend.lower(
            params, cache,
            generate.Lanes(ints(lanes, chunk), *[ints(lanes)] * 4, ints()),
        ),
    }
