"""The policy: a Flax (nnx) decoder and the pure functions over its parameters.

Grouped-query attention, rotary positions, RMSNorm before each block, SwiGLU.
Layers are unrolled and own their parameters: on CPU that runs 1.2 to 1.4 times
faster than a scan. Every parameter names its logical axes as plain metadata;
sharding.py alone turns these names into devices.

The training path (`hidden`, `logits`) and the cached path (generate.py) run the
same `Decoder.forward`; they differ only in the `attend` function it is given.

Shapes: B rows, T tokens, S keys, V vocab, D model, H heads, K kv heads,
P head_dim, F mlp.
"""

import dataclasses
import functools
from typing import Any, Callable

from flax import nnx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rods_jax.device import layers
from rods_jax.device import rope

Attend = Callable[[int, Array, Array, Array], Array]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Shape of the decoder.

  Attributes:
    vocab_size: V.
    d_model: D.
    num_layers: decoder layers.
    num_heads: H, query heads; a multiple of num_kv_heads.
    num_kv_heads: K.
    head_dim: P, even; apart from d_model / num_heads.
    mlp_dim: F.
    rope_theta: base of the rotary frequencies.
    rope_scaling: how they are stretched for longer contexts (Llama 3), or None.
    rms_eps: added to the mean square in RMSNorm.
    tie_embeddings: the output matrix is the embedding.
    qkv_bias: biases on the query, key and value projections (Qwen2.5).
    qk_norm: RMSNorm over head_dim of queries and keys (Qwen3).
    previous_token: the input is the token's embedding plus a linear map of the
      embedding of the token before; see `_start_copying`.
    dtype: of activations; parameters are float32.
    remat: 'none', or 'full': recompute each layer in the backward pass.
  """

  vocab_size: int
  d_model: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_dim: int
  rope_theta: float = 10_000.0
  rope_scaling: rope.Llama3Scaling | None = None
  rms_eps: float = 1e-6
  tie_embeddings: bool = True
  qkv_bias: bool = False
  qk_norm: bool = True
  previous_token: bool = False
  dtype: str = 'float32'
  remat: str = 'none'

  def __post_init__(self):
    for name in ('vocab_size', 'd_model', 'num_layers', 'num_heads',
                 'num_kv_heads', 'head_dim', 'mlp_dim'):
      if getattr(self, name) < 1:
        raise ValueError(
            f'model.{name} is {getattr(self, name)}; it must be at least 1.'
        )
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
          f'model.num_heads ({self.num_heads}) must be a multiple of '
          f'model.num_kv_heads ({self.num_kv_heads}).'
      )
    if self.head_dim % 2:
      raise ValueError(f'model.head_dim ({self.head_dim}) must be even.')
    if self.dtype not in ('float32', 'bfloat16'):
      raise ValueError(
          f"model.dtype is {self.dtype!r}; use 'float32' or 'bfloat16'."
      )
    if self.remat not in ('none', 'full'):
      raise ValueError(
          f"model.remat is {self.remat!r}; use 'none' or 'full'."
      )


def _param(rngs, shape, axes, scale=None) -> nnx.Param:
  """A normal parameter of deviation `scale`; all ones (None) or zeros (0)."""
  if scale is None:
    value = jnp.ones(shape, jnp.float32)
  elif scale == 0:
    value = jnp.zeros(shape, jnp.float32)
  else:
    value = scale * jax.random.normal(rngs.params(), shape, jnp.float32)
  return nnx.Param(value, logical_axes=axes)


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

  def project(self, x: Float[Array, 'B T D'], positions: Int[Array, 'B T']):
    """Rotated queries [B T H P] and keys [B T K P], values [B T K P]."""
    c, dtype = self.config, x.dtype
    q, k, v = (
        layers.linear(x, w[...].astype(dtype)) for w in (self.q, self.k, self.v)
    )
    if c.qkv_bias:
      q = q + self.q_bias[...].astype(dtype)
      k = k + self.k_bias[...].astype(dtype)
      v = v + self.v_bias[...].astype(dtype)
    if c.qk_norm:
      q = rms_norm(q, self.q_norm[...], c.rms_eps)
      k = rms_norm(k, self.k_norm[...], c.rms_eps)
    rotate = functools.partial(
        rope.rotate, positions=positions, theta=c.rope_theta,
        scaling=c.rope_scaling,
    )
    return rotate(q), rotate(k), v

  def output(self, x: Float[Array, 'B T H P']) -> Float[Array, 'B T D']:
    weight = self.o[...].astype(x.dtype).reshape(-1, self.config.d_model)
    return layers.linear(x.reshape(*x.shape[:2], -1), weight)


class Mlp(nnx.Module):
  """SwiGLU: down(silu(gate(x)) * up(x))."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    d, f = config.d_model, config.mlp_dim
    self.gate = _param(rngs, (d, f), ('embed', 'mlp'), d**-0.5)
    self.up = _param(rngs, (d, f), ('embed', 'mlp'), d**-0.5)
    self.down = _param(
        rngs, (f, d), ('mlp', 'embed'), (2 * config.num_layers * f) ** -0.5
    )

  def __call__(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T D']:
    gate = layers.linear(x, self.gate[...].astype(x.dtype))
    up = layers.linear(x, self.up[...].astype(x.dtype))
    down = self.down[...].astype(x.dtype)
    return layers.linear(jax.nn.silu(gate) * up, down)


class Block(nnx.Module):
  """One decoder layer: attention and MLP, each on its normed input."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    self.config = config
    self.attention_norm = _param(rngs, (config.d_model,), (None,))
    self.attention = Attention(config, rngs)
    self.mlp_norm = _param(rngs, (config.d_model,), (None,))
    self.mlp = Mlp(config, rngs)

  def __call__(self, x, positions, attend) -> Float[Array, 'B T D']:
    eps = self.config.rms_eps
    normed = rms_norm(x, self.attention_norm[...], eps)
    q, k, v = self.attention.project(normed, positions)
    x = x + self.attention.output(attend(q, k, v))
    return x + self.mlp(rms_norm(x, self.mlp_norm[...], eps))


class Decoder(nnx.Module):
  """The whole decoder."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    self.config = config
    v, d = config.vocab_size, config.d_model
    # At 0.02 a tied table holds logits within 0.02 * D (3.8 for D = 192), and
    # a small policy took half as many steps again to learn to copy.
    self.embedding = _param(rngs, (v, d), ('vocab', 'embed'), 0.1)
    self.blocks = nnx.List(
        [Block(config, rngs) for _ in range(config.num_layers)]
    )
    self.final_norm = _param(rngs, (d,), (None,))
    if not config.tie_embeddings:
      self.head = _param(rngs, (d, v), ('embed', 'vocab'), 0.02)
    if config.previous_token:
      self.previous = _param(rngs, (d, d), ('embed', None), d**-0.5)
      _start_copying(self, rngs)

  def forward(
      self,
      tokens: Int[Array, 'B T'],
      previous: Int[Array, 'B T'],
      positions: Int[Array, 'B T'],
      attend: Attend,
      remat: bool = False,
  ) -> Float[Array, 'B T D']:
    """The last layer's normed activations.

    Args:
      tokens: ids, each in [0, V).
      previous: the token before each; 0 before the first of a row. Read only
        where config.previous_token is set.
      positions: rotary position of each token.
      attend: (layer, q, k, v) -> attention output [B T H P].
      remat: recompute each layer in the backward pass.
    """
    embedding = self.embedding[...].astype(self.config.dtype)
    x = embedding[tokens]
    if self.config.previous_token:
      weight = self.previous[...].astype(x.dtype)
      x = x + layers.linear(embedding[previous], weight)
    for layer, block in enumerate(self.blocks):
      attend_here = functools.partial(attend, layer)
      if remat:
        x = _remat_block(block, x, positions, attend_here)
      else:
        x = block(x, positions, attend_here)
    return rms_norm(x, self.final_norm[...], self.config.rms_eps)

  def logits(self, x: Float[Array, '... D']) -> Float[Array, '... V']:
    """float32 logits."""
    if self.config.tie_embeddings:
      return layers.tied_logits(x, self.embedding[...].astype(x.dtype))
    weight = self.head[...].astype(x.dtype)
    return jnp.einsum(
        '...d,dv->...v', x, weight, preferred_element_type=jnp.float32
    )


def _start_copying(decoder: Decoder, rngs: nnx.Rngs) -> None:
  """Lets head 0 of each layer start as an induction head.

  It looks for tokens that stand after an earlier copy of the current one, and
  passes on what it finds there: a rule for "as before, so again", of which a
  call's arguments are made (arXiv 2209.11895). From random projections a small
  policy does not find it within the warm start's budget (experiments/README.md).

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


def _remat_block(block: Block, x, positions, attend):
  graphdef, params = nnx.split(block)

  @jax.checkpoint
  def run(params, x):
    return nnx.merge(graphdef, params)(x, positions, attend)

  return run(params, x)


def create(config: ModelConfig, key: jax.Array) -> tuple[nnx.GraphDef, Any]:
  """A randomly initialized decoder: (static definition, float32 parameters)."""
  return nnx.split(Decoder(config, nnx.Rngs(params=key)))


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
  positions = jnp.broadcast_to(index, tokens.shape)
  tokens = jnp.where(valid, tokens, 0)
  return decoder.forward(
      tokens,
      shift(tokens, 0),
      positions,
      lambda _, q, k, v: layers.causal_attention(q, k, v),
      remat=decoder.config.remat == 'full',
  )


def shift(
    tokens: Int[Array, 'B T'], first: Int[Array, 'B'] | int
) -> Int[Array, 'B T']:
  """The token before each token; `first` before the first of a row."""
  shifted = jnp.roll(tokens, 1, axis=1)
  return shifted.at[:, 0].set(first)


def logits(
    graphdef: nnx.GraphDef, params: Any, hidden: Float[Array, '... D']
) -> Float[Array, '... V']:
  """float32 logits of activations."""
  return nnx.merge(graphdef, params).logits(hidden)


def logical_axes(params: Any) -> Any:
  """The tree of `params` with each array replaced by its tuple of axis names.

  Use it as the second tree: jax.tree.map(f, params, logical_axes(params)).
  """
  variables = jax.tree.leaves(
      params, is_leaf=lambda x: isinstance(x, nnx.Variable)
  )
  names = [v.get_metadata('logical_axes') for v in variables]
  return jax.tree.unflatten(jax.tree.structure(params), names)
