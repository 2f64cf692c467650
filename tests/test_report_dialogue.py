"""Tests of the choice and the cutting of trajectories for the page."""

from rods_jax import report_data
from rods_jax import report_dialogue


def _run(trajectories, visits=()):
  return report_data.Run(
      name='r', config={}, steps=(), epochs=(), evaluations=(),
      pool_events=(), visits=visits, trajectories=trajectories,
      evaluation_file=None, notes=(),
  )


def _trajectory(task_id='t', scores=(1,), step=1, events=None):
  events = events or [(0, 'user', 'hello'), (0, 'tool', 'result')]
  return {
      'step': step, 'epoch': 0, 'task_id': task_id, 'category': 'base',
      'sample': 0, 'status': 'DONE',
      'turn_scores': [{'score': s, 'reason': ''} for s in scores],
      'events': [dict(zip(('turn', 'role', 'text'), e)) for e in events],
  }


def test_one_right_one_partly_right_one_wrong_and_late_ones_first():
  trajectories = [
      _trajectory('old', (1, 1), step=1),
      _trajectory('w', (0, 0), step=2),
      _trajectory('p', (0, 1), step=3),
      _trajectory('new', (1, 1), step=4),
  ]
  chosen = report_dialogue.choose(_run(trajectories))
  assert [(d.outcome, d.facts[0]) for d in chosen] == [
      ('right', 'task new'), ('partly', 'task p'), ('wrong', 'task w')
  ]
  assert chosen[1].heading == '1 of 2 turns right'


def test_the_fitting_zone_wins_over_a_later_step():
  visits = [
      report_data.Visit('a', 0, 0.95, 0.0, 'mastered'),
      report_data.Visit('b', 0, 0.5, 0.1, 'boundary'),
  ]
  trajectories = [_trajectory('a', step=1), _trajectory('b', step=9)]
  first, second = report_dialogue.choose(_run(trajectories, visits))
  assert first.facts[:2] == ['task a', 'zone mastered']
  assert second.facts[:2] == ['task b', 'zone boundary']


def test_no_trajectory_is_shown_twice_and_unreadable_ones_never():
  bad = [{}, {'task_id': 'x'}, {**_trajectory(), 'events': [3]},
         {**_trajectory(), 'turn_scores': []}]
  chosen = report_dialogue.choose(_run([*bad, _trajectory('only')]))
  assert [d.facts[0] for d in chosen] == ['task only']
  assert report_dialogue.choose(_run(bad)) == []


def test_turns_never_reached_are_still_shown():
  (dialogue,) = report_dialogue.choose(_run([_trajectory(scores=(1, 0, 0))]))
  assert [(t.number, t.right, len(t.messages)) for t in dialogue.turns] == [
      (1, True, 2), (2, False, 0), (3, False, 0)
  ]


def test_the_system_prompt_is_apart_from_the_turns():
  events = [(0, 'system', 'tools'), (0, 'user', 'hi'), (1, 'robot', 'x')]
  (dialogue,) = report_dialogue.choose(_run([_trajectory(events=events)]))
  assert [m.text for m in dialogue.system] == ['tools']
  assert [m.text for m in dialogue.turns[0].messages] == ['hi']
  # An event after the last scored turn is not lost.
  assert dialogue.turns[1].right is None
  assert dialogue.turns[1].messages[0].role == 'other'


def test_long_texts_are_cut_and_counted():
  """2,000 of 5,000 characters stay; 60,000 in all: 30 whole messages."""
  events = [(0, 'tool', 'x' * 5_000)] * 40
  (dialogue,) = report_dialogue.choose(_run([_trajectory(events=events)]))
  messages = dialogue.turns[0].messages
  assert (len(messages[0].text), messages[0].num_cut) == (2_000, 3_000)
  assert len(messages) == 30
  assert '10 messages left out' in dialogue.facts


def test_control_and_direction_marks_become_visible():
  """U+202E turned the rest of a tool result around on the page, so that
  'exe.txt' read as 'txt.exe'."""
  text = 'a\x00b\x1b[31m\u202ec\td\ne'
  assert report_dialogue.printable(text) == 'a\ufffdb\ufffd[31m\ufffdc\td\ne'


def test_lone_surrogates_can_be_written():
  assert report_dialogue.without_surrogates('a\ud800é') == 'a?é'
