"""Ground truths with one call left out: which calls need which."""

import pytest

from rods_jax.host import bfcl, env
from rods_jax.host.synthesis import trace
from rods_jax.types import CATEGORIES
from tests import worlds

TASKS = bfcl.load_tasks(CATEGORIES)


def needs(*calls, classes=('GorillaFileSystem',)):
  return trace.run(worlds.make(*classes, truths=(calls,))).needs


def test_a_call_that_fails_without_another():
  """grep finds the file in 'd' only if it was moved there (0 -> 2) and if 'd'
  is where it looks (1 -> 2). cd works in any case: no edge 0 -> 1."""
  found = needs(
      "mv(source='a.txt', destination='d')",
      "cd(folder='d')",
      "grep(file_name='a.txt', pattern='x')",
  )
  assert found == {(0, 2): True, (1, 2): True}


def test_a_call_whose_result_changes_without_another():
  """touch adds a second name to the list; ls fails in neither case."""
  assert needs("touch(file_name='b.txt')", 'ls()') == {(0, 1): False}


def test_a_reading_call_is_needed_by_none():
  assert needs('ls()', "cat(file_name='a.txt')", 'pwd()') == {}


def test_numbers_that_are_handed_out_go_on():
  """The second tweet is number 1 because it is the second, which no user
  means by a need. Without the rule its id would be 0, and 0 -> 1 an edge."""
  tweets = ("post_tweet(content='a')", "post_tweet(content='b')")
  assert needs(*tweets, classes=('TwitterAPI',)) == {}
  shown = "get_tweet(tweet_id=0)"
  found = needs(*tweets, shown, classes=('TwitterAPI',))
  assert found == {(0, 2): True}


def test_draws_of_chance_go_on():
  """base_27 makes two tickets; the id of the second comes from a counter.
  Messages draw their ids: the second is the second number drawn."""
  executed = trace.run(TASKS['multi_turn_base_27'])
  names = [step.call.name for step in executed.steps]
  assert names[-3:] == ['ticket_login', 'create_ticket', 'create_ticket']
  assert (3, 4) not in executed.needs and (2, 4) in executed.needs
  send = "send_message(receiver_id='USR002', message='hi')"
  login = "message_login(user_id='USR001')"
  found = needs(login, send, send, classes=('MessageAPI',))
  assert found == {(0, 1): True, (0, 2): True}


def test_structure_of_a_real_task():
  """base_184 books a flight (1), fetches its invoice (2), cancels it (3),
  sends a message (4) and lists it (5). The price (0) was only asked for; the
  message deleted last (6) has an older one before it, so that deleting works
  in any case."""
  executed = trace.run(TASKS['multi_turn_base_184'])
  assert [step.turn for step in executed.steps] == [0, 0, 1, 2, 3, 4, 5]
  assert executed.needs == {(1, 2): True, (1, 3): True, (4, 5): False}


@pytest.mark.parametrize('category', CATEGORIES)
def test_results_are_those_of_the_environment(category):
  """Snapshots of the world must not change what the calls return."""
  for scenario in range(0, 200, 7):
    task = TASKS[f'multi_turn_{category}_{scenario}']
    executed = trace.run(task)
    truth = [text for turn in env.replay(task).results for text in turn]
    assert [step.text for step in executed.steps] == truth
    assert executed.finished
    assert all(i < j < len(truth) for i, j in executed.needs)


def test_without_calls():
  executed = trace.run(worlds.make('MathAPI'))
  assert (executed.steps, executed.needs) == ((), {})
