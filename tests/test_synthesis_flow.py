"""Where arguments come from: said, returned, configured, implied."""

import dataclasses

import pytest

from rods_jax.host import bfcl
from rods_jax.host.synthesis import flow, trace
from rods_jax.host.synthesis.speech import Speech
from rods_jax.types import Turn
from tests import worlds

TASKS = bfcl.load_tasks()


def flows(*turns, classes=('GorillaFileSystem',)):
  """(parameter, kind, back, source) of (user, calls...) turns."""
  turns = tuple(Turn(user, tuple(calls)) for user, *calls in turns)
  task = dataclasses.replace(worlds.make(*classes), turns=turns)
  return [
      (f.argument.param, f.kind, f.back, f.source)
      for f in flow.flows(trace.run(task))
  ]


def test_what_the_user_says():
  assert flows(
      ("Put the word 'seven' into new.txt.", "touch(file_name='new.txt')"),
      ('Now!', "echo(content='seven', file_name='new.txt')"),
  ) == [
      ('file_name', 'user', 0, None),
      ('content', 'user', 1, None),
      ('file_name', 'user', 1, None),
  ]


def test_an_empty_turn_counts_with_its_answer():
  """The name is given in turn 1 of 0 to 2, the call comes in turn 2: it is
  the same request, so nothing refers back."""
  found = flows(
      ('List it all.', 'ls()'),
      ('Show a.txt.',),
      ('New tools are here.', "cat(file_name='a.txt')"),
  )
  assert found == [('file_name', 'user', 0, None)]


def test_the_source_is_the_last_call_that_was_not_given_the_value():
  """ls shows the name in both calls. wc is given it, and only repeats it."""
  found = flows(
      ('What is here?', 'ls()'),
      ('And again?', 'ls()'),
      ('Show the file.', "cat(file_name='a.txt')"),
  )
  assert found == [('file_name', 'output', 1, 1)]
  found = flows(
      ('Divide.', 'divide(a=50, b=2)', 'add(a=25.0, b=0)'),
      ('And now?', 'subtract(a=100, b=25.0)'),
      classes=('MathAPI',),
  )
  assert found[-1] == ('b', 'output', 1, 0)  # not add, which was given 25


def test_what_the_user_says_is_no_output():
  found = flows(('Show a.txt.', 'ls()', "cat(file_name='a.txt')"))
  assert found == [('file_name', 'user', 0, None)]


def test_state_and_constants():
  """No call has shown 'a.txt'; 'l' is an option of wc, True a switch."""
  found = flows(
      ('Count.', "wc(file_name='a.txt', mode='l')", 'ls(a=True)')
  )
  assert found == [
      ('file_name', 'state', None, None),
      ('mode', 'constant', None, None),
      ('a', 'constant', None, None),
  ]


def test_rounded_results():
  """20 / 3 is 6.666...; 6.67 is its rounding, 6.68 is not."""
  for value, kind in ((6.67, 'output'), (6.68, 'constant')):
    found = flows(
        ('Divide 20 by 3.', 'divide(a=20, b=3)'),
        ('Round up.', f'round_number(number={value}, decimal_places=0)'),
        classes=('MathAPI',),
    )
    assert found[2][:2] == ('number', kind)


def test_small_numbers_need_a_name():
  """A tweet's id is 0; a 0 that is no tweet_id coincides with it."""
  found = flows(
      ('Say hi.', "post_tweet(content='hi')"),
      ('Say it again.', 'retweet(tweet_id=0)'),
      ('What?', 'add(a=0, b=0)'),
      classes=('TwitterAPI', 'MathAPI'),
  )
  assert [f[1] for f in found] == ['user', 'output', 'constant', 'constant']


