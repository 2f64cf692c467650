"""Loading the BFCL tasks, splitting them, and refusing another release."""

import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys

import pytest

from rods_jax.host import bfcl
from rods_jax.host import env
from rods_jax.types import CATEGORIES, Task

FIX = 'pip install --no-deps -r third_party/requirements-no-deps.txt'
ROOT = pathlib.Path(__file__).parent.parent


def test_all_tasks():
  tasks = bfcl.load_tasks()
  assert len(tasks) == 4 * 200
  for category in CATEGORIES:
    ids = [t.task_id for t in tasks.values() if t.category == category]
    assert ids == [f'multi_turn_{category}_{i}' for i in range(200)]
  for task_id, task in tasks.items():
    assert task.task_id == task_id
    assert task_id.endswith(f'_{task.scenario}')
    assert task.parent is None
    assert 1 <= len(task.turns) <= 9
    assert all(turn.user for turn in task.turns)
  assert sum(bool(t.excluded) for t in tasks.values()) == 72
  # Of 734 dialogues' turns, each miss_* category has one more per task.
  turns = {c: 0 for c in CATEGORIES}
  for task in tasks.values():
    turns[task.category] += len(task.turns)
  assert turns == {
      'base': 734, 'miss_func': 934, 'miss_param': 934, 'long_context': 734
  }
  assert Task.from_json(task.to_json()) == task


def test_only_the_categories_asked_for():
  assert set(bfcl.load_tasks(['base'])) == {
      f'multi_turn_base_{i}' for i in range(200)
  }
  with pytest.raises(ValueError, match="Unknown category 'bass'; use some of"):
    bfcl.load_tasks(['bass'])


def test_withheld_tools_arrive_with_the_official_sentence():
  for task in bfcl.load_tasks(['miss_func']).values():
    arrivals = [i for i, turn in enumerate(task.turns) if turn.new_tools]
    assert len(arrivals) == 1
    (arrival,) = arrivals
    assert task.turns[arrival].user == (
        'I have updated some more functions you can choose from. What about '
        'now?'
    )
    names = set(task.turns[arrival].new_tools)
    for i, offer in enumerate(env.offered(task)):
      assert (names <= offer) == (i >= arrival), task.task_id
      assert (not names & offer) == (i < arrival)
      assert not offer & set(task.excluded)


def test_ground_truths_use_tools_on_offer():
  """One call of 4,625 does not, and the list of known faults names it."""
  withheld = {
      task_id: env.replay(task).withheld
      for task_id, task in bfcl.load_tasks().items()
      if env.replay(task).withheld
  }
  assert withheld == {
      'multi_turn_miss_func_49': ("tail(file_name='file3.txt')",)
  }
  assert 'multi_turn_miss_func_49' in bfcl.known_faults()


def test_no_ground_truth_reports_an_error():
  for task in bfcl.load_tasks().values():
    assert env.replay(task).ok_errors == (), task.task_id


@pytest.mark.parametrize('scenario', [153, 154, 181, 188])
def test_soft_failures(scenario):
  """These results say no in fields of their own, which nothing can detect."""
  task = bfcl.load_tasks(['base'])[f'multi_turn_base_{scenario}']
  results = sum(env.replay(task).results, ())
  says_no = ('"verification_status": false', '"authentication_status": false')
  assert sum(any(no in text for no in says_no) for text in results) == 1
  for category in CATEGORIES:
    other = bfcl.load_tasks([category])[f'multi_turn_{category}_{scenario}']
    assert bfcl.fault_of(other).startswith('Soft failure')


def test_scenario_4_tweets_what_no_tool_produces():
  for category in CATEGORIES:
    task = bfcl.load_tasks([category])[f'multi_turn_{category}_4']
    lines = 'Initial report content More unsorted data Unsorted data'
    results = [r for rs in env.replay(task).results for r in rs]
    holders = [r for r in results if lines in r]
    assert len(holders) == 1 and holders[0].startswith('{"id": 2, ')  # tweet
    assert not any(lines in turn.user for turn in task.turns)
    assert bfcl.fault_of(task).startswith('Unsolvable')


def test_known_faults_are_few_and_have_reasons():
  assert set(bfcl.known_faults()) == {
      '4', '153', '154', '181', '188', 'multi_turn_miss_func_49'
  }
  tasks = bfcl.load_tasks()
  assert sum(bfcl.fault_of(t) is not None for t in tasks.values()) == 21
  assert bfcl.fault_of(tasks['multi_turn_base_49']) is None


def test_split_by_scenario_does_not_leak():
  tasks = bfcl.load_tasks()
  train, heldout = bfcl.split(tasks, 'scenario', 100, seed=0)
  assert len(train) == len(heldout) == 400
  assert not set(train) & set(heldout)
  assert not (
      {t.scenario for t in train.values()}
      & {t.scenario for t in heldout.values()}
  )
  assert train == bfcl.split(tasks, 'scenario', 100, seed=0)[0]
  assert train.keys() != bfcl.split(tasks, 'scenario', 100, seed=1)[0].keys()
  # The same scenarios, whichever categories are loaded.
  base, _ = bfcl.split(bfcl.load_tasks(['base']), 'scenario', 100, seed=0)
  assert set(base) == {i for i in train if i.startswith('multi_turn_base')}


