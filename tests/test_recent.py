"""Decoding with new positions apart equals writing each into the cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax import programs
from rods_jax.device import recent
from tests import test_engine


@pytest.mark.parametrize('offset, count, want', [
    (2, 2, [0, 1, 10, 11, 4, 5]),
    (2, 0, [0, 1, 2, 3, 4, 5]),
    (-1, 2, [11, 1, 2, 3, 4, 5]),  # 10 belongs to the segment before
    (5, 3, [0, 1, 2, 3, 4, 10]),  # 11 and 12 to the one behind
    (-3, 3, [0, 1, 2, 3, 4, 5]),
    (-9, 3, [0, 1, 2, 3, 4, 5]),
    (6, 3, [0, 1, 2, 3, 4, 5]),
    (99, 3, [0, 1, 2, 3, 4, 5]),
])
def test_what_is_new_enters_its_segment(offset, count, want):
  """In the second row; the first stays. Also where new ones are more."""
  old, new = jnp.arange(12).reshape(2, 6) - 6, jnp.arange(7, 13).reshape(2, 3)
  got = recent._put(old, new, 1, offset, count, 1)
  np.testing.assert_array_equal(got, [range(-6, 0), want])
  wide = jnp.pad(new, ((0, 0), (0, 9)))
  got = recent._put(old, wide, 1, offset, count, 1)
  np.testing.assert_array_equal(got, [range(-6, 0), want])


def play(engine, params):
  """Completions of five rows in three calls, across the edges at 16 and 32.

  The second call stops early, so rows go on where a call ended.
  """
  engine.reset(params, jax.random.key(1), temperature=0.9)
  for slot in range(5):
    engine.start(slot, slot)
  row = lambda n: np.arange(2, 2 + n, dtype=np.int32)
  engine.extend({slot: row(5 + 3 * slot) for slot in range(5)})
  found = [engine.decode({slot: 8 for slot in range(5)})]
  engine.extend({slot: row(2) for slot in (0, 2)})
  found.append(engine.decode({0: 3, 2: 20, 3: 20}, min_running=2))
  found.append(engine.decode({2: 12, 3: 12, 4: 24}))
  return found


def test_same_completions(small_config, small_model, mesh, monkeypatch):
  graphdef, params = small_model
  within = play(test_engine._make(graphdef, mesh, small_config), params)
  monkeypatch.setattr(programs, '_platform', lambda mesh: 'tpu')
  apart = play(test_engine._make(graphdef, mesh, small_config), params)
  lengths = []
  for one, other in zip(within, apart, strict=True):
    assert one.keys() == other.keys()
    for slot, wanted in one.items():
      np.testing.assert_array_equal(other[slot].tokens, wanted.tokens)
      np.testing.assert_allclose(
          other[slot].logprobs, wanted.logprobs, rtol=0, atol=1e-4
      )
      lengths.append(len(wanted.tokens))
  assert sum(lengths) > 60
