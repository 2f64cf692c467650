"""Metrics of groups by hand, and a trajectory as a JSON line."""

import json

import numpy as np
import pytest

from rods_jax import records
from rods_jax.types import Event, Status, Trajectory, TurnScore
from tests.scripted import files

RIGHT, WRONG = TurnScore(True, True), TurnScore(False, True, 'no call')


def trajectory(scores, status=Status.DONE, tokens=4, sampled=2, **counts):
  numbers = dict(
      num_rounds=2, num_calls=1, num_tool_errors=0, num_parse_errors=0
  )
  return Trajectory(
      task_id='made',
      sample=0,
      tokens=np.arange(tokens, dtype=np.int32),
      loss_mask=np.arange(tokens) >= tokens - sampled,
      logprobs=np.zeros(tokens, np.float32),
      turn_scores=tuple(RIGHT if s else WRONG for s in scores),
      status=status,
      policy_version=0,
      events=(Event(0, 'user', 'turn 0'),),
      **(numbers | counts),
  )


def test_group_metrics_by_hand():
  """Two groups of two: rewards 1, 0 and 1/2, 1/2."""
  groups = [
      [
          trajectory([1, 1], num_calls=3, num_tool_errors=1),
          trajectory([0, 0], Status.MAX_TOKENS, tokens=8, num_parse_errors=2),
      ],
      [
          trajectory([1, 0], Status.MAX_ROUNDS, num_rounds=4),
          trajectory([0, 1], sampled=4),
      ],
  ]
  found = records.group_metrics(groups)
  assert found == {
      'reward/mean': 0.5,
      'reward/accuracy': 0.25,
      # (1/2 + 0) / 2; over all four rows it would be sqrt(1/8) = 0.354.
      'reward/std_within_group': 0.25,
      'reward/flat_groups': 0.5,
      'rollout/tokens': 5.0,  # (4 + 8 + 4 + 4) / 4
      'rollout/sampled_tokens': 2.5,  # (2 + 2 + 2 + 4) / 4
      'rollout/rounds': 2.5,  # (2 + 2 + 4 + 2) / 4
      # 1 of 3 + 1 + 1 + 1 + 1 calls; without failed calls in the sum, 1 / 6.
      'rollout/tool_error_rate': pytest.approx(1 / 7),
      'rollout/parse_error_rate': 0.2,  # 2 of 10 rounds
      'rollout/status_DONE': 0.5,
      'rollout/status_MAX_ROUNDS': 0.25,
      'rollout/status_MAX_TOKENS': 0.25,
      'rollout/status_ENV_TIMEOUT': 0.0,
  }
  assert all(type(value) is float for value in found.values())


def test_a_flat_group_is_told_by_equality():
  """Seven times 1/3 has a deviation of 6e-17, not 0."""
  group = [trajectory([1, 0, 0]) for _ in range(7)]
  assert records.group_metrics([group])['reward/flat_groups'] == 1.0


def test_rates_without_any_call_or_round():
  group = [
      trajectory([0], num_calls=0, num_rounds=0, sampled=0) for _ in range(2)
  ]
  found = records.group_metrics([group])
  assert found['rollout/tool_error_rate'] == 0
  assert found['rollout/parse_error_rate'] == 0


def test_trajectory_record_is_json():
  record = records.trajectory_record(
      3, 1, files(('pwd()',), ()), trajectory([1, 0])
  )
  assert json.loads(json.dumps(record)) == {
      'step': 3,
      'epoch': 1,
      'task_id': 'made',
      'category': 'base',
      'sample': 0,
      'progress': 0.5,
      'status': 'DONE',
      'turn_scores': [
          {'score': 1, 'reason': ''},
          {'score': 0, 'reason': 'no call'},
      ],
      'events': [{'turn': 0, 'role': 'user', 'text': 'turn 0'}],
  }
