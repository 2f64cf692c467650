"""The policy: a Flax (nnx) decoder and the pure functions over its parameters.

Grouped-query attention, rotary positions, RMSNorm before each block, SwiGLU.
Layers are unrolled and own their parameters: on CPU that runs 1.2 to 1.4 times
faster than a scan. With scan_layers they are stacked (stacking.py), and the
training path compiles one layer, whatever their number. Every parameter names
its logical axes as plain metadata; axes.py has the table of these names.

The training path (`hidden`, `logits`) and the cached path (generate.py) run the
same `Decoder.forward`; they differ only in the `attend` function it is given.

Shapes: B rows, T tokens, S keys, V vocab, D model, H heads, K kv heads,
P head_dim, F mlp.
"""

from collections.abc import Iterator
import functools
from typing import Any, Callable

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rods_jax.device import axes
from rods_jax.device import layers
from rods_jax.device import long_attention
from rods_jax.device import lora
from rods_jax.device import parameters
from rods_jax.device import rope
from rods_jax.device import stacking
from rods_jax.device.model_config import ModelConfig

Attend = Callable[[int | None, Array, Array, Array], Array]

# What the backward pass finds of a layer, beside its input; the rest it
# computes again.
_KEPT = {
    'full': jax.checkpoint_policies.nothing_saveable,
    'attention': jax.checkpoint_policies.save_only_these_names(
        long_attention.KEPT
    ),
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


_param, _weight = parameters.make, parameters.weight


def rms_norm(x: Float[Array, '... n'], weight: Float[Array, 'n'], eps: float):
  """x / rms(x) * weight, computed in float32, in the dtype of x."""
  wide = x.astype(jnp.float32)
  scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
  return (wide * scale * weight).astype(x.dtype)


class Attention(nnx.Module):
  """Projections of one attention block."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    c, d, p = config, config.d_model, config.head_dim
    scale = d**-0.5
    self.config = config
    self.q = _param(rngs, (d, c.num_heads, p), ('embed', 'heads', None), scale)
    kv_shape, kv_axes = (d, c.num_kv_heads, p), ('embed', 'kv_heads', None)
    self.k = _param(rngs, kv_shape, kv_axes, scale)
    self.v = _param(rngs, kv_shape, kv_axes, scale)
    self.o = _param(
        rngs, (c.num_heads, p, d), ('heads', None, 'embed'),
        (2 * c.num_layers * c.num_heads * p) ** -0.5,
    )
    if c.qkv_bias:
      self.q_bias = _param(rngs, (c.num_heads, p), ('heads', None), 0)
      self.k_bias = _param(rngs, (c.num_kv_heads, p), ('kv_heads', None), 0)
      self.v_bias = _param(rngs, (c.num_kv_heads, p), ('kv_heads', None), 0)
    if c.qk_norm:
      self.q_norm = _param(rngs, (p,), (None,))
      self.k_norm = _param(rngs, (p,), (None,))
    lora.attach(self, config, rngs, q=1, k=1, v=1, o=2)

  def project(self, x: Float[Array, 'B T D'], rotation: rope.Rotation):
    """Rotated queries [B T H P] and keys [B T K P], values [B T K P]."""
    c, dtype = self.config, x.dtype
    q, k, v = (
        lora.linear(self, name, x, _weight(w, dtype))
        for name, w in (('q', self.q), ('k', self.k), ('v', self.v))
    )
    q = axes.constrain(q, 'batch', None, 'heads', None)
    k, v = (axes.constrain(y, 'batch', None, 'kv_heads', None) for y in (k, v))
    if c.qkv_bias:
      q = q + self.q_bias[...].astype(dtype)
      k = k + self.k_bias[...].astype(dtype)
      v = v + self.v_bias[...].astype(dtype)
    if c.qk_norm:
      q = rms_norm(q, self.q_norm[...], c.rms_eps)
      k = rms_norm(k, self.k_norm[...], c.rms_eps)
    return rope.rotate(q, rotation), rope.rotate(k, rotation), v

  def output(self, x: Float[Array, 'B T H P']) -> Float[Array, 'B T D']:
    weight = _weight(self.o, x.dtype).reshape(-1, self.config.d_model)
    x = x.reshape(*x.shape[:2], -1)
    # Said for its gradient: else XLA gathers all heads of the matrix for that.
    x = axes.constrain(x, 'batch', None, 'heads')
    return lora.linear(self, 'o', x, weight)


class Mlp(nnx.Module):
  """SwiGLU: down(silu(gate(x)) * up(x))."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    d, f = config.d_model, config.mlp_dim
    self.gate = _param(rngs, (d, f), ('embed', 'mlp'), d**-0.5)
    self.up = _param(rngs, (d, f), ('embed', 'mlp'), d**-0.5)
    self.down = _param(
        rngs, (f, d), ('mlp', 'embed'), (2 * config.num_layers * f) ** -0.5
    )
    lora.attach(self, config, rngs, gate=1, up=1, down=1)

  def __call__(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T D']:
    gate = lora.linear(self, 'gate', x, _weight(self.gate, x.dtype))
    up = lora.linear(self, 'up', x, _weight(self.up, x.dtype))
    inner = axes.constrain(jax.nn.silu(gate) * up, 'batch', None, 'mlp')
    return lora.linear(self, 'down', inner, _weight(self.down, x.dtype))


class Block(nnx.Module):
  """One decoder layer: attention and MLP, each on its normed input."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    self.config = config
    self.attention_norm = _param(rngs, (config.d_model,), (None,))
    self.attention = Attention(config, rngs)
    self.mlp_norm = _param(rngs, (config.d_model,), (None,))
    self.mlp = Mlp(config, rngs)

  def __call__(self, x, rotation, attend) -> Float[Array, 'B T D']:
    eps = self.config.rms_eps
    normed = rms_norm(x, self.attention_norm[...], eps)
    q, k, v = self.attention.project(normed, rotation)
    x = _between(x + self.attention.output(attend(q, k, v)))
    return _between(x + self.mlp(rms_norm(x, self.mlp_norm[...], eps)))


def _between(x: Float[Array, 'B T D']) -> Float[Array, 'B T D']:
  return axes.constrain(x, 'batch', 'sequence', None)


class Decoder(nnx.Module):
  """The whole decoder."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    self.config = config
    v, d = config.vocab_size, config.d_model
    # At 0.02 a tied table holds logits within 0.02 * D (3.8 for D = 192), and
    # a small policy took half as many steps again to learn to copy.
    self.embedding = _param(rngs, (v, d), ('vocab', 'embed'), 0.1)
    blocks = [Block(config, rngs) for _ in range(config.num_layers)]
    self.blocks = nnx.List(blocks)
    self.final_norm = _param(rngs, (d,), (None,))
    if not config.tie_embeddings:
      self.head = _param(rngs, (d, v), ('embed', 'vocab'), 0.02)
    if config.previous_token:
      self.previous = _param(rngs, (d, d), ('embed', None), d**-0.5)
      _start_copying(self, rngs)
    if config.scan_layers:
      states = [nnx.state(block) for block in blocks]
      self.blocks = nnx.merge(nnx.graphdef(blocks[0]), stacking.join(states))

  def forward(
      self,
      tokens: Int[Array, 'B T'],
      previous: Int[Array, 'B T'],
      rotation: rope.Rotation,
      attend: Attend,
      training: bool = False,
  ) -> Float[Array, 'B T D']:
    """The last layer's normed activations.

    Args:
      tokens: ids, each in [0, V).
      previous: the token before each; 0 before the first of a row. Read only
        where config.previous_token is set.
      rotation: at each token's position; of `rotations`.
      attend: (layer, q, k, v) -> attention output [B T H P]; layer is None
        within a scan.
      training: scan and recompute the layers as the config says. The cached
        path never scans: each layer writes into a cache of its own.
    """
    embedding = _weight(self.embedding, self.config.dtype)
    x = embedding[tokens]
    if self.config.previous_token:
      weight = _weight(self.previous, x.dtype)
      x = x + layers.linear(embedding[previous], weight)
    x = _between(x)
    remat = self.config.remat if training else 'none'
    if training and self.config.scan_layers:
      graphdef, params = nnx.split(self.blocks)
      here = functools.partial(attend, None)
      run = _runner(graphdef, rotation, here, remat)
      x, _ = jax.lax.scan(lambda x, params: (run(params, x), None), x, params)
    else:
      for layer, (graphdef, params) in enumerate(self._layers()):
        here = functools.partial(attend, layer)
        x = _runner(graphdef, rotation, here, remat)(params, x)
    return rms_norm(x, self.final_norm[...], self.config.rms_eps)

  def rotations(self, size: int) -> rope.Rotation:
    """Of positions 0 to size - 1."""
    c = self.config
    return rope.table(size, c.head_dim, c.rope_theta, c.rope_scaling)

  def _layers(self) -> Iterator[tuple[nnx.GraphDef, Any]]:
    """Definition and parameters of each block."""
    if not self.config.scan_layers:
      yield from map(nnx.split, self.blocks)
      return
    graphdef, params = nnx.split(self.blocks)
    for layer in range(self.config.num_layers):
      yield graphdef, jax.tree.map(lambda x: x[layer], params)

  def logits(self, x: Float[Array, '... D']) -> Float[Array, '... V']:
    """float32 logits."""
    if self.config.tie_embeddings:
      return layers.tied_logits(x, _weight(self.embedding, x.dtype))
    return _product(x, _weight(self.head, x.dtype))

  def spread_logits(self, x: Float[Array, 'B K D']) -> Float[Array, 'B K V']:
    """`logits` in training: see 'spread_vocab' in axes.py."""
    x = axes.constrain(x, 'replica', None, None)
    if self.config.tie_embeddings:
      weight = self.embedding[...].astype(x.dtype)
      weight = axes.constrain(weight, 'spread_vocab', None)
      out = layers.tied_logits(x, weight)
    else:
      weight = self.head[...].astype(x.dtype)
      out = _product(x, axes.constrain(weight, None, 'spread_vocab'))
    return axes.constrain(out, 'replica', None, 'spread_vocab')


def _product(
    x: Float[Array, '... D'], head: Float[Array, 'D V']
) -> Float[Array, '... V']:
  return jnp.einsum(
      '...d,dv->...v', x, head, preferred_element_type=jnp.float32
  )


def _start_copying(decoder: Decoder, rngs: nnx.Rngs) -> None:
  """Lets head 0 of each layer start as an induction head.

  It looks for tokens that stand after an earlier copy of the current one, and
  passes on what it finds there: a rule for "as before, so again", of which a
  call's arguments are made (arXiv 2209.11895). From random projections a small
  policy does not find it within the budget of the warm start
  (experiments/README.md).

  The map R of the previous token's embedding is orthogonal, so x R^T holds that
  embedding, besides noise of the same size; keys read it with the query's own
  projection, and the output projection undoes the one of the values.
  """
  weight = decoder.previous[...]
  rotation = jax.random.orthogonal(rngs.params(), weight.shape[0])
  decoder.previous[...] = rotation.astype(weight.dtype)
  for block in decoder.blocks:
    a = block.attention
    a.k[...] = a.k[...].at[:, 0].set(rotation.T @ a.q[...][:, 0])
    a.o[...] = a.o[...].at[0].set(a.v[...][:, 0].T)
    if decoder.config.qk_norm:
      a.q_norm[...] = 1.5 * a.q_norm[...]  # a match outweighs a whole context


def _runner(graphdef, rotation, attend, remat: str):
  """(parameters, x) -> x of one block."""

  def run(params, x):
    return nnx.merge(graphdef, params)(x, rotation, attend)

  if remat == 'none':
    return run
  return jax.checkpoint(run, policy=_KEPT[remat])


def create(config: ModelConfig, key: jax.Array) -> tuple[nnx.GraphDef, Any]:
  """A randomly initialized decoder: (static definition, float32 parameters)."""
  rngs = nnx.Rngs(params=key, adapters=jax.random.fold_in(key, 1))
  return nnx.split(Decoder(config, rngs))


def definition(config: ModelConfig) -> nnx.GraphDef:
  """The static definition alone: no parameter is made."""
  return nnx.graphdef(
      nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(params=0, adapters=1)))
  )


