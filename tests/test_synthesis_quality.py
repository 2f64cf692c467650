"""Solvable from what is shown; new among what is known."""

import dataclasses

import pytest

from rods_jax.host import bfcl
from rods_jax.host.synthesis import pipeline, quality, trace
from rods_jax.types import Turn
from tests import worlds

TASKS = bfcl.load_tasks(('base',))


def task(*turns, classes=('GorillaFileSystem',), task_id='made'):
  turns = tuple(Turn(user, tuple(calls)) for user, *calls in turns)
  made = worlds.make(*classes)
  return dataclasses.replace(made, turns=turns, task_id=task_id)


def unsourced(*turns, **kwargs):
  found = quality.unsourced(trace.run(task(*turns)), **kwargs)
  return [(a.param, a.value) for a in found]


def test_a_value_from_nowhere():
  """Nobody says how the new file is to be called."""
  assert unsourced(('Make a file.', "touch(file_name='q7.txt')")) == [
      ('file_name', 'q7.txt')
  ]
  assert unsourced(('Make q7.txt.', "touch(file_name='q7.txt')")) == []


def test_what_needs_no_saying():
  assert not unsourced(
      ('Go up, list everything, and count the lines of a.txt.',
       "cd(folder='..')", 'ls(a=True)', "wc(file_name='a.txt', mode='l')"),
  )  # pyformat: disable


def test_a_file_that_a_tool_could_show():
  turns = ('Show the file.', "cat(file_name='a.txt')")
  assert unsourced(turns) == []
  assert unsourced(turns, discoverable=False) == [('file_name', 'a.txt')]
  shown = ('Show the file.', 'ls()', "cat(file_name='a.txt')")
  assert unsourced(shown, discoverable=False) == []


@pytest.mark.parametrize(
    ('scenario', 'expected'),
    [
        # post_tweet of lines in an order that no call has returned.
        (4, [('content', 'Initial report content More unsorted data '
                         'Unsorted data')]),
        (184, []),
        (172, []),
        # The brake is pressed all the way: 0 to 1, the documentation says.
        (69, []),
    ],
)  # pyformat: disable
def test_real_tasks(scenario, expected):
  executed = trace.run(TASKS[f'multi_turn_base_{scenario}'])
  found = [(a.param, a.value) for a in quality.unsourced(executed)]
  assert found == expected


def test_texts_are_compared_by_three_words():
  """'go to the shop' has two runs of three words; 'go to the bank' shares one
  of the three that both have: 1 - 1/3."""
  a = task(('Go to the shop.', 'ls()'), task_id='a')
  b = task(('go to THE bank', 'ls()'), task_id='b')
  found = quality.Known([a]).nearest(b)
  assert found == quality.Nearest('a', pytest.approx(2 / 3), 0.0)
  assert found.distance == pytest.approx(2 / 3)
  assert quality.shingles(task(('Pay 5 now',))) == (
      quality.shingles(task(('pay 70 NOW!',)))
  )


def test_calls_are_compared_in_one_spelling():
  """Positional or named, in any order: the same two calls, one exchanged."""
  a = task(('x', "mv('a', 'b')", 'ls()'), task_id='a')
  b = task(('x', "mv(destination='b', source='a')", 'pwd()'), task_id='b')
  found = quality.Known([a]).nearest(b)
  assert (found.texts, found.calls) == (0.0, 0.5)
  assert quality.Known([a]).is_new(b, 0.5)
  assert not quality.Known([a]).is_new(b, 0.6)


def test_the_task_itself_does_not_count():
  a = task(('x', 'ls()'), task_id='a')
  known = quality.Known([a])
  assert len(known) == 1
  assert known.nearest(a) is None and known.is_new(a, 1.0)
  twin = dataclasses.replace(a, task_id='b')
  assert known.nearest(twin).distance == 0.0


def test_variants_are_near_their_seed():
  """A variant exchanges values, so its seed is the nearest human task."""
  known = quality.Known(TASKS.values())
  seeds = tuple(TASKS[f'multi_turn_base_{i}'] for i in (0, 59, 100, 184))
  variants, _ = pipeline.run_request(
      pipeline.Request(0, seeds, per_seed=1, rng_seed=0)
  )
  assert len(variants) == 4
  for variant in variants:
    found = known.nearest(variant)
    assert found.task_id == variant.parent and 0 < found.distance < 1
