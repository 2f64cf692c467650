"""Tests of the progress bar and the summary table."""

import io
import math

import pytest

from rods_jax import terminal


class _Terminal(io.StringIO):

  def isatty(self):
    return True


def test_bar_shows_step_epoch_reward_and_time_left():
  stream = _Terminal()
  with terminal.ProgressBar(8, 2, stream=stream) as bar:
    bar.update(1, 0, 0.25)
    bar.update(5, 1, 0.5)
    bar.end_epoch(1)
  last = stream.getvalue().split('\r')[-1]
  assert 'epoch 2/2' in last and 'step 5/8' in last
  assert 'reward 0.500' in last and 'left' in last


def test_a_resumed_bar_starts_at_its_step():
  stream = _Terminal()
  with terminal.ProgressBar(8, 2, initial_step=4, stream=stream) as bar:
    bar.update(5, 1, None)
  assert 'step 5/8' in stream.getvalue().split('\r')[-1]  # not 9/8 or 1/8


def test_one_line_per_epoch_without_a_terminal(monkeypatch):
  """3 steps in 6 s from step 1 of 7: 3 steps are left, so 6 s."""
  now = iter([100.0, 106.0])
  monkeypatch.setattr(terminal.time, 'monotonic', lambda: next(now))
  stream = io.StringIO()
  with terminal.ProgressBar(7, 2, initial_step=1, stream=stream) as bar:
    for step in (2, 3, 4):
      bar.update(step, 0, 0.125)
    assert stream.getvalue() == ''
    bar.end_epoch(0)
  assert stream.getvalue() == (
      'epoch 1/2, step 4/7, reward 0.125, 6.0 s elapsed, 6.0 s left\n'
  )


def test_a_missing_reward_keeps_the_last_one():
  stream = io.StringIO()
  with terminal.ProgressBar(2, 1, stream=stream) as bar:
    bar.update(1, 0, 0.5)
    bar.update(2, 0, math.nan)
    bar.end_epoch(0)
  assert 'reward 0.500' in stream.getvalue()


def test_a_bar_of_nowhere():
  with terminal.ProgressBar(2, 1, stream=terminal.Nowhere()) as bar:
    bar.update(1, 0, 0.5)
    bar.end_epoch(0)


@pytest.mark.parametrize(
    'seconds, text',
    [
        (None, 'n/a'),
        (math.inf, 'n/a'),
        (0.04, '0.0 s'),
        (9.96, '10 s'),
        (59.6, '1 min 00 s'),
        (3599.4, '59 min 59 s'),
        (3599.6, '1 h 00 min'),
        (7500, '2 h 05 min'),
    ],
)
def test_seconds_in_words(seconds, text):
  assert terminal.format_seconds(seconds) == text


def test_summary_table_aligns_numbers_right_and_text_left():
  table = terminal.summary_table(
      [('split', 'before', 'tasks'), ('variants', 0.25, 128), ('x', None, 6)]
  )
  assert table.split('\n') == [
      'split     before  tasks',
      '--------  ------  -----',
      'variants   0.250    128',
      'x              -      6',
  ]


def test_summary_table_of_nothing_and_of_ragged_rows():
  assert terminal.summary_table([]) == ''
  with pytest.raises(ValueError, match='same length'):
    terminal.summary_table([('a', 'b'), ('c',)])