def test_random_split_is_per_category_and_leaks():
  tasks = bfcl.load_tasks()
  train, heldout = bfcl.split(tasks, 'random', 30, seed=0)
  for category in CATEGORIES:
    assert sum(t.category == category for t in train.values()) == 30
  assert len(heldout) == 800 - 120
  # Split by scenario would give 0: the paper's split shares dialogues.
  shared = {t.scenario for t in train.values()} & {
      t.scenario for t in heldout.values()
  }
  assert len(shared) > 50


@pytest.mark.parametrize(
    'mode, number, message',
    [
        ('chance', 100, "data.split is 'scenario' or 'random', not 'chance'."),
        ('scenario', 0, 'data.num_train_scenarios must be 1 to 199, not 0.'),
        ('random', 200, 'data.num_train_scenarios must be 1 to 199, not 200.'),
    ],
)
def test_split_refuses(mode, number, message):
  with pytest.raises(ValueError) as error:
    bfcl.split({}, mode, number, seed=0)
  assert str(error.value) == message


def documented(tool: str) -> tuple[str, ...]:
  """Parameter names in the official documentation's order."""
  docs = bfcl._docs()[bfcl.owner(tool)]
  [doc] = [doc for doc in docs if doc['name'] == tool]
  return tuple(doc['parameters']['properties'])


def test_tools():
  names = [name for cls in bfcl.CLASSES for name in bfcl.tool_names(cls)]
  assert len(names) == len(set(names)) == 128
  assert bfcl.owner('cd') == 'GorillaFileSystem'
  assert bfcl.parameters('cd') == ('folder',)
  for name in names:
    assert set(bfcl.parameters(name)) == set(documented(name))


def test_parameter_order_is_the_codes():
  """The docs list purchase_insurance's parameters in another order.

  A positional call read in the docs' order would buy insurance for a booking
  named by its cost.
  """
  assert documented('purchase_insurance')[2:4] == (
      'insurance_cost', 'booking_id'
  )
  assert bfcl.parameters('purchase_insurance')[2:4] == (
      'booking_id', 'insurance_cost'
  )


def test_missing_package(monkeypatch):
  def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)

  monkeypatch.setattr(importlib.metadata, 'version', missing)
  with pytest.raises(bfcl.BfclError) as error:
    bfcl.load_tasks(['base'])
  assert str(error.value) == f'bfcl-eval is not installed; run: {FIX}'


def test_other_version(monkeypatch):
  monkeypatch.setattr(importlib.metadata, 'version', lambda name: '2025.1.1')
  with pytest.raises(bfcl.BfclError) as error:
    bfcl.load_tasks(['base'])
  assert str(error.value) == (
      f'bfcl-eval 2025.1.1 is installed but 2026.3.23 is needed; run: {FIX}'
  )


def test_metadata_without_the_package(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(bfcl.BfclError) as error:
    bfcl.load_tasks(['base'])
  assert str(error.value) == f'bfcl-eval cannot be imported; run: {FIX}'


@pytest.mark.parametrize('folder', ['.', 'possible_answer'])
@pytest.mark.parametrize('damage', ['changed', 'missing'])
def test_damaged_data_file(monkeypatch, tmp_path, folder, damage):
  name = 'BFCL_v4_multi_turn_base.json'
  source = bfcl.package_folder() / 'data'
  copy = tmp_path / 'data'
  (copy / 'possible_answer').mkdir(parents=True)
  for part in ('.', 'possible_answer'):
    (copy / part / name).write_bytes((source / part / name).read_bytes())
  monkeypatch.setattr(bfcl, 'package_folder', lambda: tmp_path)
  assert len(bfcl.load_tasks(['base'])) == 200
  if damage == 'changed':
    with open(copy / folder / name, 'ab') as f:
      f.write(b' ')  # still the same JSON
  else:
    (copy / folder / name).unlink()
  with pytest.raises(bfcl.BfclError) as error:
    bfcl.load_tasks(['base'])
  message = str(error.value)
  assert message.endswith(f'run: {FIX} --force-reinstall')
  assert name in message and '\n' not in message


def test_damaged_docs(monkeypatch, tmp_path):
  folder = tmp_path / 'data' / 'multi_turn_func_doc'
  folder.mkdir(parents=True)
  for path in (bfcl.package_folder() / 'data/multi_turn_func_doc').iterdir():
    (folder / path.name).write_bytes(path.read_bytes())
  monkeypatch.setattr(bfcl, 'package_folder', lambda: tmp_path)
  assert len(bfcl._docs.__wrapped__()) == 8
  path = folder / 'math_api.json'
  path.write_bytes(path.read_bytes().replace(b'Add two', b'Add three'))
  with pytest.raises(bfcl.BfclError, match='multi_turn_func_doc differs from'):
    bfcl._docs.__wrapped__()


def test_requirements_file_is_the_one_the_errors_name():
  text = (ROOT / 'third_party/requirements-no-deps.txt').read_text()
  assert f'bfcl-eval=={bfcl.VERSION}' in text.splitlines()
  assert bfcl.INSTALL == FIX


def test_imports_neither_jax_nor_the_packages_utils():
  """bfcl_eval.utils writes folders into site-packages when imported."""
  code = (
      'import sys\n'
      'from rods_jax.host import bfcl, env\n'
      'task = bfcl.load_tasks(["base"])["multi_turn_base_0"]\n'
      'env.replay(task)\n'
      'bad = {"jax", "bfcl_eval.utils"} & set(sys.modules)\n'
      'sys.exit(str(bad) if bad else 0)\n'
  )
  subprocess.run([sys.executable, '-c', code], check=True, cwd=ROOT)