def for_rollouts(config: ModelConfig, params: Any) -> Any:
  """Parameters as rollouts read them: layers apart, matrices in config.dtype.

  Each use casts them anyway: the values are the same, and a decode step reads
  fewer bytes. Vectors (of the norms) are used in float32.

  Args:
    config: shape of the decoder in rollouts.
    params: of `create`. If they have no head and `config` wants one, it is
      the transposed embedding.
  """
  flat = dict(nnx.to_flat_state(stacking.unstack(params)))
  if not config.tie_embeddings and ('head',) not in flat:
    table = flat['embedding',]
    names = table.get_metadata('logical_axes')
    flat['head',] = nnx.Param(table.get_value().T, logical_axes=names[::-1])
  return jax.tree.map(
      lambda x: x.astype(config.dtype) if x.ndim > 1 else x,
      nnx.from_flat_state(list(flat.items())),
  )


def hold_tables(
    params: Any, tokens: Int[Array, 'B T']
) -> tuple[Any, Int[Array, 'B T']]:
  """Both as they are; on several devices the two tables wait for the tokens.

  Else XLA lays embedding and head out for lookup and logits before the loop
  over microbatches and keeps that: 0.27 GiB a device for a policy of 4B, and as
  much for the reference.
  """
  if not axes.is_spread():
    return params, tokens
  flat = dict(nnx.to_flat_state(params))
  paths = [path for path in flat if path[0] in ('embedding', 'head')]
  values = [flat[path].get_value() for path in paths]
  values, tokens = jax.lax.optimization_barrier((values, tokens))
  flat |= {
      path: flat[path].replace(x) for path, x in zip(paths, values)
  }
  return nnx.from_flat_state(list(flat.items())), tokens


