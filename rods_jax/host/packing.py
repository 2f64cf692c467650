"""Packs trajectories into the fixed shapes that the update is compiled for.

Rows go, longest first, to the shortest bucket that holds both their tokens and
their sampled tokens. Every bucket but the last has room for sampled tokens in
half of its positions, because the output matrix is paid for each of them. Rows
that would open a new microbatch of a short bucket move up instead where the
next bucket's last microbatch has room: that microbatch is paid for anyway.

Nothing is ever cut: a row that fits no bucket is an error.
"""

import math
from typing import NamedTuple, Sequence

import numpy as np

from rods_jax import types
from rods_jax.batch import Batch, Bucket, Packed


class _Row(NamedTuple):
  """One row on its way into a bucket; arrays of one length."""

  index: int
  tokens: np.ndarray
  loss_mask: np.ndarray
  logprobs: np.ndarray | None
  num_targets: int


def num_targets(buckets: Sequence[int]) -> list[int]:
  """Room for sampled tokens in each bucket: half, and all in the last."""
  return [length // 2 for length in buckets[:-1]] + [buckets[-1]]


def pack(
    groups: Sequence[Sequence[types.Trajectory | None]],
    slots: Sequence[int],
    *,
    buckets: Sequence[int],
    microbatch_rows: int,
    group_size: int,
    num_groups: int | None = None,
    rewards: np.ndarray | None = None,
    skip_flat: bool = False,
    mask_overlong: bool = False,
    pad_id: int = 0,
) -> Batch:
  """One minibatch.

  Args:
    groups: up to num_groups groups of group_size trajectories; None stands for
      a missing one: it has no reward and no row.
    slots: index of each group in the statistics arrays.
    buckets: padded lengths, rising.
    microbatch_rows: R.
    group_size: G.
    num_groups: N, the number that the update is compiled for; the default is
      len(groups). Groups beyond are empty.
    rewards: [len(groups), G], what advantages come from; NaN is a missing one.
      The default is progress, where statistics come from in any case.
    skip_flat: leave out the rows of flat groups: neither KL nor entropy acts on
      them, no denominator counts them; the statistics do. With False those
      two terms pull the policy even where there is nothing to learn.
    mask_overlong: leave out rows that ran out of tokens. Their rewards count.
    pad_id: fills the rows; it never matters which id.

  Raises:
    ValueError: shapes that disagree, or a row that fits no bucket.
  """
  num_groups = len(groups) if num_groups is None else num_groups
  progress, present = _progress(groups, slots, num_groups, group_size)
  shaped = progress.copy()
  if rewards is not None:
    shaped[: len(groups)] = rewards
  scored = present & np.isfinite(shaped)
  shaped = np.where(scored, shaped, 0).astype(np.float32)
  computed = scored & ~(flat_groups(shaped, scored) & skip_flat)[:, None]
  rows = [
      _row(i * group_size + j, t.tokens, t.loss_mask, t.logprobs)
      for i, group in enumerate(groups)
      for j, t in enumerate(group)
      if computed[i, j]
      and not (mask_overlong and t.status == types.Status.MAX_TOKENS)
  ]
  packed = _pack(
      rows, buckets, microbatch_rows, num_groups * group_size, pad_id
  )
  slots = list(slots) + [-1] * (num_groups - len(slots))
  return Batch(packed, shaped, progress, scored, np.asarray(slots, np.int32))


def _progress(groups, slots, num_groups, group_size):
  """Progress rewards and which trajectories there are, both [N, G]."""
  if len(groups) != len(slots) or len(groups) > num_groups:
    raise ValueError(
        f'{len(groups)} groups with {len(slots)} slots do not fit a minibatch '
        f'of {num_groups} groups.'
    )
  progress = np.zeros((num_groups, group_size), np.float32)
  present = np.zeros((num_groups, group_size), bool)
  for i, group in enumerate(groups):
    if len(group) != group_size:
      raise ValueError(
          f'Group {i} has {len(group)} trajectories; group_size is '
          f'{group_size}. Put None for a missing one.'
      )
    for j, trajectory in enumerate(group):
      if trajectory is not None:
        progress[i, j], present[i, j] = trajectory.progress, True
  return progress, present


def flat_groups(rewards: np.ndarray, valid: np.ndarray) -> np.ndarray:
  """Groups without reward spread: bool [N].

  Decided by equality of the float32 rewards, never by a deviation: seven times
  0.35 has a float32 deviation above zero. A group with fewer than two scored
  rows is flat.
  """
  low = np.where(valid, rewards, np.inf).min(axis=1)
  high = np.where(valid, rewards, -np.inf).max(axis=1)
  return ~(low < high)


def pack_supervised(
    rows: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    buckets: Sequence[int],
    microbatch_rows: int,
    capacity: int | None = None,
    pad_id: int = 0,
) -> Packed:
  """Rows of (tokens [T], loss_mask [T]) for supervised training.

  Args:
    rows: at most `capacity`; the default capacity is their number.
    buckets: padded lengths, rising.
    microbatch_rows: R.
    capacity: rows that the step is compiled for.
    pad_id: fills the rows.
  """
  capacity = len(rows) if capacity is None else capacity
  made = [_row(i, *row, None) for i, row in enumerate(rows)]
  return _pack(made, buckets, microbatch_rows, capacity, pad_id)


def num_rows(packed: Packed) -> int:
  """Rows that are computed: not those left out, nor what fills a batch."""
  return sum(int((bucket.rows >= 0).sum()) for bucket in packed.buckets)


def unpack(
    packed: Packed, values: Sequence[np.ndarray]
) -> dict[int, np.ndarray]:
  """Per-target values of each bucket [M, R, K] -> {row: its targets}."""
  result = {}
  for bucket, count, value in zip(packed.buckets, packed.counts, values):
    for m in range(count):
      for r, index in enumerate(bucket.rows[m]):
        if index >= 0:
          result[int(index)] = np.asarray(value[m, r])[bucket.mask[m, r]]
  return result


def _row(index, tokens, loss_mask, logprobs) -> _Row:
  loss_mask = np.asarray(loss_mask, bool)
  lengths = {len(tokens), len(loss_mask)}
  if logprobs is not None:
    lengths.add(len(logprobs))
  if len(lengths) != 1:
    raise ValueError(
        f'Row {index}: tokens, loss_mask and logprobs have different lengths '
        f'{sorted(lengths)}.'
    )
  if len(loss_mask) and loss_mask[0]:
    raise ValueError(
        f'Row {index}: the first token cannot be sampled, nothing predicts it.'
    )
  return _Row(index, tokens, loss_mask, logprobs, int(loss_mask.sum()))


def _pack(rows, buckets, microbatch_rows, capacity, pad_id) -> Packed:
  buckets = list(buckets)
  if buckets != sorted(set(buckets)) or not buckets or buckets[0] < 2:
    raise ValueError(f'Length buckets must rise from at least 2: {buckets}.')
  if len(rows) > capacity:
    raise ValueError(f'{len(rows)} rows, but room for {capacity}.')
  parts = _assign(rows, buckets, microbatch_rows)
  steps = math.ceil(capacity / microbatch_rows)
  made = tuple(
      _fill(part, length, targets, steps, microbatch_rows, pad_id)
      for part, length, targets in zip(parts, buckets, num_targets(buckets))
  )
  counts = [math.ceil(len(part) / microbatch_rows) for part in parts]
  return Packed(made, np.asarray(counts, np.int32))


def _assign(rows, buckets, microbatch_rows) -> list[list[_Row]]:
  """The rows of each bucket, longest first."""
  parts = [[] for _ in buckets]
  room = num_targets(buckets)
  # A row without a sampled token has nothing to train on.
  trained = [row for row in rows if row.num_targets]
  for row in sorted(trained, key=lambda row: (-len(row.tokens), row.index)):
    for part, length, targets in zip(parts, buckets, room):
      if len(row.tokens) <= length and row.num_targets <= targets:
        part.append(row)
        break
    else:
      raise ValueError(
          f'Row {row.index} has {len(row.tokens)} tokens; the longest bucket '
          f'holds {buckets[-1]}. Lengthen the last bucket.'
      )
  for short, longer in zip(parts, parts[1:]):
    extra = len(short) % microbatch_rows
    if extra and extra <= -len(longer) % microbatch_rows:
      longer.extend(short[:extra])
      del short[:extra]
  return parts


def _fill(part, length, targets, steps, microbatch_rows, pad_id) -> Bucket:
  """The arrays of one bucket."""
  flat = steps * microbatch_rows
  tokens = np.full((flat, length), pad_id, np.int32)
  lengths = np.ones(flat, np.int32)
  positions = np.zeros((flat, targets), np.int32)
  ids = np.zeros((flat, targets), np.int32)
  old_logprobs = np.zeros((flat, targets), np.float32)
  mask = np.zeros((flat, targets), bool)
  index = np.full(flat, -1, np.int32)
  for i, row in enumerate(part):
    where = np.flatnonzero(row.loss_mask)
    tokens[i, : len(row.tokens)] = row.tokens
    lengths[i], index[i] = len(row.tokens), row.index
    positions[i, : len(where)] = where - 1
    ids[i, : len(where)] = np.asarray(row.tokens)[where]
    if row.logprobs is not None:
      old_logprobs[i, : len(where)] = np.asarray(row.logprobs)[where]
    mask[i, : len(where)] = True
  arrays = (tokens, lengths, positions, ids, old_logprobs, mask, index)
  return Bucket(*(
      a.reshape(steps, microbatch_rows, *a.shape[1:]) for a in arrays
  ))
