"""Numbers that are results, though the user says the same number elsewhere."""

import numpy as np
import pytest

from rods_jax.host import bfcl, tool_calls
from rods_jax.host.synthesis import pipeline, trace
from rods_jax.types import Task

TASKS = bfcl.load_tasks(('base', 'miss_param'))


def variants(task_id):
  """Executed variants; those that the gate drops are None."""
  made = [
      pipeline.make_variant(TASKS[task_id], np.random.default_rng(i), 3)
      for i in range(6)
  ]
  assert sum(isinstance(v, Task) for v in made) >= 5
  return [trace.run(v) for v in made if isinstance(v, Task)]


@pytest.mark.parametrize('category', ['base', 'miss_param'])
def test_a_tweet_keeps_the_pressures_that_it_reports(category):
  """The user of scenario 75 has 30 gallons filled in, and two tires have 30
  PSI. Both were exchanged together, and the tweet reported 37 PSI of 30."""
  for executed in variants(f'multi_turn_{category}_75'):
    shown, tweet = (
        next(s for s in executed.steps if s.call.name == name)
        for name in ('check_tire_pressure', 'post_tweet')
    )
    keys = ('frontLeft', 'frontRight', 'rearLeft', 'rearRight')
    wanted = [shown.parsed[f'{key}TirePressure'] for key in keys]
    words = tweet.call.kwargs['content'].replace(',', '').split()
    said = [float(w) for w in words if w[0].isdigit()]
    assert said == [round(value) for value in wanted]


@pytest.mark.parametrize('category', ['base', 'miss_param'])
def test_the_mean_of_three_is_of_three(category):
  """Scenario 15 counts 3 lines, 16 words and 60 letters, and asks for the mean
  'of the three'. The word was taken for the count of lines: five, and 5."""
  for executed in variants(f'multi_turn_{category}_15'):
    counts = [s.parsed['count'] for s in executed.steps if s.call.name == 'wc']
    (mean,) = (s.call for s in executed.steps if s.call.name == 'mean')
    assert mean.kwargs['numbers'] == counts and len(counts) == 3
    last = executed.task.turns[-1]
    assert 'three' in last.user
    assert tool_calls.parse_ground_truth(last.ground_truth[-1]) == mean
