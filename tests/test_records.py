"""Metrics of groups by hand, and a trajectory as a JSON line."""

import dataclasses
import json

import numpy as np
import pytest

from rods_jax import records
from rods_jax.types import Event, Status, Trajectory, TurnScore
from tests import scripted
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


# What is logged for reading.


def decode(ids):
  """Ids are bytes of UTF-8; half a character is a replacement character."""
  return bytes(ids).decode('utf-8', 'replace')


def spoken(text, sampled, **kwargs):
  """A trajectory of one byte a token; `sampled` is a slice of it."""
  tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
  mask = np.zeros(len(tokens), bool)
  mask[sampled] = True
  logprobs = np.where(mask, -np.arange(len(tokens)) / 3, 0)
  return dataclasses.replace(
      trajectory([1, 0], **kwargs),
      tokens=tokens,
      loss_mask=mask,
      logprobs=logprobs.astype(np.float32),
  )


def test_a_groups_lines_are_json():
  """The second row shares 'ab' with the first, so its line has 'xd' only."""
  group = [spoken('abcd', slice(2, 4)), spoken('abxd', slice(2, 3))]
  lines = records.group_records(
      3, 1, files(('pwd()',), ()), group, decode
  )
  lines = json.loads(json.dumps(lines))
  both = {
      'step': 3,
      'epoch': 1,
      'task_id': 'made',
      'category': 'base',
      'sample': 0,
      'progress': 0.5,
      'status': 'DONE',
      'turn_scores': [
          {'score': 1, 'state_ok': True, 'response_ok': True, 'reason': ''},
          {'score': 0, 'state_ok': False, 'response_ok': True,
           'reason': 'no call'},
      ],
      'events': [{'turn': 0, 'role': 'user', 'text': 'turn 0'}],
  }
  assert lines == [
      both | {
          'shared': 0,
          'tokens': [97, 98, 99, 100],
          'texts': ['a', 'b', 'c', 'd'],
          'runs': [2, 2],
          'logprobs': [-0.6667, -1.0],  # -2/3 and -3/3
          'ground_truth': [['pwd()'], []],
      },
      both | {
          'shared': 2,
          'tokens': [120, 100],
          'texts': ['x', 'd'],
          'runs': [2, 1, 1],
          'logprobs': [-0.6667],
      },
  ]


def test_what_siblings_share_is_decoded_once():
  """Per token one text of it and the one before, and one of that alone."""
  seen = []

  def note(ids):
    seen.append(tuple(ids))
    return decode(ids)

  row = spoken('abcdefgh', slice(4, 8))
  records.group_records(0, 0, files(()), [row] * 8, note)
  # 8 tokens: pairs ab..gh and a alone; the ones before, a to g, and nothing.
  assert len(seen) == len(set(seen)) == 8 + 7 + 1 - 1  # a is both


@pytest.mark.parametrize(
    'mask, runs',
    [([0, 0, 1], [2, 1]), ([1, 1, 0], [0, 2, 1]), ([0, 0], [2]), ([], [0])],
)
def test_runs_begin_with_given_tokens(mask, runs):
  row = trajectory([1], tokens=len(mask))
  row = dataclasses.replace(row, loss_mask=np.array(mask, bool))
  (line,) = records.group_records(0, 0, files(()), [row], lambda ids: 'x')
  assert line['runs'] == runs and sum(runs) == len(row.tokens)
  assert len(line['logprobs']) == sum(runs[1::2])


def test_a_character_belongs_to_the_token_that_completes_it():
  """Decoded alone the two bytes of the letter would be two wrong characters."""
  ids = list('aé€'.encode())
  assert len(ids) == 1 + 2 + 3
  assert records.token_texts(ids, decode) == ['a', '', 'é', '', '', '€']
  # A half that never gets whole is shown as such, at its end.
  assert records.token_texts(ids[:5], decode) == ['a', '', 'é', '', '\ufffd']


def test_texts_of_tokens_add_up_to_the_text():
  """The tokenizer writes the space between two words, not in a token."""
  tokenizer = scripted.tokenizer()
  random = np.random.default_rng(0)
  rows = [tokenizer.encode('Move the file, then é \n\n go 12.5')]
  rows += [random.integers(0, tokenizer.vocab_size, 30) for _ in range(50)]
  for ids in rows:
    texts = records.token_texts(ids, tokenizer.decode)
    assert len(texts) == len(ids)
    assert ''.join(texts) == tokenizer.decode([int(i) for i in ids])
