"""Small checkpoints for the tests of saving and restoring."""

import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rods_jax import checkpoint


class Adam(NamedTuple):
  count: Any
  mu: Any
  empty: tuple = ()


def arrays(seed=0):
  rng = np.random.default_rng(seed)
  normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  params = {
      'layers': [{'kernel': normal(40, 50)}, {'kernel': normal(8, 3)}],
      'scale': normal(4).astype(jnp.bfloat16),
  }
  # nan, inf and -0.0 must come back bit by bit too.
  odd = jnp.asarray([np.nan, np.inf, -0.0, 1e-45], jnp.float32)
  return {
      'params': params,
      'opt': (Adam(jnp.asarray(7, jnp.int32), {'odd': odd}), None),
  }


def abstract(tree):
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      tree,
  )


def assert_bitwise(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype and x.shape == y.shape
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def save(folder, *steps, keep=9):
  with checkpoint.Checkpointer(folder, keep) as c:
    for step in steps:
      c.save(step, arrays(step), {'epoch': step})


def restore(folder, expected=None, step=None):
  with checkpoint.Checkpointer(folder) as c:
    return c.restore(expected or abstract(arrays()), step)


def steps(folder):
  return sorted(p.name for p in pathlib.Path(folder).iterdir())
