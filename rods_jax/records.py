"""Trajectories as numbers for metrics.jsonl and as text for reading."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from rods_jax import types

_REPLACEMENT = '\N{REPLACEMENT CHARACTER}'
_CHARACTER_BYTES = 4  # of UTF-8 at most: tokens that one character can take


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


def group_records(
    step: int,
    epoch: int,
    task: types.Task,
    group: Sequence[types.Trajectory],
    decode: Callable[[Sequence[int]], str],
) -> list[dict[str, Any]]:
  """The lines of trajectories.jsonl of one group.

  What all of the group share stands in its first line only: 'ground_truth',
  the calls due in each turn, and the tokens of the prompt. Every line has

    shared: number of leading tokens that are those of the group's first line.
    tokens, texts: the ids after them, and what each adds to the text.
    runs: lengths of the alternating runs of the whole row, from its first
      token on: given, sampled, given, ... The loss mask in few numbers.
    logprobs: of the sampled tokens, rounded.

  Args:
    step: optimizer steps done before the rollout.
    epoch: from 0.
    task: what the group played.
    group: its trajectories.
    decode: ids -> text.
  """
  first = group[0].tokens
  once = functools.cache(lambda ids: decode(list(ids)))  # siblings are alike
  lines = []
  for i, t in enumerate(group):
    shared = _common_prefix(first, t.tokens) if i else 0
    line = {
        'step': step,
        'epoch': epoch,
        'task_id': task.task_id,
        'category': task.category,
        'sample': t.sample,
        'progress': t.progress,
        'status': t.status.name,
        'turn_scores': [
            {'score': s.score, **dataclasses.asdict(s)} for s in t.turn_scores
        ],
        'events': [dataclasses.asdict(e) for e in t.events],
        'shared': shared,
        'tokens': t.tokens[shared:].tolist(),
        'texts': token_texts(t.tokens, once)[shared:],
        'runs': _runs(t.loss_mask),
        'logprobs': [
            round(float(p), 4) for p in t.logprobs[t.loss_mask]
        ],
    }
    if not i:
      line['ground_truth'] = [list(turn.ground_truth) for turn in task.turns]
    lines.append(line)
  return lines


def token_texts(
    ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[str]:
  """What each token adds to the text of the row.

  A token is decoded behind the one before, because some tokenizers write a
  space between two. Bytes of an unfinished character add nothing; the token
  that completes it adds all of it.
  """
  ids = tuple(int(i) for i in ids)
  texts, before, begin = [], 0, 0
  for end in range(1, len(ids) + 1):
    text = decode(ids[before:end])
    unfinished = text.endswith(_REPLACEMENT) and end - begin < _CHARACTER_BYTES
    if unfinished and end < len(ids):
      texts.append('')
      continue
    texts.append(text[len(decode(ids[before:begin])) :])
    before, begin = begin, end
  return texts


def _common_prefix(one: np.ndarray, other: np.ndarray) -> int:
  """Number of leading elements that agree."""
  size = min(len(one), len(other))
  differs = np.flatnonzero(one[:size] != other[:size])
  return int(differs[0]) if len(differs) else size


def _runs(mask: np.ndarray) -> list[int]:
  """bool [T] -> lengths of the runs of False, True, False, ...; sum T."""
  edges = np.flatnonzero(np.diff(mask, prepend=False))
  return np.diff([0, *edges, len(mask)]).tolist()
