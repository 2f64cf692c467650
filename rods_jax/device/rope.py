"""Rotary positions, as such or stretched in the manner of Llama 3.

The angles are constants of a program. Computed in it, XLA's CPU backend fuses
cosine and sine into whatever reads them, and computes them anew for each head
of each layer: 5 % of a decode step.

Shapes: B rows, T tokens, N heads, P head_dim.
"""

import dataclasses
import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np


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


class Rotation(NamedTuple):
  """Cosine and sine of each pair's angle, for all heads and layers.

  B is 1 where all rows have the same positions.
  """

  cos: Float[Array, 'B T 1 P/2']
  sin: Float[Array, 'B T 1 P/2']


def table(
    size: int,
    head_dim: int,
    theta: float,
    scaling: Llama3Scaling | None = None,
) -> Rotation:
  """Of positions 0 to size - 1: B is 1 and T is size.

  Dimensions i and i + P/2 are a pair; it turns by position * frequency i.
  """
  positions = np.arange(size, dtype=np.float32)
  angle = positions[None, :, None, None] * frequencies(head_dim, theta, scaling)
  return Rotation(np.cos(angle), np.sin(angle))


def look_up(rotations: Rotation, positions: Int[Array, 'B T']) -> Rotation:
  """Of the given positions, each within the table."""
  return Rotation(*(jnp.asarray(x)[0][positions] for x in rotations))


def rotate(
    x: Float[Array, 'B T N P'], rotation: Rotation
) -> Float[Array, 'B T N P']:
  """x with its pairs rotated; a B of 1 is for all rows."""
  a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  cos, sin = rotation
  rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return rotated.astype(x.dtype)


def frequencies(
    head_dim: int, theta: float, scaling: Llama3Scaling | None = None
) -> Float[np.ndarray, 'P/2']:
  """theta^(-2i/P), in radians per position, scaled; float32."""
  half = head_dim // 2
  index = np.arange(half, dtype=np.float32)
  frequency = np.float32(theta) ** (-index / np.float32(half))
  if scaling is None:
    return frequency
  low, high = scaling.low_freq_factor, scaling.high_freq_factor
  turns = scaling.original_positions * frequency / (2 * math.pi)
  kept = np.clip((turns - low) / (high - low), 0, 1)
  mixed = kept * frequency + (1 - kept) * frequency / scaling.factor
  return mixed.astype(np.float32)