def test_small_numbers_among_outputs():
  """'The mean of the three': wc has counted 2 lines, 2 words, 3 characters,
  and three is also how many numbers there are: each could be a coincidence.
  In base_15 the 3 stands beside 16 and 60, which only wc can have told."""
  counts = [f"wc(file_name='a.txt', mode='{mode}')" for mode in 'lwc']
  found = flows(
      ('Count lines, words and characters of a.txt.', *counts),
      ('And the mean of the three?', 'mean(numbers=[2, 2, 3])'),
      classes=('GorillaFileSystem', 'MathAPI'),
  )
  assert [f[1] for f in found[-3:]] == ['constant', 'constant', 'user']
  long = TASKS['multi_turn_base_15']  # 3, 16 and 60
  origins = [
      (f.argument.value, f.kind, f.source)
      for f in flow.flows(trace.run(long))
      if f.argument.tool == 'mean'
  ]
  assert origins == [(3, 'output', 3), (16, 'output', 4), (60, 'output', 5)]


def test_numbers_inside_a_text_that_quotes_results():
  """base_75 tweets 'Front Left Tire: 32 PSI, ... Rear Left Tire: 30 PSI' after
  the user has asked for 30 gallons. The 30 of the text is the tire's: where it
  was exchanged with the gallons, variants tweeted a pressure that no tire has.
  """
  executed = trace.run(TASKS['multi_turn_base_75'])
  origins = [
      (f.argument.path[-2:], f.argument.value, f.kind, f.source)
      for f in flow.flows(executed)
      if f.argument.tool == 'post_tweet'
  ]
  assert origins[0][2:] == ('output', 1)
  assert origins[1:] == [
      (('#', 0), 30, 'output', 1), (('#', 1), 32, 'output', 1)
  ]  # pyformat: disable


def test_real_task():
  """base_69: zip codes of two cities give a distance; 40 liters are 10.566880
  gallons, of which 10.57 are filled in. The doors are options of the tool."""
  executed = trace.run(TASKS['multi_turn_base_69'])
  found = {
      (f.argument.call, f.argument.param): (f.kind, f.source)
      for f in flow.flows(executed)
  }
  assert found[2, 'cityA'] == ('output', 0)
  assert found[2, 'cityB'] == ('output', 1)
  assert found[4, 'fuelAmount'] == ('output', 3)
  assert found[3, 'liter'] == ('user', None)
  assert found[5, 'door'] == ('constant', None)
  assert found[8, 'content'] == ('user', None)


def test_a_full_tank():
  """base_82 fills 35 of 50 gallons on top of 15, which no call has shown."""
  executed = trace.run(TASKS['multi_turn_base_82'])
  (kind,) = [
      f.kind for f in flow.flows(executed)
      if f.argument.tool == 'fillFuelTank'
  ]  # pyformat: disable
  assert kind == 'state'


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('Pay 1,500 dollars', 1500.0),
        ("Post 'It\\'s on'", "It's on"),
        ('with tag #Go', '#Go'),
        ('in Capitals.txt', 'capitals.txt'),
    ],
)
def test_said(text, value):
  assert Speech(text).says(value)


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('a longer.txt file', 'er.txt'),
        ('15000 dollars', 1500),
        ('on 2026-01-12 at 4:30', 1),
        ('on 2026-01-12 at 4:30', 12),
        ('on 2026-01-12 at 4:30', 4),
        ('Zeta Corp', 'ZETA'),  # the symbol's letters, not the symbol
        ('That is all.', '.'),
        ('one', True),
    ],
)
def test_not_said(text, value):
  assert not Speech(text).says(value)


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('the final report', 'final_report.pdf'),
        ('Alpha Tech shares', 'ALPH'),
        ('from NYC', 'New York'),
        ('to San Francisco', 'SFO'),
        ('May 5th, 2026', '2026-05-05'),
        ('twelve shares', 12),
        ('2.5 million', 2.5e6),
        ("the 'notes' in 'archive'", 'archive/notes'),
    ],
)
def test_meant(text, value):
  speech = Speech(text)
  assert not speech.says(value) and speech.means(value)


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('between San Francisco and Rivermist', 'driver'),  # an[d River]mist
        ('One request: list it', 1),
        ('the report', 'report_2.txt'),
    ],
)
def test_not_meant(text, value):
  assert not Speech(text).means(value)
