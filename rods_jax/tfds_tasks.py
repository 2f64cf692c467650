"""The tasks as TensorFlow Datasets, read by random access without TensorFlow.

  import tensorflow_datasets as tfds
  from rods_jax import tfds_tasks

  source = tfds.data_source('bfcl_multi_turn/all', split='train')
  task = tfds_tasks.task_of(source[0])

  builder = tfds_tasks.corpus('DIR')  # of python -m experiments.synthesize
  builder.download_and_prepare()
  source = builder.as_data_source('train')

Importing this module makes the names known to tfds. An example is flat: the
calls of all turns stand in one list, so do the tools that arrive later, and how
many belong to each turn beside them. Splits are by scenario: 'train' has
100 of the 200, 'heldout' the others, whatever the category. A corpus is made of
training scenarios only, so it has no other split.
"""

import dataclasses
import itertools
import json
import os
import pathlib
from typing import Any, Iterable, Iterator, Mapping

import numpy as np
import tensorflow_datasets as tfds

from rods_jax import errors
from rods_jax import types
from rods_jax.host import bfcl
from rods_jax.host.synthesis import corpus as corpus_lib
from rods_jax.types import Task, Turn

NUM_TRAIN_SCENARIOS = 100
SPLIT_SEED = 0
FORMAT = 'array_record'


def features() -> tfds.features.FeaturesDict:
  """Of one task; R turns, C calls, N tools that arrive later."""
  texts = tfds.features.Sequence(tfds.features.Text())
  counts = tfds.features.Sequence(np.int32)
  return tfds.features.FeaturesDict({
      'task_id': tfds.features.Text(),
      'parent': tfds.features.Text(),  # '' for a human task
      'category': tfds.features.Text(),
      'scenario': np.int32,
      'classes': texts,
      'excluded': texts,
      'initial_config': tfds.features.Text(),  # JSON
      'user': texts,  # [R]
      'calls': texts,  # [C]
      'calls_per_turn': counts,  # [R]
      'new_tools': texts,  # [N]
      'new_tools_per_turn': counts,  # [R]
  })


def example_of(task: Task) -> dict[str, Any]:
  """The task as an example of `features`."""
  return {
      'task_id': task.task_id,
      'parent': task.parent or '',
      'category': task.category,
      'scenario': task.scenario,
      'classes': list(task.classes),
      'excluded': list(task.excluded),
      'initial_config': json.dumps(task.initial_config),
      'user': [turn.user for turn in task.turns],
      'calls': [c for turn in task.turns for c in turn.ground_truth],
      'calls_per_turn': [len(turn.ground_truth) for turn in task.turns],
      'new_tools': [name for turn in task.turns for name in turn.new_tools],
      'new_tools_per_turn': [len(turn.new_tools) for turn in task.turns],
  }


def task_of(example: Mapping[str, Any]) -> Task:
  """Inverse of example_of, also of what a data source returns."""
  calls = iter(_texts(example['calls']))
  tools = iter(_texts(example['new_tools']))
  turns = tuple(
      Turn(
          user,
          tuple(itertools.islice(calls, int(num_calls))),
          tuple(itertools.islice(tools, int(num_tools))),
      )
      for user, num_calls, num_tools in zip(
          _texts(example['user']),
          example['calls_per_turn'],
          example['new_tools_per_turn'],
          strict=True,
      )
  )
  return Task(
      task_id=_text(example['task_id']),
      category=_text(example['category']),
      scenario=int(example['scenario']),
      classes=tuple(_texts(example['classes'])),
      initial_config=json.loads(_text(example['initial_config'])),
      turns=turns,
      excluded=tuple(_texts(example['excluded'])),
      parent=_text(example['parent']) or None,
  )


def _text(value: Any) -> str:
  return value.decode() if isinstance(value, bytes) else str(value)


def _texts(values: Iterable[Any]) -> list[str]:
  return [_text(value) for value in values]


class _Tasks(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """What both builders share."""

  VERSION = tfds.core.Version('1.0.0')

  def __init__(self, *, file_format: str = FORMAT, **kwargs):
    """Other formats than the default one need TensorFlow."""
    super().__init__(file_format=file_format, **kwargs)

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
        builder=self, description=type(self).__doc__, features=features()
    )

  def _generate_examples(
      self, tasks: Iterable[Task]
  ) -> Iterator[tuple[str, dict[str, Any]]]:
    for task in tasks:
      yield task.task_id, example_of(task)


class BfclMultiTurn(_Tasks):
  """The multi-turn tasks of BFCL V3, of one category or of all four."""

  BUILDER_CONFIGS = [
      tfds.core.BuilderConfig(name=name, description=f'Category: {name}.')
      for name in ('all', *types.CATEGORIES)
  ]

  def _split_generators(self, dl_manager):
    del dl_manager  # All data is in the installed package bfcl-eval.
    name = self.builder_config.name
    tasks = bfcl.load_tasks(types.CATEGORIES if name == 'all' else (name,))
    train, heldout = bfcl.split(
        tasks, 'scenario', NUM_TRAIN_SCENARIOS, SPLIT_SEED
    )
    return {
        'train': self._generate_examples(train.values()),
        'heldout': self._generate_examples(heldout.values()),
    }


@dataclasses.dataclass
class CorpusConfig(tfds.core.BuilderConfig):
  """Names a corpus by its content.

  Attributes:
    folder: that python -m experiments.synthesize has made.
  """

  folder: str = ''


class RodsCorpus(_Tasks):
  """Generated tasks of a folder; see host/synthesis/corpus.py."""

  def _split_generators(self, dl_manager):
    del dl_manager  # It is on disk.
    tasks = corpus_lib.read_tasks(self.builder_config.folder)
    return {'train': self._generate_examples(tasks)}


def corpus(
    folder: str | os.PathLike[str], data_dir: str | None = None
) -> RodsCorpus:
  """The builder of a corpus.

  Args:
    folder: of the corpus. Another content is another dataset, so what was
      prepared of one is never read as the other.
    data_dir: for what tfds prepares; its own default if None.

  Raises:
    UserError: the folder holds no corpus, an unfinished one, or no task.
  """
  manifest = corpus_lib.read_manifest(folder)
  _check_whole(folder, manifest)
  shards = manifest['shards']
  name = corpus_lib.digest(''.join(shard['sha256'] for shard in shards))[:16]
  config = CorpusConfig(name=name, folder=str(pathlib.Path(folder).resolve()))
  return RodsCorpus(config=config, data_dir=data_dir)


def _check_whole(
    folder: str | os.PathLike[str], manifest: Mapping[str, Any]
) -> None:
  counts, n = manifest['counts'], manifest['config']['n']
  done = counts.get('numbers', 0)
  if done < n:
    raise errors.UserError(
        f'{folder} is unfinished, {done} of {n} task numbers are published; '
        'give the command that makes it once more.'
    )
  if not counts.get('tasks', 0):
    raise errors.UserError(
        f'{folder} holds no task: no attempt was accepted; see "reasons" in '
        'its report.json.'
    )
