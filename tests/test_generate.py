"""Tests of device/generate.py: what the loops write, and when they stop.

Exactness over whole dialogues is tested through the engine (test_engine.py).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax.device import cache as cache_lib
from rods_jax.device import generate
from rods_jax.device import sampling

END, PAD, MAX_NEW, SLOTS = 1, 77, 6, 4


@pytest.fixture(scope='module')
def programs(small_model):
  graphdef, params = small_model
  extend = jax.jit(functools.partial(generate.extend, graphdef, block_rows=2))
  decode = jax.jit(
      functools.partial(
          generate.decode, graphdef, max_new=MAX_NEW, end_id=END, pad_id=PAD
      )
  )
  return functools.partial(extend, params), functools.partial(decode, params)


def _empty():
  segment = lambda: cache_lib.Segment(
      jnp.zeros((SLOTS, 2, 8, 8)), jnp.zeros((SLOTS, 2, 8, 8))
  )
  return [[segment(), segment()] for _ in range(2)]


def _lanes(used, slots, starts, counts, previous=(0,) * 6):
  tokens = np.arange(24).reshape(6, 4) + 2
  as_int = lambda x: np.array(x, np.int32)
  return generate.Lanes(
      as_int(tokens), as_int(slots), as_int(starts), as_int(counts),
      as_int(previous), as_int(used),
  )


def _written(cache):
  """[slot, position]: whether the first layer holds a value there."""
  values = np.concatenate([np.asarray(s.v) for s in cache[0]], axis=2)
  return np.abs(values).sum(axis=(1, 3)) > 0


def test_extend_writes_exactly_the_pieces(programs):
  # Slot 2: positions 0-3 and, from a second lane of the same block, 4-5.
  # Slot 0: 7-9, across the segments' edge at 8. Lane 3 has no token; lanes 4
  # and 5 stand behind `used`, in a block that is never run.
  lanes = _lanes(
      4, [2, 2, 0, 1, 3, 3], [0, 4, 7, 5, 0, 0], [4, 2, 3, 0, 4, 4]
  )
  want = np.zeros((SLOTS, 16), bool)
  want[2, :6] = want[0, 7:10] = True
  np.testing.assert_array_equal(_written(programs[0](_empty(), lanes)), want)


def test_pieces_of_one_row_in_one_block_see_each_other(programs):
  # The second piece stands after 5, the last token of the first: 2, 3, 4, 5.
  whole = _lanes(
      2, [1] * 6, [0, 4, 0, 0, 0, 0], [4, 4, 0, 0, 0, 0], [0, 5, 0, 0, 0, 0]
  )
  first = _lanes(1, [1] * 6, [0] * 6, [4] + [0] * 5)
  second = whole._replace(counts=np.array([0, 4, 0, 0, 0, 0], np.int32))
  together = programs[0](_empty(), whole)
  apart = programs[0](programs[0](_empty(), first), second)
  for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(apart)):
    np.testing.assert_allclose(a, b, atol=1e-5)


def _decode(programs, budgets, min_running=0, greedy=False):
  as_int = lambda x: np.array(x, np.int32)
  slots = generate.Slots(
      as_int([5, 6, 7, 8]), as_int([0] * SLOTS), as_int([1] * SLOTS),
      as_int(budgets),
      np.arange(SLOTS, dtype=np.uint32),
  )
  sampler = sampling.Sampler(
      jax.random.key(2), np.float32(1), np.bool_(greedy), np.int32(0),
      np.float32(1),
  )
  return programs[1](_empty(), slots, sampler, np.int32(min_running))


def test_decode_fills_only_what_it_sampled(programs):
  cache, got = _decode(programs, [0, 2, 6, 4])
  counts = np.asarray(got.counts)
  ended = np.asarray(got.finished)
  assert counts[0] == 0 and not ended[0]
  assert ((counts == [0, 2, 6, 4]) | ended).all()
  after = np.arange(MAX_NEW) >= counts[:, None]
  assert (np.asarray(got.tokens)[after] == PAD).all()
  assert (np.asarray(got.logprobs)[after] == 0).all()
  assert (np.asarray(got.logprobs)[~after] < 0).all()
  # A row of 1 + n tokens has n cached: the last one is pending.
  np.testing.assert_array_equal(
      _written(cache), np.arange(16) < counts[:, None]
  )


def test_decode_stops_at_min_running(programs):
  # Slot 1 is through after 2 steps; then only two run.
  _, got = _decode(programs, [0, 2, 6, 6], min_running=2)
  assert np.asarray(got.counts).max() <= 2
  # As many run as are asked for: still one step, so that callers progress.
  _, got = _decode(programs, [3, 3, 3, 3], min_running=4)
  assert np.asarray(got.counts).tolist() == [1, 1, 1, 1]
  _, got = _decode(programs, [0, 0, 0, 0])
  assert not np.asarray(got.counts).any()


def test_any_of_several_end_tokens_ends(small_model):
  """Llama-3.1 has three; with one alone its messages ran to their budget.

  Greedy, so that the second run samples what the first did, up to a token
  that the first took for any other.
  """
  graphdef, params = small_model

  def tokens_of(end_id):
    decode = jax.jit(
        functools.partial(
            generate.decode, graphdef, max_new=MAX_NEW, end_id=end_id,
            pad_id=PAD,
        )
    )
    programs = None, functools.partial(decode, params)
    got = _decode(programs, [0, 0, 0, MAX_NEW], greedy=True)[1]
    count = int(got.counts[3])
    return np.asarray(got.tokens)[3, :count].tolist(), bool(got.finished[3])

  never = 95  # as one id, in a tuple, or beside another
  whole, _ = tokens_of(never)
  assert never not in whole and len(whole) == MAX_NEW
  assert tokens_of((never,)) == (whole, False)
  stop = next(i for i in range(1, MAX_NEW) if whole[i] not in whole[:i])
  assert tokens_of((never, whole[stop])) == (whole[: stop + 1], True)
