"""Ground-truth dialogues: rounds, arguments by name, all tasks."""

import dataclasses

import numpy as np
import pytest

from rods_jax.host import bfcl
from rods_jax.host import demonstrate
from rods_jax.host import tool_calls
from tests import scripted
from tests import worlds
from tests.scripted import files


def said(task):
  """The messages in text."""
  shown = demonstrate.demonstrate(task, scripted.fmt())
  return [scripted.fmt().text(m) for m in scripted.sampled(shown)]


def with_user(task, *texts):
  turns = tuple(
      dataclasses.replace(turn, user=text)
      for turn, text in zip(task.turns, texts, strict=True)
  )
  return dataclasses.replace(task, turns=turns)


def test_independent_calls_share_a_message():
  task = with_user(
      files(("cd('d')", "touch('b')"), ()), 'go to d and make b there', 'thanks'
  )
  assert said(task) == ["cd(folder='d');touch(file_name='b')", '', '']


def test_a_call_that_needs_a_result_waits_for_it():
  """Nobody said a.txt before ls did: two messages, not one."""
  task = with_user(files(('ls()', "cat('a.txt')")), 'what is in the file here?')
  assert said(task) == ['ls()', "cat(file_name='a.txt')", '']
  task = with_user(files(('ls()', "cat('a.txt')")), 'list, then show a.txt')
  assert said(task) == ["ls();cat(file_name='a.txt')", '']


def test_a_result_of_an_earlier_turn_is_known():
  task = with_user(
      files(('ls()',), ('ls()', "cat('a.txt')")), 'look around', 'show the file'
  )
  assert said(task)[2] == "ls();cat(file_name='a.txt')"


def test_a_turn_that_stops_early_leaves_out_its_last_call_and_ends_the_row():
  """One call is never left out; of two or three the last is."""
  task = files(('pwd()',), ('pwd()', 'ls()', "cd('d')"), ('ls()',))
  task = with_user(task, 'where?', 'where, what, go', 'what?')
  random = np.random.default_rng(0)

  def messages(share):
    shown = demonstrate.demonstrate(task, scripted.fmt(), random, share)
    return [scripted.fmt().text(m) for m in scripted.sampled(shown)]

  assert messages(1.0) == ['pwd()', '', 'pwd();ls()', '']
  whole = ['pwd()', '', "pwd();ls();cd(folder='d')", '', 'ls()', '']
  assert messages(0.0) == whole
  drawn = [len(messages(0.6)) for _ in range(200)]
  # 200 turns stop with probability 0.6: 120 expected, deviation 7.
  assert set(drawn) == {4, 6} and 99 <= drawn.count(4) <= 141


def test_mask_covers_the_messages_and_nothing_else():
  task = files(('pwd()',), ())
  shown = demonstrate.demonstrate(task, scripted.fmt())
  assert shown.tokens.dtype == np.int32 and shown.loss_mask.dtype == bool
  assert not shown.loss_mask[0]
  ends = shown.tokens == scripted.control('<end>')
  assert ends.sum() == 3 and shown.loss_mask[ends].all()
  heads = shown.tokens == scripted.control('<assistant>')
  assert heads.sum() == 3 and not shown.loss_mask[heads].any()
  # Each message starts right after its header.
  starts = np.flatnonzero(heads) + 1
  assert shown.loss_mask[starts].all()


def test_a_ground_truth_that_is_not_right_is_refused():
  """A withheld tool: the call fails, the turn scores 0."""
  task = worlds.make(
      'GorillaFileSystem', truths=(("sort('a.txt')",),), excluded=('sort',)
  )
  with pytest.raises(ValueError, match='made, turn 0'):
    demonstrate.demonstrate(task, scripted.fmt())


def test_ground_truths_of_training_tasks_can_be_demonstrated():
  """60 tasks over all categories and scenarios; all 779 take 3 s."""
  tasks = scripted.sound_tasks()[::13]
  assert len(tasks) == 60
  assert {t.category for t in tasks} == {
      'base', 'miss_func', 'miss_param', 'long_context'
  }
  for task in tasks:
    shown = demonstrate.demonstrate(task, scripted.fmt(48))
    calls = []
    for message in scripted.sampled(shown):
      part = tool_calls.parse(scripted.fmt().text(message))
      assert not any(call.args for call in part), task.task_id
      calls += part
    truths = [c for turn in task.turns for c in turn.ground_truth]
    assert [c.name for c in calls] == [
        tool_calls.parse_ground_truth(c).name for c in truths
    ]
    # One empty message a turn, and a short turn's rounds fit the budget.
    empty = [m for m in scripted.sampled(shown) if len(m) == 1]
    assert len(empty) == len(task.turns)


def test_texts_hold_what_a_call_must_copy():
  task = bfcl.load_tasks(('base',))['multi_turn_base_0']
  found = demonstrate.texts(task)
  assert all(turn.user in found for turn in task.turns)
  values = {
      f'{value!r},'
      for turn in task.turns
      for text in turn.ground_truth
      for value in tool_calls.parse_ground_truth(text).kwargs.values()
  }
  assert values and values <= set(found)
  assert max(map(len, found)) <= 1000
