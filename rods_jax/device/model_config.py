"""The shape of the decoder, and how it is computed."""

import dataclasses

from rods_jax.device import rope

REMAT = ('none', 'dots', 'attention', 'full')
LORA_TARGETS = ('q', 'k', 'v', 'o', 'gate', 'up', 'down')


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
    lora_rank: of the adapters that are trained instead of the rest (lora.py);
      0: all parameters are trained.
    lora_alpha: what an adapter adds is scaled by lora_alpha / lora_rank.
    lora_targets: matrices of each layer that have an adapter.
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
  lora_rank: int = 0
  lora_alpha: float = 32.0
  lora_targets: tuple[str, ...] = LORA_TARGETS

  @property
  def base(self) -> 'ModelConfig':
    """The decoder without adapters."""
    return dataclasses.replace(
        self, lora_rank=0, lora_alpha=32.0, lora_targets=LORA_TARGETS
    )

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
    if self.lora_rank < 0 or not self.lora_alpha > 0:
      raise ValueError(
          f'model.lora_rank is {self.lora_rank} and lora_alpha is '
          f'{self.lora_alpha}; they must be at least 0 and above 0.'
      )
    if not self.lora_targets or set(self.lora_targets) - set(LORA_TARGETS):
      raise ValueError(
          f'model.lora_targets are {self.lora_targets}; name some of '
          f'{", ".join(LORA_TARGETS)}.'
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
