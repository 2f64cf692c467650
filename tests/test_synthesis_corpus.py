"""Corpora on disk: whole after any kill, continued, and never mixed up."""

import dataclasses
import json
import os

import pytest

from rods_jax import errors
from rods_jax.host.synthesis import corpus
from rods_jax.host.synthesis.records import Rejection, Report
from rods_jax.types import Turn
from tests import worlds

SEEDS = [worlds.make('MathAPI')]
CONFIG = {'n': 8, 'rng_seed': 0}
SHARD = 3  # so the shards hold numbers 0-2, 3-5 and 6-7


def attempted(number):
  """Every third number has no task; the others' tasks all differ."""
  report = Report(attempts=2)
  report.reject(Rejection('plan', 'no chain'))
  task = None
  if number % 3 != 1:
    report.accepted = 1
    turn = Turn(f'Add {number}, "ü".', (f'add(a={number}, b=1)',))
    task = dataclasses.replace(
        SEEDS[0], turns=(turn,), task_id=f'syn_{number}', parent='made'
    )
  return corpus.Attempted(number, task, report, 0.25)


def start(folder, config=None, seeds=None):
  return corpus.Corpus(folder, config or CONFIG, seeds or SEEDS, SHARD)


def fill(folder, until=CONFIG['n']):
  with start(folder) as made:
    for number in range(made.next_number, until):
      made.add(attempted(number))
  return folder


def files(folder):
  """Content of all files that are no lock."""
  return {
      path.name: path.read_bytes()
      for path in folder.iterdir() if path.name != '.lock'
  }  # pyformat: disable


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  return fill(tmp_path_factory.mktemp('whole') / 'corpus')


def test_shards_manifest_and_counts(whole):
  """Numbers 1, 4 and 7 have no task: 2, 2 and 1 tasks in three shards."""
  manifest = corpus.read_manifest(whole)
  assert [shard['tasks'] for shard in manifest['shards']] == [2, 2, 1]
  assert [shard['first_number'] for shard in manifest['shards']] == [0, 3, 6]
  assert manifest['counts'] == {'numbers': 8, 'tasks': 5, 'base': 5}
  assert manifest['seeds'] == ['made'] and manifest['config']['n'] == 8
  tasks = list(corpus.read_tasks(whole))
  assert tasks == [attempted(n).task for n in (0, 2, 3, 5, 6)]
  names = {shard['file'] for shard in manifest['shards']}
  assert files(whole).keys() == names | {'manifest.json'}
  with start(whole) as made:
    assert made.is_done and made.next_number == 8
    assert list(made.tasks()) == tasks
    assert made.report().attempts == 16 and made.report().accepted == 5
    assert made.report().rejected['plan'] == 8
    assert made.times() == [0.75, 0.75, 0.5]


@pytest.mark.parametrize('until', range(9))
def test_continued_after_any_number(until, tmp_path, whole):
  """Stopped before number `until`, the file of the shard in work cut in the
  middle of a line that a kill left."""
  folder = fill(tmp_path / 'corpus', until)
  with start(folder) as made:
    assert made.next_number == until
    assert len(list(made.tasks())) == sum(n % 3 != 1 for n in range(until))
  for path in folder.glob('attempts-*.jsonl'):
    with open(path, 'a', encoding='utf-8') as file:
      file.write('{"number": 7, "ta')
  assert files(fill(folder)) == files(whole)


class Killed(BaseException):
  pass


def test_killed_at_every_step_of_publishing(tmp_path, monkeypatch, whole):
  """Dies before each rename and each removal, then goes on: all is there."""
  steps = {'left': 0}

  def dying(function):
    def run(*args, **kwargs):
      if not steps['left']:
        raise Killed
      steps['left'] -= 1
      return function(*args, **kwargs)

    return run

  moments = 0
  for allowed in range(40):
    folder = tmp_path / f'{allowed}'
    steps['left'] = allowed
    with monkeypatch.context() as patch:
      patch.setattr(os, 'replace', dying(os.replace))
      patch.setattr(corpus.pathlib.Path, 'unlink', dying(
          corpus.pathlib.Path.unlink
      ))  # pyformat: disable
      try:
        fill(folder)
        break
      except Killed:
        moments += 1
    assert files(fill(folder)) == files(whole), allowed
  assert moments >= 9  # two renames and a removal per shard, and the manifest


