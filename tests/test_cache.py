"""Tests of device/cache.py: attention, writes at the edge, copies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax.device import cache as cache_lib

def _plain_attention(q, k, v, mask):
  """Grouped-query attention over whole rows [B S K P], head by head."""
  heads_per_kv = q.shape[2] // k.shape[2]
  k, v = (jnp.repeat(x, heads_per_kv, axis=2) for x in (k, v))
  scores = jnp.einsum('bthp,bshp->bhts', q, k) / q.shape[3] ** 0.5
  weights = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e30), axis=-1)
  return jnp.einsum('bhts,bshp->bthp', weights, v)


SIZES = (4, 4, 8)  # segments; 16 positions in all


def _cache(key, rows=8, kv=2, p=4):
  """Random keys and values, as segments and whole [B S K P]."""
  k, v = jax.random.normal(key, (2, rows, sum(SIZES), kv, p))
  edges = np.cumsum((0, *SIZES))
  segments = [
      cache_lib.Segment(
          k[:, a:b].transpose(0, 2, 3, 1), v[:, a:b].transpose(0, 2, 1, 3)
      )
      for a, b in zip(edges, edges[1:])
  ]
  return segments, k, v


def _whole(segments):
  """The values of all segments, [B K S P], and the keys likewise."""
  k = jnp.concatenate([s.k for s in segments], axis=-1)
  v = jnp.concatenate([s.v for s in segments], axis=2)
  return np.asarray(k.transpose(0, 1, 3, 2)), np.asarray(v)


@pytest.mark.parametrize(
    'last',
    [
        [0, 1, 2, 3, 3, 2, 1, 0],  # the other segments are not read
        [0, 15, 2, 3, 3, 9, 1, 0],  # few rows (2 of 8) reach further
        [4, 15, 7, 8, 3, 9, 15, 5],  # many do
        [15] * 8,
    ],
)
def test_cached_attention_equals_plain_attention(last):
  segments, k, v = _cache(jax.random.key(0))
  q = jax.random.normal(jax.random.key(1), (8, 1, 4, 4))
  last = jnp.array(last)[:, None]
  mask = jnp.arange(16) <= last[:, :, None]
  np.testing.assert_allclose(
      jax.jit(cache_lib.attention)(q, segments, last),
      _plain_attention(q, k, v, mask), atol=1e-6,
  )


def test_cached_attention_of_lanes_reads_their_slots():
  segments, k, v = _cache(jax.random.key(0))
  slots = jnp.array([6, 1, 6, 3])
  last = jnp.array([[2, 3, 4], [14, 15, -1], [5, 6, 7], [0, -1, -1]])
  q = jax.random.normal(jax.random.key(1), (4, 3, 4, 4))
  got = cache_lib.attention(q, segments, last, slots)
  mask = jnp.arange(16) <= last[:, :, None]
  want = _plain_attention(q, k[slots], v[slots], mask)
  seen = np.asarray(last >= 0)
  np.testing.assert_allclose(got[seen], want[seen], atol=1e-6)
  assert not np.asarray(got)[~seen].any()  # zeros, not NaN


def test_hidden_positions_do_not_leak():
  segments, _, _ = _cache(jax.random.key(0))
  q = jax.random.normal(jax.random.key(1), (8, 1, 4, 4))
  last = jnp.full((8, 1), 5)
  dirty = [
      cache_lib.Segment(s.k + 1e6 * (i == 2), s.v + 1e6 * (i == 2))
      for i, s in enumerate(segments)
  ]
  np.testing.assert_array_equal(
      cache_lib.attention(q, segments, last),
      cache_lib.attention(q, dirty, last),
  )


def test_writes_at_the_edges_hit_one_place_or_none():
  """A clamped index would overwrite the last place, a negative one wraps."""
  segments, _, _ = _cache(jax.random.key(0))
  rows = jnp.arange(5)
  positions = jnp.array([0, 3, 4, 15, -1])  # first, segment edges, last, none
  new = jnp.full((5, 2, 4), 7.0)
  old_k, old_v = _whole(segments)
  got_k, got_v = _whole(cache_lib.write(segments, rows, positions, new, new))
  for old, got in ((old_k, got_k), (old_v, got_v)):
    want = old.copy()
    for row, position in ((0, 0), (1, 3), (2, 4), (3, 15)):
      want[row, :, position] = 7.0
    np.testing.assert_array_equal(got, want)
  past = jnp.array([16])
  beyond = cache_lib.write(segments, rows[:1], past, new[:1], new[:1])
  np.testing.assert_array_equal(_whole(beyond)[1], old_v)


def test_copy_touches_only_the_given_slots():
  segments, _, _ = _cache(jax.random.key(0))
  dsts = jnp.array([4, 2, 0, 0, 0, 0, 0, 0])  # only the first two count
  (got,) = cache_lib.copy([segments], 6, dsts, 2, 7)
  old, new = _whole(segments)[1], _whole(got)[1]
  np.testing.assert_array_equal(new[4, :, :8], old[6, :, :8])
  np.testing.assert_array_equal(new[2, :, :8], old[6, :, :8])
  # Length 7 does not reach into the third segment: nothing moves there.
  np.testing.assert_array_equal(new[:, :, 8:], old[:, :, 8:])
  others = [0, 1, 3, 5, 6, 7]
  np.testing.assert_array_equal(new[others], old[others])
