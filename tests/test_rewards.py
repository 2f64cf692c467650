"""The turn checker, with the official BFCL checker as its oracle.

The official checker evaluates the text that it is given, so it sees nothing
here but ground-truth calls. It keeps every simulator in module globals under
the model's name: each episode gets a fresh name, and they are deleted after.
"""

import copy
import itertools

from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import (
    long_context,
)
import pytest

from rods_jax.host import bfcl
from rods_jax.host import env
from rods_jax.host import rewards
from rods_jax.host import tool_calls
from rods_jax.types import CATEGORIES, Task, Turn

_fresh = itertools.count()


@pytest.fixture(autouse=True)
def unpolluted():
  """Official runs change the simulators' shared records; put them back."""
  names = ('BOOKING_RECORD_EXTENSION', 'CREDIT_CARD_EXTENSION')
  saved = {name: copy.deepcopy(getattr(long_context, name)) for name in names}
  yield
  for name, value in saved.items():
    getattr(long_context, name).clear()
    getattr(long_context, name).update(value)


def official(task: Task, turns: list[list[str]]) -> bool:
  """The official all-turns verdict; one step per turn that has calls."""
  decoded = [[calls] if calls else [] for calls in turns]
  truth = [list(turn.ground_truth) for turn in task.turns]
  entry = {
      'id': task.task_id,
      'initial_config': task.initial_config,
      'involved_classes': list(task.classes),
  }
  before = set(vars(multi_turn_utils))
  try:
    verdict = multi_turn_checker.multi_turn_checker(
        decoded, truth, entry, task.category, f'model{next(_fresh)}'
    )
  finally:
    for name in set(vars(multi_turn_utils)) - before:
      delattr(multi_turn_utils, name)
  quiet = multi_turn_checker.multi_turn_irrelevance_checker(decoded, truth)
  return verdict['valid'] and quiet['valid']


def play(task: Task, turns: list[list[str]]) -> env.Episode:
  """Plays call texts, those of a turn as one message."""
  episode = env.Episode(task)
  for calls in turns:
    if calls:
      episode.execute([tool_calls.parse_ground_truth(text) for text in calls])
    episode.end_turn()
  return episode


def ours(task: Task, turns: list[list[str]]) -> bool:
  return all(score.score for score in play(task, turns).scores)


def truth_of(task: Task) -> list[list[str]]:
  return [list(turn.ground_truth) for turn in task.turns]


def _dropped_once(turns):
  """The last call of the last turn that has one."""
  out = [list(calls) for calls in turns]
  next(calls for calls in reversed(out) if calls).pop()
  return out


def _all_first(turns):
  return [sum(turns, [])] + [[] for _ in turns[1:]]


# name -> (episode from the ground truth, tasks of 800 that stay right).
PERTURBATIONS = {
    'ground_truth': (lambda turns: turns, 799),
    'reversed_turns': (lambda turns: turns[::-1], 8),
    'dropped_last_calls': (lambda turns: [c[:-1] for c in turns], 0),
    'dropped_last_call_once': (_dropped_once, 0),
    'doubled_calls': (
        lambda turns: [[call for call in c for _ in '12'] for c in turns],
        287,
    ),
    'reversed_calls': (lambda turns: [c[::-1] for c in turns], 359),
    'all_in_turn_0': (_all_first, 6),
    'no_calls': (lambda turns: [[] for _ in turns], 0),
}

# Where ours is meant to be stricter: the ground truth of this one calls tail
# in turn 1, which is withheld until turn 3.
WITHHELD = 'multi_turn_miss_func_49'


@pytest.mark.parametrize('name', PERTURBATIONS)
def test_verdict_equals_the_official_one(name):
  """800 episodes each; no other disagreement, in either direction."""
  perturb, num_right = PERTURBATIONS[name]
  disagree, right = set(), 0
  for task in bfcl.load_tasks().values():
    turns = perturb(truth_of(task))
    verdict = ours(task, turns)
    right += verdict
    if verdict != official(task, turns):
      disagree.add(task.task_id)
  assert disagree <= {WITHHELD}
  assert right == num_right


def test_progress_of_ground_truths_is_one():
  for task in bfcl.load_tasks().values():
    scores = [score.score for score in play(task, truth_of(task)).scores]
    expected = [1] * len(task.turns)
    if task.task_id == WITHHELD:
      expected[1] = 0
    assert scores == expected, task.task_id


def test_withheld_tool_official_accepts_we_do_not():
  """miss_func_49 expects a tool before it is on offer: right officially."""
  task = bfcl.load_tasks(['miss_func'])[WITHHELD]
  assert official(task, truth_of(task))
  episode = play(task, truth_of(task))
  assert [score.score for score in episode.scores] == [1, 0, 1, 1, 1]
  assert episode.scores[1].reason.startswith('result missing: {"last_lines"')
  assert episode.num_tool_errors == 1
  assert env.replay(task).withheld == ("tail(file_name='file3.txt')",)


