"""The line that says where two states differ."""

import pytest

from rods_jax.host import differences
from tests import worlds


@pytest.mark.parametrize(
    'found, expected, line',
    [
        (49.0, 45.0, 'A.x is 49.0, not 45.0'),
        ('a', None, "A.x is 'a', not None"),
        ({'k': 1}, {'k': 2}, 'A.x.k is 1, not 2'),
        ({}, {'k': 2}, 'A.x.k is missing'),
        ({'k': 1, 'l': 2}, {'k': 1}, 'A.x.l should not be there'),
        ([1, 2], [1, 3], 'A.x.1 is 2, not 3'),
        ([1, 2], [1], 'A.x is [1, 2], not [1]'),
        ([0] * 9, [1], 'A.x is [0, 0, 0, 0, 0 and 4 more], not [1]'),
        ({'k': [{'n': 'x' * 99}]}, {'k': [{'n': ''}]},
         "A.x.k.0.n is '" + 'x' * 39 + "..., not ''"),
        ([{}], [{}, {}], 'A.x differs'),
    ],
)
def test_lines_by_hand(found, expected, line):
  assert differences.describe('A.x', found, expected) == line


@pytest.mark.parametrize(
    'calls, line',
    [
        ("mv('a.txt', 'd')", 'root.a.txt is missing'),
        ("touch('b')", 'root.b should not be there'),
        ("cd('d');touch('b')", 'root.d.b should not be there'),
        ("echo('z', 'a.txt')", "root.a.txt is 'z', not 'x\\ny'"),
    ],
)
def test_folders_and_files(calls, line):
  """Only 'GorillaFileSystem.root' used to be said, of every such mistake."""
  episode = worlds.start('GorillaFileSystem', truths=(('pwd()',),))
  worlds.run_all(episode, calls)
  score = episode.end_turn()
  assert score.reason == f'state differs: GorillaFileSystem.{line}'
  assert not score.state_ok


def test_a_folder_that_contains_itself_is_described():
  episode = worlds.start('GorillaFileSystem', truths=(("touch('b')",),))
  worlds.run_all(episode, "cp('d', 'd')")
  files = episode._world.instances['GorillaFileSystem']
  files.root.contents['self'] = files.root
  reason = episode.end_turn().reason
  assert reason.startswith('state differs: GorillaFileSystem.root.')
  assert len(reason) < 300


def test_long_paths_are_cut():
  found = expected = 1, 2
  for i in range(30):
    found, expected = {'k' * 50: found}, {'k' * 50: expected}
  expected = {'k' * 50: {'k' * 50: {'other': 1}}}
  line = differences.describe('A.x', found, expected)
  assert len(line) <= 243
