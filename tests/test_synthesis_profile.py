"""Profiles: structure in numbers, and distances between structures."""

import dataclasses

import pytest

from rods_jax.host import bfcl
from rods_jax.host.synthesis import profile
from rods_jax.types import CATEGORIES, Turn
from tests import worlds

TASKS = bfcl.load_tasks()


def task(*turns, classes=('GorillaFileSystem',), **changes):
  """A task of (user, calls...) turns."""
  turns = tuple(Turn(user, tuple(calls)) for user, *calls in turns)
  return dataclasses.replace(worlds.make(*classes), turns=turns, **changes)


CHAIN = task(
    ('Move a.txt to d.', "mv(source='a.txt', destination='d')"),
    ('Go there and look for x.', "cd(folder='d')",
     "grep(file_name='a.txt', pattern='x')"),
)  # pyformat: disable


def test_profile_of_a_small_task():
  """grep (2) needs the move (0) and the step into 'd' (1): two edges, chains
  of two calls. 'd' and 'a.txt' were said a turn ago, x just now."""
  found = profile.of(CHAIN)
  assert found.calls == (1, 2) and found.num_turns == 2
  assert found.num_empty == 0 and found.category == 'base'
  assert found.tools == ('mv', 'cd', 'grep')
  assert found.classes == ('GorillaFileSystem',) * 3
  assert found.edges == {(0, 2, 'state'), (1, 2, 'state')}
  assert found.depth == 2
  assert found.fan_out == 1
  assert found.flows == (
      (0, 'destination', 'user'), (0, 'source', 'user'), (1, 'folder', 'user'),
      (2, 'file_name', 'user'), (2, 'pattern', 'user'),
  )  # pyformat: disable
  assert found.references == (0, 2)


def test_profile_of_a_real_task():
  """base_184: price (0), booking (1), invoice (2) and cancellation (3) by the
  booking's id, message (4), list of messages (5), deletion (6).

  Booking feeds two calls. The longest chain has two calls: 'the invoice shows
  the id too' makes no chain 1 -> 2 -> 3.
  """
  found = profile.of(TASKS['multi_turn_base_184'])
  assert found.calls == (2, 1, 1, 1, 1, 1)
  assert found.edges == {
      (1, 2, 'value'), (1, 2, 'state'), (1, 3, 'value'), (1, 3, 'state'),
      (4, 5, 'state'),
  }  # pyformat: disable
  assert (found.depth, found.fan_out) == (2, 2)
  assert found.classes == ('TravelAPI',) * 4 + ('MessageAPI',) * 3
  # Token and booking id in turns 1 and 2; the receiver's id in turn 5.
  assert found.references == (0, 2, 2, 0, 0, 1)


def test_profile_without_calls():
  found = profile.of(task(('Hello.',), classes=('MathAPI',)))
  assert (found.depth, found.fan_out, found.calls) == (0, 0, ())
  assert found.num_empty == 1
  assert profile.distance(found, found).total == 0


def test_the_empty_turn_may_stand_anywhere():
  """What a withheld tool delays is the same work."""
  turns = TASKS['multi_turn_base_69'].turns
  late = (turns[0], Turn(turns[1].user, ()), Turn('Go.', turns[1].ground_truth))
  early = (Turn(turns[0].user, ()), Turn('Go.', turns[0].ground_truth),
           turns[1])  # pyformat: disable
  base = TASKS['multi_turn_base_69']
  first, second = (
      profile.of(dataclasses.replace(base, turns=t)) for t in (late, early)
  )
  assert first == second
  parts = profile.distance(profile.of(base), first).parts
  assert {k: v for k, v in parts.items() if v} == {
      'turns': pytest.approx(1 / 3), 'empty_turns': 1.0
  }


def made(tools, edges=(), **changes):
  """A profile of calls and dependencies, one turn a call."""
  fields = dict(
      category='base',
      num_turns=len(tools),
      num_empty=0,
      calls=(1,) * len(tools),
      tools=tuple(tools),
      edges=frozenset((i, j, 'state') for i, j in edges),
      flows=(),
      references=(0,) * len(tools),
  )
  return profile.Profile(**fields | changes)


