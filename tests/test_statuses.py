"""Each way a trajectory ends, from the rollout to the update's batch.

Whatever the status, the trajectory keeps the reward of its finished turns,
counts in its group's statistics, and has a status that the metrics show.
"""

import numpy as np
import pytest

from rods_jax import records
from rods_jax.host import packing
from rods_jax.host import rewards
from rods_jax.host import rollout
from rods_jax.types import Status
from tests import scripted
from tests.scripted import check_row, files

# Two turns, the first of which every script gets right.
TASK = files(('pwd()',), ('ls()',))
FIRST = ('pwd()', '')
LONG = "echo(content='" + 'word ' * 60 + "')"
# 2^24 paths to walk: see worlds.endless.
HANG = ';'.join(f"cp('d', 'e{i}');mv('e{i}', 'd')" for i in range(24)) + ';du()'
# status -> what the policy says after the first turn, and why turn 2 is wrong.
ENDINGS = {
    Status.DONE: (['ls()', ''], ''),
    Status.MAX_ROUNDS: (['ls()'] * 6, rewards.FORCED),
    Status.MAX_TOKENS: ([LONG], rollout.OUT_OF_TOKENS),
    Status.ENV_TIMEOUT: ([HANG], rewards.TIMEOUT),
}


def play(status):
  """A group of two: one that ends so, one that is right."""
  messages = {0: [*FIRST, *ENDINGS[status][0]], 1: [*FIRST, 'ls()', '']}
  (right,), _ = scripted.play(TASK, scripted.script(*messages[1]))
  # Room for the right one and for little more: the long message does not fit.
  room = len(right.tokens) + 20 if status is Status.MAX_TOKENS else 3_000
  group, generator = scripted.play(
      TASK,
      lambda uid, number, row: scripted.spoken(messages[uid][number]),
      samples=2, capacity=room, max_message_tokens=2_000,
      call_timeout_s=0.5 if status is Status.ENV_TIMEOUT else 20.0,
  )
  for uid, trajectory in enumerate(group):
    check_row(trajectory, generator, uid)
  return group


def pack(group, **options):
  return packing.pack(
      [group], [0], buckets=(3_000,), microbatch_rows=2, group_size=2,
      **options,
  )


def test_every_status_is_tested():
  assert ENDINGS.keys() == set(Status)


@pytest.mark.parametrize('status', Status, ids=lambda s: s.name)
def test_a_status_keeps_its_reward_and_is_counted(status):
  group = play(status)
  ended, right = group
  assert (ended.status, right.status) == (status, Status.DONE)
  assert [s.reason for s in ended.turn_scores] == ['', ENDINGS[status][1]]
  # The first turn's reward stays; dropped or zeroed it would be 0.
  reward = 1.0 if status is Status.DONE else 0.5
  assert (ended.progress, right.progress) == (reward, 1.0)
  shown = records.group_metrics([group])
  assert shown['reward/mean'] == (reward + 1) / 2
  names = [f'rollout/status_{s.name}' for s in Status]
  assert sum(shown[name] for name in names) == 1.0
  assert shown[f'rollout/status_{status.name}'] in (0.5, 1.0)


@pytest.mark.parametrize('mask_overlong', [False, True])
@pytest.mark.parametrize('status', Status, ids=lambda s: s.name)
def test_only_overlong_rows_are_masked_and_only_if_asked(
    status, mask_overlong
):
  """Masked, it gives no gradient; its reward is still the group's baseline."""
  group = play(status)
  batch = pack(group, mask_overlong=mask_overlong)
  masked = mask_overlong and status is Status.MAX_TOKENS
  assert packing.num_rows(batch.packed) == 2 - masked
  (bucket,) = batch.packed.buckets
  trained = group[1:] if masked else group
  assert bucket.mask.sum() == sum(t.loss_mask.sum() for t in trained)
  np.testing.assert_array_equal(batch.valid, [[True, True]])
  expected = [[t.progress for t in group]]
  np.testing.assert_array_equal(batch.rewards, expected)
  np.testing.assert_array_equal(batch.progress, expected)
