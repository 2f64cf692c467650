"""Tasks as a data set: the same tasks, by random access, no TensorFlow."""

import dataclasses
import json
import sys

import pytest
import tensorflow_datasets as tfds

from rods_jax import errors
from rods_jax import tfds_tasks
from rods_jax.host import bfcl
from tests import test_synthesis_corpus as corpora

TASKS = bfcl.load_tasks()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Where data sets are prepared; TensorFlow stays out of it."""
  yield tmp_path_factory.mktemp('tfds')
  assert 'tensorflow' not in sys.modules


@pytest.fixture(scope='module')
def sources(folder):
  """Of the tasks where a function is missing: split -> data source."""
  return {
      split: tfds.data_source(
          'bfcl_multi_turn/miss_func', split=split, data_dir=str(folder)
      )
      for split in ('train', 'heldout')
  }


def test_an_example_is_the_task_and_nothing_else():
  """Of all 800, floats, nested states and non-ASCII letters included."""
  for task in TASKS.values():
    again = tfds_tasks.task_of(tfds_tasks.example_of(task))
    assert again == task and again.content_hash() == task.content_hash()


def test_turns_keep_their_calls_and_tools():
  """One list of calls, cut by counts: the turn that waits for a tool has 0."""
  task = TASKS['multi_turn_miss_func_0']
  example = tfds_tasks.example_of(task)
  assert sum(example['calls_per_turn']) == len(example['calls'])
  assert 0 in example['calls_per_turn']
  assert sum(example['new_tools_per_turn']) == 1
  assert set(example) == set(tfds_tasks.features())


def test_prepared_tasks_are_the_packages(sources):
  found = [tfds_tasks.task_of(e) for s in sources.values() for e in s]
  assert {task.task_id: task for task in found} == {
      name: task for name, task in TASKS.items()
      if task.category == 'miss_func'
  }  # pyformat: disable
  assert len(found) == 200


def test_random_access(sources):
  """Any place in any order, the same example each time."""
  source = sources['train']
  assert len(source) == 100
  inorder = [example['task_id'] for example in source]
  assert len(set(inorder)) == 100
  for place in (99, 0, 57, 0):
    assert source[place]['task_id'] == inorder[place]
  assert [e['task_id'] for e in source.__getitems__([5, 3])] == [
      inorder[5], inorder[3]
  ]  # pyformat: disable


def test_splits_are_by_scenario(sources):
  """A split by chance would leak: index i is one scenario four times."""
  train, heldout = (
      {int(e['scenario']) for e in sources[s]} for s in ('train', 'heldout')
  )
  assert not train & heldout and train | heldout == set(range(200))
  wanted, _ = bfcl.split(TASKS, 'scenario', 100, 0)
  assert train == {task.scenario for task in wanted.values()}


def test_a_config_per_category_and_one_of_all():
  assert list(tfds_tasks.BfclMultiTurn.builder_configs) == [
      'all', 'base', 'miss_func', 'miss_param', 'long_context'
  ]  # pyformat: disable
  with pytest.raises(ValueError, match='easy'):
    tfds.builder('bfcl_multi_turn/easy')


def test_a_corpus(folder, tmp_path):
  """Five tasks of eight numbers; another corpus is another data set."""
  made = corpora.fill(tmp_path / 'corpus')
  builder = tfds_tasks.corpus(made, str(folder))
  builder.download_and_prepare()
  source = builder.as_data_source('train')
  found = {t.task_id: t for t in map(tfds_tasks.task_of, source)}
  assert found == {
      f'syn_{n}': corpora.attempted(n).task for n in (0, 2, 3, 5, 6)
  }
  assert all(task.parent == 'made' for task in found.values())
  shorter = tmp_path / 'shorter'
  with corpora.start(shorter, {'n': 3}) as other:
    for number in range(3):
      other.add(corpora.attempted(number))
  assert tfds_tasks.corpus(shorter, str(folder)).info.full_name != (
      builder.info.full_name
  )


def test_a_folder_without_a_corpus_is_named(tmp_path):
  with pytest.raises(errors.UserError, match='holds no corpus'):
    tfds_tasks.corpus(tmp_path)


def test_an_unfinished_or_empty_corpus_is_one_line(tmp_path):
  """Eight numbers in shards of three: after 2 none is published, after 7 six
  are. Number 1 has no task."""
  for until, done in ((2, 0), (7, 6)):
    made = corpora.fill(tmp_path / f'{until}', until)
    with pytest.raises(errors.UserError, match=f'unfinished, {done} of 8 '):
      tfds_tasks.corpus(made)
  with corpora.start(tmp_path / 'none', {'n': 1}) as made:
    without = dataclasses.replace(corpora.attempted(0), task=None)
    made.add(without)
  with pytest.raises(errors.UserError, match='holds no task') as caught:
    tfds_tasks.corpus(tmp_path / 'none')
  assert '\n' not in str(caught.value)


def test_the_state_is_json_as_it_came():
  """Keys in their order: the simulators number things by it."""
  task = TASKS['multi_turn_base_184']
  text = tfds_tasks.example_of(task)['initial_config']
  assert list(json.loads(text)) == list(task.initial_config)
