"""The shape of the decoder, and how it is computed."""

import dataclasses

from rods_jax.device import rope

REMAT = ('none', 'dots', 'attention', 'full')


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
    remat: what the backward pass computes again of each layer: 'none'; 'dots':
      all but the products with weights; 'attention': all but the attention of
      rows longer than layers.SHORT; 'full': all.
    scan_layers: stack the parameters of all layers and train with a scan.
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
  scan_layers: bool = False

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
    if self.remat not in REMAT:
      raise ValueError(
          f'model.remat is {self.remat!r}; use one of {", ".join(REMAT)}.'
      )
