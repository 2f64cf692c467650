"""Trajectories as numbers for metrics.jsonl and as text for reading."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from rods_jax import types


def group_metrics(
    groups: Sequence[Sequence[types.Trajectory]],
) -> dict[str, float]:
  """Rewards, errors, lengths and statuses over groups of trajectories.

  Rates are per call and per round; both are 0 where there was none.
  """
  rows = [t for group in groups for t in group]
  rewards = np.array([[t.progress for t in group] for group in groups])
  calls = sum(t.num_calls + t.num_tool_errors for t in rows)
  rounds = sum(t.num_rounds for t in rows)
  return {
      'reward/mean': float(rewards.mean()),
      'reward/accuracy': float(np.mean([t.correct for t in rows])),
      'reward/std_within_group': float(rewards.std(axis=1).mean()),
      'reward/flat_groups': float(
          (rewards.max(axis=1) == rewards.min(axis=1)).mean()
      ),
      'rollout/tokens': float(np.mean([len(t.tokens) for t in rows])),
      'rollout/sampled_tokens': float(
          np.mean([t.loss_mask.sum() for t in rows])
      ),
      'rollout/rounds': rounds / len(rows),
      'rollout/tool_error_rate': (
          sum(t.num_tool_errors for t in rows) / max(calls, 1)
      ),
      'rollout/parse_error_rate': (
          sum(t.num_parse_errors for t in rows) / max(rounds, 1)
      ),
      **{
          f'rollout/status_{status.name}': float(
              np.mean([t.status == status for t in rows])
          )
          for status in types.Status
      },
  }


def trajectory_record(
    step: int, epoch: int, task: types.Task, trajectory: types.Trajectory
) -> dict[str, Any]:
  """One line of trajectories.jsonl."""
  return {
      'step': step,
      'epoch': epoch,
      'task_id': task.task_id,
      'category': task.category,
      'sample': trajectory.sample,
      'progress': trajectory.progress,
      'status': trajectory.status.name,
      'turn_scores': [
          {'score': s.score, 'reason': s.reason}
          for s in trajectory.turn_scores
      ],
      'events': [dataclasses.asdict(e) for e in trajectory.events],
  }
