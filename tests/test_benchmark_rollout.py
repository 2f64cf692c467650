"""The rollout benchmark with a tiny model: all sides play the same dialogues."""

import json

import numpy as np
import pytest

from experiments.benchmarks import rollout
from experiments.benchmarks import workload

TINY = workload.SCALES['tiny']


@pytest.fixture(scope='module')
def found(tmp_path_factory):
  """(what is printed with --json, what is in the file)."""
  file = tmp_path_factory.mktemp('benchmark') / 'out.json'
  written = []

  def write(results):
    written.append(json.loads(json.dumps(results)))
    file.write_text(json.dumps(results))

  benchmark = rollout.Benchmark(TINY, write)
  benchmark.run(['engine', 'turns', 'cached', 'synchronous', 'overlap'])
  return benchmark.results, written


def test_all_sides_sample_the_same_tokens(found):
  """Greedily, from the same weights: each row equal, token for token.

  A wrong mask or position of the batched baseline would show here.
  """
  results, _ = found
  assert results['turns']['rows_equal_to_ours'] == 1
  assert results['cached']['rows_equal_to_ours'] == 1
  lengths = workload.Dialogues(TINY, 0.7).lengths
  assert lengths.shape == (6, 4)  # 2 tasks x 3 samples; 2 turns of 2 messages
  assert results['engine']['sampled_tokens'] == lengths.sum()
  assert results['cached']['sampled_tokens'] == lengths.sum()
  assert results['turns']['sampled_tokens'] == lengths[: TINY.few].sum()


def test_steps_and_utilization(found):
  """A batch pays for its longest message: steps by hand; others need fewer."""
  both = found[0]['synchronous']
  lengths = workload.Dialogues(TINY, 1.0).lengths
  assert lengths.std() > 1
  steps = sum(
      lengths[first : first + TINY.slots].max(axis=0).sum()
      for first in range(0, TINY.total, TINY.slots)
  )
  slow, fast = both['synchronous'], both['continuous']
  assert slow['steps'] == steps > fast['steps']
  assert slow['utilization'] == lengths.sum() / (steps * TINY.slots)
  assert fast['utilization'] > slow['utilization']
  assert fast['programs_after_warm_up'] == 0
  assert slow['programs'] == fast['programs'] <= 12


def test_each_part_is_written_when_it_is_there(found):
  _, written = found
  assert [len(w) - 1 for w in written] == [1, 2, 3, 4, 5]  # and the numbers
  assert {'over_turns (5)', 'over_cached (2)', 'utilization (0.9)'} <= set(
      written[-1]['numbers']
  )


def test_numbers_by_hand():
  made = rollout.numbers({
      'engine': {
          'tokens_per_s': 100.0, 'tokens_per_cpu_s': 60.0, 'utilization': 0.5,
          'host_share': 0.01, 'programs_after_warm_up': 0,
      },
      'turns': {'tokens_per_s': 10.0, 'tokens_per_cpu_s': 20.0},
      'synchronous': {
          'continuous': {'tokens_per_s': 100.0, 'steps': 4},
          'synchronous': {'tokens_per_s': 50.0, 'steps': 12},
      },
      'small': {'idle_share': 0.02, 'host_share': 0.1},
      'floor': {'step_over_floor': 3.0},
  })
  assert made == {
      'over_turns (5)': 10.0, 'over_turns, CPU time': 3.0,
      'over_synchronous (1.7)': 2.0, 'over_synchronous, steps': 3.0,
      'utilization (0.9)': 0.5, 'host_share (0.05)': 0.01,
      'programs later (0)': 0, 'small: waits_for_host (0.05)': 0.02,
      'small: host_at_work': 0.1, 'small: step_over_floor (2)': 3.0,
  }


def test_an_unknown_part_is_named(capsys):
  with pytest.raises(SystemExit):
    rollout.parse(['--parts=engine,speed'])
  assert "no part 'speed'" in capsys.readouterr().err


def test_siblings_share_their_prompt_and_nothing_else():
  dialogues = workload.Dialogues(TINY, 0.7)
  assert dialogues.piece(0, 0) == dialogues.piece(2, 0)
  assert dialogues.piece(0, 0) != dialogues.piece(3, 0)  # another task
  assert dialogues.piece(0, 1) != dialogues.piece(1, 1)  # tool results
  assert dialogues.piece(0, 2) == dialogues.piece(1, 2)  # the user's words
  assert np.unique(dialogues.lengths).size > 2
