"""Named random streams for the host and the device.

One base seed; every use has a name and is folded with its step, so that a
resumed run needs no saved generator state and no two uses share a stream.
"""

import zlib

import numpy as np


def stream_id(name: str) -> int:
  """A stable 31-bit number for a stream's name."""
  return zlib.crc32(name.encode()) & 0x7FFFFFFF


def host(rng_seed: int, name: str, *steps: int) -> np.random.Generator:
  """A numpy generator for one named use at one step."""
  return np.random.default_rng(
      np.random.SeedSequence([rng_seed, stream_id(name), *steps])
  )


def device(rng_seed: int, name: str, *steps: int):
  """A new-style JAX key for one named use at one step."""
  import jax  # The host layer uses this module without jax.

  key = jax.random.fold_in(jax.random.key(rng_seed), stream_id(name))
  for step in steps:
    key = jax.random.fold_in(key, step)
  return key
