"""Packing: nothing lost, nothing cut, nothing invented."""

import dataclasses

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from rods_jax import types
from rods_jax.host import packing

OPTIONS = dict(buckets=(8, 16), microbatch_rows=2, group_size=2, pad_id=0)


def trajectory(tokens, mask, progress=0.0, status=types.Status.DONE):
  """Log-probabilities are -token / 10 where sampled; progress in tenths."""
  tokens, mask = np.asarray(tokens, np.int32), np.asarray(mask, bool)
  right = round(10 * progress)
  return types.Trajectory(
      task_id='t', sample=0, tokens=tokens, loss_mask=mask,
      logprobs=np.where(mask, -tokens / 10, 0).astype(np.float32),
      turn_scores=(types.TurnScore(True, True),) * right
      + (types.TurnScore(False, False, 'wrong'),) * (10 - right),
      status=status, policy_version=0, num_rounds=1, num_calls=0,
      num_tool_errors=0, num_parse_errors=0,
  )


def row(length, progress=0.0, status=types.Status.DONE):
  """The last token alone is sampled."""
  mask = [False] * (length - 1) + [True]
  return trajectory(range(1, length + 1), mask, progress, status)


def rows_of(packed):
  """Row index -> bucket number, for all rows."""
  return {
      int(index): number
      for number, bucket in enumerate(packed.buckets)
      for index in bucket.rows.ravel() if index >= 0
  }


def test_one_row_by_hand():
  """Tokens 5 6 7 9, sampled 6 and 9: predicted at positions 0 and 2.

  Token 9 ends the row and is also the padding id: lengths tell them apart, so
  the end token is trained. Padding found by id would drop it.
  """
  group = [trajectory([5, 6, 7, 9], [0, 1, 0, 1], 0.5), row(3)]
  packed = packing.pack([group], [4], **OPTIONS | dict(pad_id=9)).packed
  bucket = packed.buckets[0]
  np.testing.assert_array_equal(packed.counts, [1, 0])
  np.testing.assert_array_equal(bucket.tokens[0, 0], [5, 6, 7, 9] + [9] * 4)
  assert bucket.lengths[0, 0] == 4
  np.testing.assert_array_equal(bucket.positions[0, 0], [0, 2, 0, 0])
  np.testing.assert_array_equal(bucket.targets[0, 0], [6, 9, 0, 0])
  np.testing.assert_array_equal(bucket.mask[0, 0], [1, 1, 0, 0])
  np.testing.assert_allclose(bucket.old_logprobs[0, 0], [-0.6, -0.9, 0, 0])


def test_flat_groups_are_left_out_but_counted():
  """Equality decides, as on the device: 0.35, 0.35, 0.35 is flat."""
  third = dataclasses.replace(
      row(4), turn_scores=(types.TurnScore(True, True),) * 7
      + (types.TurnScore(False, False, 'wrong'),) * 13,
  )
  groups = [[third] * 3, [row(4, 0.0), row(4, 0.1), row(4, 0.1)]]
  options = OPTIONS | dict(group_size=3)
  batch = packing.pack(groups, [0, 1], skip_flat=True, **options)
  assert set(rows_of(batch.packed)) == {3, 4, 5}
  assert batch.valid.all()
  np.testing.assert_allclose(batch.progress, [[0.35] * 3, [0, 0.1, 0.1]])
  batch = packing.pack(groups, [0, 1], skip_flat=False, **options)
  assert set(rows_of(batch.packed)) == {0, 1, 2, 3, 4, 5}


def test_missing_trajectories_and_rewards():
  """None and NaN have no reward and no row; a lone reward is flat."""
  groups = [[row(4, 0.5), None], [row(4, 0.1), row(4, 0.9)]]
  rewards = np.array([[1, 1], [np.nan, 1]])
  batch = packing.pack(
      groups, [7, 8], rewards=rewards, num_groups=3, **OPTIONS
  )
  np.testing.assert_array_equal(batch.valid, [[1, 0], [0, 1], [0, 0]])
  assert np.isfinite(batch.rewards).all()
  assert set(rows_of(batch.packed)) == {0, 3}
  np.testing.assert_array_equal(batch.slots, [7, 8, -1])
  batch = packing.pack(
      groups, [7, 8], rewards=rewards, skip_flat=True, **OPTIONS
  )
  assert not rows_of(batch.packed)


