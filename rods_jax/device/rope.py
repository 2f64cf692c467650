"""Rotary positions, as such or stretched in the manner of Llama 3.

Shapes: B rows, T tokens, N heads, P head_dim.
"""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
  """Slows the pairs that hardly turned within the first training's context.

  A pair that turns less than `low_freq_factor` times over `original_positions`
  is slowed by `factor`, one that turns more than `high_freq_factor` times is
  left alone, and between them the share of the slowed frequency falls linearly.

  Attributes:
    factor: at least 1.
    low_freq_factor: in turns; below high_freq_factor.
    high_freq_factor: in turns.
    original_positions: context length of the first training.
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_positions: int

  def __post_init__(self):
    if not self.factor >= 1:
      raise ValueError(f'rope factor is {self.factor}; it must be at least 1.')
    if not 0 < self.low_freq_factor < self.high_freq_factor:
      raise ValueError(
          f'rope low_freq_factor is {self.low_freq_factor}; it must be above 0 '
          f'and below high_freq_factor, {self.high_freq_factor}.'
      )
    if self.original_positions < 1:
      raise ValueError(
          f'rope original_positions is {self.original_positions}; it must be '
          'at least 1.'
      )


def rotate(
    x: Float[Array, 'B T N P'],
    positions: Int[Array, 'B T'],
    theta: float,
    scaling: Llama3Scaling | None = None,
) -> Float[Array, 'B T N P']:
  """Rotates dimension pairs (i, i + P/2) by position * frequency i."""
  frequency = frequencies(x.shape[-1], theta, scaling)
  angle = positions[..., None, None].astype(jnp.float32) * frequency
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return rotated.astype(x.dtype)


def frequencies(
    head_dim: int, theta: float, scaling: Llama3Scaling | None = None
) -> Float[Array, 'P/2']:
  """theta^(-2i/P), in radians per position, scaled."""
  half = head_dim // 2
  frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  if scaling is None:
    return frequency
  low, high = scaling.low_freq_factor, scaling.high_freq_factor
  turns = scaling.original_positions * frequency / (2 * math.pi)
  kept = jnp.clip((turns - low) / (high - low), 0, 1)
  return kept * frequency + (1 - kept) * frequency / scaling.factor