def hidden(
    graphdef: nnx.GraphDef,
    params: Any,
    tokens: Int[Array, 'B T'],
    lengths: Int[Array, 'B'],
) -> Float[Array, 'B T D']:
  """Activations of whole rows: causal, right padded. The training path.

  Args:
    graphdef: of `create`.
    params: of `create`.
    tokens: rows; what stands at or after a row's length never matters.
    lengths: valid tokens of each row.

  Returns:
    The normed activations; finite but meaningless at padding.
  """
  decoder = nnx.merge(graphdef, params)
  index = jnp.arange(tokens.shape[1])
  valid = index < lengths[:, None]
  tokens = jnp.where(valid, tokens, 0)
  x = decoder.forward(
      tokens,
      shift(tokens, 0),
      decoder.rotations(tokens.shape[1]),
      lambda _, q, k, v: layers.causal_attention(q, k, v),
      training=True,
  )
  return axes.constrain(x, 'batch', None, None)


def shift(
    tokens: Int[Array, 'B T'], first: Int[Array, 'B'] | int
) -> Int[Array, 'B T']:
  """The token before each token; `first` before the first of a row."""
  shifted = jnp.roll(tokens, 1, axis=1)
  return shifted.at[:, 0].set(first)


def logits(
    graphdef: nnx.GraphDef, params: Any, hidden: Float[Array, '... D']
) -> Float[Array, '... V']:
  """float32 logits of activations. The training path."""
  decoder = nnx.merge(graphdef, params)
  if hidden.ndim == 3:
    return decoder.spread_logits(hidden)
  return decoder.logits(hidden)


def logical_axes(params: Any) -> Any:
  """The tree of `params` with each array replaced by its tuple of axis names.

  Use it as the second tree: jax.tree.map(f, params, logical_axes(params)).
  """
  variables = jax.tree.leaves(
      params, is_leaf=lambda x: isinstance(x, nnx.Variable)
  )
  names = [v.get_metadata('logical_axes') for v in variables]
  return jax.tree.unflatten(jax.tree.structure(params), names)