def test_statistics_come_from_progress_not_from_a_shaped_reward():
  """Filters on a shaped reward once let all-failed groups through."""
  batch = packing.pack(
      [[row(4, 0.0), row(4, 0.0)]], [0], rewards=np.array([[0.2, 1.7]]),
      **OPTIONS,
  )
  np.testing.assert_array_equal(batch.progress, [[0, 0]])
  np.testing.assert_allclose(batch.rewards, [[0.2, 1.7]])


def test_mask_overlong():
  group = [row(4, 0.0, types.Status.MAX_TOKENS), row(4, 1.0)]
  batch = packing.pack([group], [0], mask_overlong=True, **OPTIONS)
  assert set(rows_of(batch.packed)) == {1} and batch.valid.all()
  assert len(rows_of(packing.pack([group], [0], **OPTIONS).packed)) == 2


def test_many_sampled_tokens_need_a_longer_bucket():
  """8 tokens, 5 sampled: bucket 8 has room for 4, bucket 16 for all 16."""
  dense = trajectory(range(8), [0, 0, 0, 1, 1, 1, 1, 1])
  full = trajectory(range(16), [0] + [1] * 15)
  packed = packing.pack([[dense, full]], [0], **OPTIONS).packed
  assert rows_of(packed) == {0: 1, 1: 1}
  assert packed.buckets[1].mask.sum() == 20


def test_rest_moves_up_where_there_is_room():
  """2 rows a microbatch: 3 short and 1 long row take 2 microbatches, not 3."""
  groups = [[row(4), row(5)], [row(6), row(12)]]
  packed = packing.pack(groups, [0, 1], **OPTIONS).packed
  np.testing.assert_array_equal(packed.counts, [1, 1])
  assert rows_of(packed) == {0: 0, 1: 0, 2: 1, 3: 1}


def test_no_sampled_token_no_row():
  silent = trajectory([1, 2], [0, 0])
  batch = packing.pack([[silent, row(3)]], [0], **OPTIONS)
  assert set(rows_of(batch.packed)) == {1} and batch.valid.all()


@pytest.mark.parametrize('bad, message', [
    ([row(17), row(3)], 'longest bucket holds 16'),
    ([row(3)], 'group_size is 2'),
    ([dataclasses.replace(row(3), loss_mask=np.ones(4, bool)), row(3)],
     'different lengths'),
    ([trajectory([1, 2], [1, 0]), row(3)], 'first token cannot be sampled'),
])
def test_bad_rows(bad, message):
  """A mask one element too long, a row too long: errors, never a cut."""
  with pytest.raises(ValueError, match=message):
    packing.pack([bad], [0], **OPTIONS)


def test_bad_shapes():
  with pytest.raises(ValueError, match='do not fit'):
    packing.pack([[row(3), row(3)]], [0, 1], **OPTIONS)
  with pytest.raises(ValueError, match='must rise'):
    packing.pack([[row(3)] * 2], [0], **OPTIONS | dict(buckets=(16, 8)))
  with pytest.raises(ValueError, match='room for 1'):
    packing.pack_supervised(
        [([1, 2], [0, 1])] * 2, buckets=(8,), microbatch_rows=2, capacity=1
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), max_size=15), max_size=12),
    st.integers(1, 4),
)
def test_unpack_inverts_pack(masks, microbatch_rows):
  """Every sampled token arrives once, beside its own index and row."""
  rows = []
  for i, mask in enumerate(masks):
    mask = np.array([False] + mask, bool)
    rows.append((100 * i + np.arange(len(mask)), mask))
  packed = packing.pack_supervised(
      rows, buckets=(4, 8, 16), microbatch_rows=microbatch_rows, capacity=12
  )
  targets = packing.unpack(packed, [b.targets for b in packed.buckets])
  before = packing.unpack(packed, [
      np.take_along_axis(b.tokens, b.positions, -1) for b in packed.buckets
  ])
  expected = {i: t[m] for i, (t, m) in enumerate(rows) if m.any()}
  assert targets.keys() == expected.keys()
  for i, ids in expected.items():
    np.testing.assert_array_equal(targets[i], ids)
    np.testing.assert_array_equal(before[i], ids - 1)