def refusal(*args, **kwargs):
  with pytest.raises(errors.UserError) as caught:
    start(*args, **kwargs)
  message = str(caught.value)
  assert '\n' not in message
  return message


def test_another_configuration_is_refused_in_one_line(whole):
  before = files(whole)
  message = refusal(whole, {**CONFIG, 'rng_seed': 1})
  assert 'rng_seed is 0 there and 1 here; name a new folder' in message
  assert 'n is 8 there and 9 here' in refusal(whole, {**CONFIG, 'n': 9})
  assert 'x is None there and 1 here' in refusal(whole, {**CONFIG, 'x': 1})
  assert 'other seeds' in refusal(whole, seeds=SEEDS * 2)
  assert files(whole) == before


def test_other_folders_are_refused_in_one_line(tmp_path):
  (tmp_path / 'notes.txt').write_text('mine')
  assert 'exists and holds no corpus' in refusal(tmp_path)
  assert 'exists and holds no corpus' in refusal(tmp_path / 'notes.txt')
  assert list(tmp_path.iterdir()) == [tmp_path / 'notes.txt']


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
  (tmp_path / 'file').write_text('')
  message = refusal(tmp_path / 'file' / 'corpus')
  assert 'cannot be written: Not a directory' in message
  assert 'File name too long' in refusal(tmp_path / ('x' * 999))


@pytest.mark.parametrize('damage', [
    '{"number": 4, "ta', '[1]', '3', '{}', '{"number": 5}', '\0\0',
    '{"number": 4, "task": 3, "report": {}, "cpu_s": 0}',
    json.dumps(attempted(5).to_json()),  # in the place of number 4
])  # pyformat: disable
def test_a_damaged_line_is_named_and_the_file_left_as_it_is(damage, tmp_path):
  """Numbers 3 and 4 stand in lines 1 and 2; half a line at the end is cut."""
  folder = fill(tmp_path / 'corpus', 5)
  path = folder / 'attempts-00001.jsonl'
  first, _ = path.read_text().splitlines()
  path.write_text(f'{first}\n{damage}\n')
  before = files(folder)
  message = refusal(folder)
  assert f'{path} is damaged: line 2 ' in message and 'number 4' in message
  assert files(folder) == before


def test_only_one_process_writes(tmp_path):
  with start(tmp_path / 'corpus'):
    assert 'being written by another' in refusal(tmp_path / 'corpus')
  start(tmp_path / 'corpus').close()


def test_numbers_come_in_order(tmp_path):
  with start(tmp_path / 'corpus') as made:
    with pytest.raises(ValueError, match='number 1 came, not 0'):
      made.add(attempted(1))


def test_faults_of_a_corpus_are_named(tmp_path):
  with pytest.raises(errors.UserError, match='manifest.json is missing'):
    list(corpus.read_tasks(tmp_path))
  folder = fill(tmp_path / 'corpus')
  shard = next(folder.glob('tasks-00001-*.jsonl'))
  text = shard.read_text()
  shard.write_text(text.replace('Add 3', 'Add 9'))
  with pytest.raises(errors.UserError, match='has changed since'):
    list(corpus.read_tasks(folder))
  shard.unlink()
  with pytest.raises(errors.UserError, match='cannot be read'):
    list(corpus.read_tasks(folder))
  manifest = json.loads((folder / 'manifest.json').read_text())
  (folder / 'manifest.json').write_text(json.dumps({**manifest, 'format': 0}))
  with pytest.raises(errors.UserError, match='not of format 1'):
    corpus.read_manifest(folder)
  (folder / 'manifest.json').write_text('{')
  with pytest.raises(errors.UserError, match='is no JSON'):
    corpus.read_manifest(folder)
