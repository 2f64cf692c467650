"""Packed rows: what crosses from host/packing.py to device/update.py.

Named tuples of numpy arrays, so that they are pytrees without importing jax.

Rows are right padded into length buckets. A bucket has room for every row of
the minibatch, cut into M microbatches of R rows; only the first `counts[i]` of
bucket i are in use, and the device loops over those alone. So the shapes, and
with them the compiled program, are the same for every mix of lengths.

Shapes: M microbatches, R rows of one microbatch, T tokens, K targets of a row,
N groups, G trajectories of a group.
"""

from typing import Any, NamedTuple

Array = Any  # numpy on the host, jax on the device


class Bucket(NamedTuple):
  """All rows of one padded length.

  Attributes:
    tokens: int32 [M, R, T], right padded.
    lengths: int32 [M, R], valid tokens; 1 in an empty row, so that its
      attention has a key.
    positions: int32 [M, R, K], where the activation that predicts the target
      stands: one before the target itself.
    targets: int32 [M, R, K], the ids that the policy sampled.
    old_logprobs: float32 [M, R, K], the sampler's.
    mask: bool [M, R, K], True for a target, False for filling.
    rows: int32 [M, R], index of the row in the input (group * G + sample for a
      minibatch of groups); -1 in an empty row.
  """

  tokens: Array
  lengths: Array
  positions: Array
  targets: Array
  old_logprobs: Array
  mask: Array
  rows: Array


class Packed(NamedTuple):
  """Rows in buckets.

  Attributes:
    buckets: one for each length, in rising order.
    counts: int32 [len(buckets)], microbatches in use of each.
  """

  buckets: tuple[Bucket, ...]
  counts: Array


class Batch(NamedTuple):
  """One minibatch of groups.

  Attributes:
    packed: the rows that are computed.
    rewards: float32 [N, G], what advantages come from.
    progress: float32 [N, G], the progress rewards, what statistics come from.
    valid: bool [N, G], False where a trajectory or its reward is missing.
    slots: int32 [N], where each group's statistics go; -1 in an empty group.
  """

  packed: Packed
  rewards: Array
  progress: Array
  valid: Array
  slots: Array