def _task(*truths: tuple[str, ...], new_tools=()) -> Task:
  root = {'w': {'type': 'directory', 'contents': {
      'a.txt': {'type': 'file', 'content': 'x'},
      'd': {'type': 'directory', 'contents': {}},
  }}}
  turns = tuple(Turn(f'turn {i}', calls) for i, calls in enumerate(truths))
  if new_tools:
    last = turns[-1]
    turns = turns[:-1] + (Turn(last.user, last.ground_truth, new_tools),)
  return Task(
      task_id='multi_turn_base_900',
      category='base',
      scenario=900,
      classes=('GorillaFileSystem',),
      initial_config={'GorillaFileSystem': {'root': root}},
      turns=turns,
  )


def test_error_ground_truth_is_named():
  """A ground truth that fails on both sides counts as right officially.

  Checking it against itself proves nothing; here the replay lists it, and
  data with such a call is refused.
  """
  task = _task(("cd(folder='nowhere')",))
  assert official(task, truth_of(task))
  assert env.replay(task).ok_errors == ("cd(folder='nowhere')",)
  fine = _task(("cd(folder='d')",))
  assert env.replay(fine).ok_errors == ()


def test_forced_stop_in_the_last_turn_scores_zero():
  """A force-quit after the right calls passes officially: they see calls."""
  task = _task(("cat(file_name='a.txt')",))
  assert official(task, truth_of(task))
  episode = env.Episode(task)
  episode.execute(tool_calls.parse("cat(file_name='a.txt')"))
  score = episode.end_turn(forced=True)
  assert (score.state_ok, score.response_ok) == (True, True)
  assert (score.score, score.reason) == (0, 'closed by the round budget')


def test_only_a_withheld_call_is_no_call():
  """Turn 1 asks for what turn 0 showed; officially any call passes it."""
  task = _task(("cat(file_name='a.txt')",), ("cat(file_name='a.txt')",))
  turns = [["cat(file_name='a.txt')"] * 2, ["post_tweet(content='a')"]]
  assert official(task, turns)
  assert [s.reason for s in play(task, turns).scores] == ['', 'no call']
  # With a call on offer the results of turn 0 do count: 2 seen, 1 expected.
  turns[1] = ['pwd()']
  assert [s.score for s in play(task, turns).scores] == [1, 1]


def test_results_are_a_multiset():
  """Expected twice, seen once: not right. A set would say right."""
  task = _task(("cat(file_name='a.txt')",) * 2)
  once = play(task, [["cat(file_name='a.txt')"]]).scores[0]
  assert (once.state_ok, once.response_ok) == (True, False)
  assert rewards.missing_results(['a', 'a', 'b'], {'a': 1, 'b': 5}) == ['a']
  assert rewards.missing_results(['a', 'a'], {'a': 2}) == []


def test_empty_ground_truth():
  task = _task((), ("touch(file_name='b')",))
  right = play(task, [[], ["touch(file_name='b')"]])
  assert [s.score for s in right.scores] == [1, 1]
  # A call there is wrong even if nothing changes; the next turn may be right.
  early = play(task, [['pwd()'], ["touch(file_name='b')"]])
  assert [s.reason for s in early.scores] == ['call where none is due', '']
  # Also a call that is not on offer: the policy did call.
  foreign = play(task, [["post_tweet(content='a')"], ["touch(file_name='b')"]])
  assert [s.score for s in foreign.scores] == [0, 1]


def test_state_is_compared_after_each_turn():
  task = _task(("touch(file_name='b')",), ("rm(file_name='b')",))
  late = play(
      task, [['pwd()'], ["touch(file_name='b')", "rm(file_name='b')"]]
  )
  # Turn 0: b is missing, and so is its result. Turn 1: all as it should be.
  assert late.scores[0].reason == (
      'state differs: GorillaFileSystem.root.b is missing'
  )
  assert [s.score for s in late.scores] == [0, 1]


def test_a_directory_inside_itself_does_not_break_the_comparison():
  """cp(d, d) makes d contain itself: '!=' on two of them never ends.

  The checker would raise RecursionError in the middle of a rollout; instead
  the two count as different, also against a ground truth that does it.
  """
  copy_call = "cp(source='d', destination='d')"
  task = _task((copy_call,), (copy_call,))
  episode = play(task, truth_of(task))
  for score in episode.scores:
    assert score.reason == (
        f'state differs: GorillaFileSystem.root{".d" * 12} differs'
    )
  with pytest.raises(RecursionError):
    assert env.replay(task).states[0] == env.replay(task).states[1]


def test_categories_are_all_compared():
  assert {t.category for t in bfcl.load_tasks().values()} == set(CATEGORIES)
