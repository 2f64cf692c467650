"""Missing functions and parameters: empty turn, then what was missing."""

import numpy as np
import pytest

from rods_jax.host import bfcl, env
from rods_jax.host.synthesis import augment
from rods_jax.host.synthesis.paraphrase import NEW_TOOLS_TEXT
from rods_jax.host.synthesis.records import Rejection

TASKS = bfcl.load_tasks(('base', 'miss_func', 'miss_param'))
BASE = [TASKS[f'multi_turn_base_{i}'] for i in range(0, 200, 5)]


def empty_turn(task):
  (index,) = [i for i, t in enumerate(task.turns) if not t.ground_truth]
  return index


def forms(category):
  rng = np.random.default_rng(0)
  for base in BASE:
    made = augment.make(base, category, rng)
    if not isinstance(made, Rejection):
      yield base, made


def test_a_withheld_tool_is_needed_and_not_needed_before():
  made = list(forms('miss_func'))
  full = [b for b in BASE if all(turn.ground_truth for turn in b.turns)]
  assert len(made) == len(full) >= 0.9 * len(BASE)
  for base, task in made:
    index = empty_turn(task)
    supply = task.turns[index + 1]
    (tool,) = supply.new_tools
    assert supply.user == NEW_TOOLS_TEXT
    assert supply.ground_truth == base.turns[index].ground_truth
    assert any(c.startswith(f'{tool}(') for c in supply.ground_truth)
    offers = env.offered(task)
    assert tool not in offers[index] and tool in offers[index + 1]
    assert not env.replay(task).withheld


def test_a_blurred_value_is_nowhere_before_it_is_supplied():
  """Otherwise the policy could answer the turn that must stay empty."""
  made = list(forms('miss_param'))
  assert len(made) >= 0.4 * len(BASE)
  for base, task in made:
    index = empty_turn(task)
    supply = task.turns[index + 1]
    assert supply.ground_truth == base.turns[index].ground_truth
    value = supply.user.rstrip('.').split("'")[-2:]
    value = value[0] if len(value) == 2 else supply.user.split()[-1].strip('.')
    if value in ('liters', 'gallons'):
      value = supply.user.split()[-2]
    assert value in base.turns[index].user
    shown = ' '.join(turn.user for turn in task.turns[: index + 1])
    results = env.replay(task).results[:index]
    assert value not in shown, task.task_id
    assert not any(value in text for turn in results for text in turn)


@pytest.mark.parametrize('category', ['miss_func', 'miss_param'])
def test_merging_undoes_augmenting(category):
  for base, task in forms(category):
    merged = augment.base_form(task)
    assert len(merged.turns) == len(base.turns)
    calls = [turn.ground_truth for turn in merged.turns]
    assert calls == [turn.ground_truth for turn in base.turns]


def test_human_seeds_merge():
  seed = TASKS['multi_turn_miss_func_59']
  merged = augment.base_form(seed)
  assert len(merged.turns) == len(seed.turns) - 1
  assert all(turn.ground_truth for turn in merged.turns)


def test_what_cannot_be_augmented_is_rejected():
  rng = np.random.default_rng(0)
  seed = TASKS['multi_turn_miss_func_59']
  assert augment.make(seed, 'miss_func', rng).stage == 'augment'
  assert augment.make(BASE[0], 'long_context', rng).stage == 'augment'
