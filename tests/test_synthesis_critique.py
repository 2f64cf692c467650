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


@pytest.mark.parametrize(('limit', 'accepted'), [(0.0, 0), (0.2, 1)])
def test_the_gate_on_profiles_has_a_threshold(limit, accepted):
  """The user of base_184 refers to 'the said flight'. Where the booking's id
  is said instead, two of the five arguments that refer back (two each in
  turns 1 and 2, one in 5) come from elsewhere, and one of them no longer
  refers back: 1 of 5 is 0.2."""
  seed = bfcl.load_tasks(('base',))['multi_turn_base_184']
  turns = list(seed.turns)
  turns[1] = dataclasses.replace(
      turns[1], user=turns[1].user.replace('the said flight', '3426812')
  )
  variant = dataclasses.replace(seed, turns=tuple(turns))
  rejection = critique.review(seed, variant, limit)
  assert (rejection is None) == accepted
  if rejection:
    assert rejection.reason == 'another profile: references'


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