def test_parts_are_named_and_bounded():
  a = made(['ls', 'cd', 'ls'], [(0, 1), (1, 2)])
  b = made(['add'], category='miss_func', num_empty=1, references=(3,))
  parts = profile.distance(a, b).parts
  assert parts == {
      'category': 1.0,
      'turns': pytest.approx(2 / 3),  # |3 - 1| / 3
      'empty_turns': 1.0,  # |0 - 1| / 1
      'calls': pytest.approx(2 / 3),  # (1, 1, 1) and (1, 0, 0)
      'classes': 1.0,  # one exchange, two deletions, of three
      'topology': 1.0,  # two edges, no partner
      'depth': pytest.approx(2 / 3),  # chains of 3 and of 1
      'fan_out': 1.0,  # 1 and 0
      'flow': 0.0,
      'references': 1.0,  # (0, 0, 0) and (3, 0, 0)
      'functions': 1.0,
  }
  assert profile.distance(a, b).total == 1.0
  assert parts == profile.distance(b, a).parts


def test_topology_counts_up_to_isomorphism():
  """Two independent pairs, in either order, are the same graph; a chain of
  the same calls is another one: cd -> ls and ls -> cd against two times
  cd -> ls. Of the edges only one has a partner: 2 of 3 are alone."""
  pairs = made(['cd', 'ls', 'cd', 'ls'], [(0, 1), (2, 3)])
  crossed = made(['cd', 'ls', 'cd', 'ls'], [(0, 3), (2, 1)])
  chain = made(['cd', 'ls', 'cd', 'ls'], [(0, 1), (1, 2)])
  assert profile.distance(pairs, crossed).parts['topology'] == 0
  assert profile.distance(pairs, chain).parts['topology'] == (
      pytest.approx(2 / 3)
  )
  fan = made(['cd', 'ls', 'ls'], [(0, 1), (0, 2)])
  same = made(['cd', 'ls', 'ls'], [(0, 2), (0, 1)])
  assert profile.distance(fan, same).total == 0
  # All labels have a partner and yet the graphs differ: one of two counts.
  two = made(['cd', 'cd', 'ls', 'ls'], [(0, 2), (0, 3)])
  other = made(['cd', 'cd', 'ls', 'ls'], [(0, 2), (1, 3)])
  assert profile.distance(two, other).parts['topology'] == 0.5
  assert profile.distance(two, other).parts['fan_out'] == 0.5


def test_functions_count_only_where_they_should():
  """cat and tail are both tools of the file system."""
  a = made(['cd', 'cat'], [(0, 1)], flows=((1, 'file_name', 'user'),))
  b = made(['cd', 'tail'], [(0, 1)], flows=((1, 'file_name', 'user'),))
  assert profile.distance(a, b, functions=False).total == 0
  parts = profile.distance(a, b).parts
  assert (parts['functions'], parts['topology']) == (0.5, 1.0)
  c = made(['cd', 'add'], [(0, 1)], flows=((1, 'a', 'user'),))
  found = profile.distance(a, c, functions=False)
  assert found.parts['classes'] == 0.5 and found.parts['flow'] == 0
  assert 'functions' not in found.parts


def test_flow_counts_arguments_from_elsewhere():
  """One of two arguments has another origin."""
  a = made(['cp'], flows=((0, 'a', 'user'), (0, 'b', 'user')))
  b = made(['cp'], flows=((0, 'a', 'user'), (0, 'b', 'output')))
  found = profile.distance(a, b)
  assert found.parts['flow'] == found.total == 0.5
  assert found.worst == 'flow'


@pytest.mark.parametrize(
    ('a', 'b', 'expected'),
    [
        ('', '', 0.0),
        ('abc', 'abc', 0.0),
        ('abc', 'axc', 1 / 3),  # one exchange
        ('abc', 'ab', 1 / 3),  # one deletion
        ('abc', 'bc', 1 / 3),
        ('ab', 'ba', 1.0),  # two exchanges
        ('abc', '', 1.0),
    ],
)
def test_edit_distance(a, b, expected):
  assert profile.edit_distance(a, b) == pytest.approx(expected)
  assert profile.edit_distance(b, a) == pytest.approx(expected)


@pytest.mark.parametrize('category', CATEGORIES)
def test_every_task_has_a_profile(category):
  for scenario in range(200):
    seed = TASKS[f'multi_turn_{category}_{scenario}']
    found = profile.of(seed)
    count = sum(len(turn.ground_truth) for turn in seed.turns)
    assert len(found.tools) == sum(found.calls) == count > 0
    assert 1 <= found.depth <= count and found.fan_out < count
    assert len(found.calls) + found.num_empty == len(seed.turns)
    assert found is profile.of(seed)  # measured once
