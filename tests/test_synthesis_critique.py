"""Every gate of the critique can say no."""

import dataclasses

import pytest

from rods_jax.host import bfcl
from rods_jax.host.synthesis import critique
from rods_jax.types import Turn

SEED = bfcl.load_tasks(('base',))['multi_turn_base_0']


def with_turn(index, **changes):
  turns = list(SEED.turns)
  turns[index] = dataclasses.replace(turns[index], **changes)
  return dataclasses.replace(SEED, turns=tuple(turns))


def test_the_seed_itself_passes():
  assert critique.review(SEED, SEED) is None


@pytest.mark.parametrize(
    ('variant', 'reason'),
    [
        (with_turn(1, ground_truth=("cd(folder='x')",)), 'profile'),
        (dataclasses.replace(SEED, turns=SEED.turns[:-1]), 'profile'),
        (dataclasses.replace(SEED, category='long_context'), 'profile'),
        (dataclasses.replace(SEED, excluded=('cd', 'cp')), 'not on offer'),
        (with_turn(0, user=''), 'lost its text'),
        (
            with_turn(2, ground_truth=(f"sort('{'a' * 201}')",)),
            'more than 200',
        ),
    ],
)
def test_gates(variant, reason):
  rejection = critique.review(SEED, variant)
  assert rejection.stage == 'critique' and reason in rejection.reason


def test_lists_of_more_than_five_items():
  """Positional lists count like named ones."""
  turn = Turn('Average.', ('mean(numbers=[1, 2, 3, 4, 5])',))
  seed = dataclasses.replace(SEED, classes=('MathAPI',), turns=(turn,))
  long = dataclasses.replace(turn, ground_truth=('mean([1, 2, 3, 4, 5, 6])',))
  variant = dataclasses.replace(seed, turns=(long,))
  assert critique.review(seed, seed) is None
  assert 'more than 5' in critique.review(seed, variant).reason


def test_a_task_without_calls_is_trivial():
  silent = dataclasses.replace(SEED, turns=(Turn('Hello.', ()),))
  rejection = critique.review(silent, silent)
  assert 'no turn asks' in rejection.reason
