"""The BFCL multi-turn tasks and tool docs of the installed bfcl-eval.

Reads the package's data files only; `bfcl_eval.utils` is never imported, since
it writes folders into site-packages. About a third of the entries changed
between releases, so version and hashes are checked before anything is used.
Source: github.com/ShishirPatil/gorilla, Apache-2.0, multi-turn of BFCL V3.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import pathlib
import types
from typing import Any, Iterable, Mapping

import numpy as np

from rods_jax import rng
from rods_jax.types import CATEGORIES, Task, Turn

VERSION = '2026.3.23'
INSTALL = 'pip install --no-deps -r third_party/requirements-no-deps.txt'
NUM_SCENARIOS = 200

# What the official runner says in a user's place when withheld tools arrive.
NEW_TOOLS_PROMPT = (
    'I have updated some more functions you can choose from. What about now?'
)

# Simulator class -> its module and, with .json, its documentation file.
_MODULES = {
    'GorillaFileSystem': 'gorilla_file_system',
    'MathAPI': 'math_api',
    'MessageAPI': 'message_api',
    'TwitterAPI': 'posting_api',
    'TicketAPI': 'ticket_api',
    'TradingBot': 'trading_bot',
    'TravelAPI': 'travel_booking',
    'VehicleControlAPI': 'vehicle_control',
}
CLASSES = tuple(_MODULES)

# sha256 of the questions and of the ground truths, by category.
_HASHES = {
    'base': (
        '1a21a995d06fd6f20ba55de7bced30ef953ec35e998f502ec2ecf4d66ef1c43a',
        '1fee67823b317571649177dd89d63969feaae4e810cc7448ee55ba797fb7c8fc',
    ),
    'miss_func': (
        '87d28ce10e37d864b72de85d5732eef2a867b241d6c1c99b4ae682c9e3ea921c',
        '69e679b806d1c871b05393a4b95583bb973248e5b8d96c2d7f4ca05e29fc32e6',
    ),
    'miss_param': (
        'f0c66dda3795f5f53e3e1c0cc8ba0246b6761c8f58bdba8317203bf451ab8838',
        '59c442901779e2c31c33abcd566d032e03736e5ad8069de2fe05489873046ecf',
    ),
    'long_context': (
        '78c3268c5cc8e97c0f4ec6c811b3b9a2bba14323b1830b7a874b06d822749324',
        'e82aa0e839c39d23c64a05834f7ae024d7c9738ec21738ecee78dc876e3d0d18',
    ),
}

# sha256 of the eight documentation files, one after the other.
_DOCS_HASH = '7d3ca1588976fc7439e4a3d487c4177d64cb49cb9f7079331378246eb7f0c9d3'


class BfclError(RuntimeError):
  """bfcl-eval is missing or is not the release this project was built on."""


def package_folder() -> pathlib.Path:
  """Folder of the installed bfcl_eval, its version checked.

  Raises:
    BfclError: one line that says what to install.
  """
  try:
    version = importlib.metadata.version('bfcl-eval')
  except importlib.metadata.PackageNotFoundError:
    raise BfclError(f'bfcl-eval is not installed; run: {INSTALL}') from None
  if version != VERSION:
    raise BfclError(
        f'bfcl-eval {version} is installed but {VERSION} is needed; '
        f'run: {INSTALL}'
    )
  spec = importlib.util.find_spec('bfcl_eval')
  if spec is None or not spec.submodule_search_locations:
    raise BfclError(f'bfcl-eval cannot be imported; run: {INSTALL}')
  return pathlib.Path(spec.submodule_search_locations[0])


def load_tasks(categories: Iterable[str] = CATEGORIES) -> dict[str, Task]:
  """All tasks of the categories by task_id, in the files' order.

  Raises:
    BfclError: package missing, another version, or changed data files.
    ValueError: an unknown category.
  """
  tasks = {}
  for category in categories:
    if category not in CATEGORIES:
      raise ValueError(
          f'Unknown category {category!r}; use some of {", ".join(CATEGORIES)}.'
      )
    for question, answer in zip(*_entries(category), strict=True):
      task = _task(category, question, answer)
      tasks[task.task_id] = task
  return tasks


def _entries(category: str) -> list[list[dict[str, Any]]]:
  """Questions and ground truths of a category, hashes checked."""
  data = package_folder() / 'data'
  name = f'BFCL_v4_multi_turn_{category}.json'
  folders = (data, data / 'possible_answer')
  out = []
  for folder, digest in zip(folders, _HASHES[category]):
    raw = _bytes(folder / name)
    _check(raw, digest, f'{folder.name}/{name}')
    out.append([json.loads(line) for line in raw.splitlines()])
  return out


def _bytes(path: pathlib.Path) -> bytes:
  try:
    return path.read_bytes()
  except OSError as e:
    raise BfclError(
        f'bfcl-eval data file {path.parent.name}/{path.name} cannot be read '
        f'({e.strerror}); run: {INSTALL} --force-reinstall'
    ) from None


def _check(raw: bytes, digest: str, shown: str) -> None:
  if hashlib.sha256(raw).hexdigest() != digest:
    raise BfclError(
        f'bfcl-eval data file {shown} differs from release {VERSION}; run: '
        f'{INSTALL} --force-reinstall'
    )


def _task(
    category: str, question: Mapping[str, Any], answer: Mapping[str, Any]
) -> Task:
  missed = question.get('missed_function', {})
  turns = []
  for i, (messages, calls) in enumerate(
      zip(question['question'], answer['ground_truth'], strict=True)
  ):
    # Every message of these files is one user message, or there is none where
    # withheld tools arrive.
    user = messages[0]['content'] if messages else NEW_TOOLS_PROMPT
    turns.append(Turn(user, tuple(calls), tuple(missed.get(str(i), ()))))
  return Task(
      task_id=question['id'],
      category=category,
      scenario=int(question['id'].rsplit('_', 1)[1]),
      classes=tuple(question['involved_classes']),
      initial_config=question['initial_config'],
      turns=tuple(turns),
      excluded=tuple(question.get('excluded_function', ())),
  )


def split(
    tasks: Mapping[str, Task], mode: str, num_train_scenarios: int, seed: int
) -> tuple[dict[str, Task], dict[str, Task]]:
  """Divides tasks into training and held-out ones.

  Index i is the same scenario in all four categories, so only 'scenario'
  keeps held-out dialogues unseen; 'random' is what the RODS paper does.

  Args:
    tasks: by task_id.
    mode: 'scenario' draws scenario indices, the same for all categories;
      'random' draws that many tasks of every category on its own.
    num_train_scenarios: 1 to 199; the rest is held out.
    seed: base of the named random stream.

  Returns:
    (train, heldout), each in the order of `tasks`.

  Raises:
    ValueError: unknown mode or number out of range.
  """
  if mode not in ('scenario', 'random'):
    raise ValueError(f"data.split is 'scenario' or 'random', not {mode!r}.")
  if not 0 < num_train_scenarios < NUM_SCENARIOS:
    raise ValueError(
        f'data.num_train_scenarios must be 1 to {NUM_SCENARIOS - 1}, not '
        f'{num_train_scenarios}.'
    )
  chosen = {}
  for i, category in enumerate(CATEGORIES):
    stream = (0,) if mode == 'scenario' else (1, i)
    order = rng.host(seed, 'split', *stream).permutation(NUM_SCENARIOS)
    chosen[category] = set(np.sort(order[:num_train_scenarios]).tolist())
  train, heldout = {}, {}
  for task_id, task in tasks.items():
    part = train if task.scenario in chosen[task.category] else heldout
    part[task_id] = task
  return train, heldout


@functools.cache
def _docs() -> Mapping[str, tuple[dict[str, Any], ...]]:
  folder = package_folder() / 'data' / 'multi_turn_func_doc'
  files = [_bytes(folder / f'{module}.json') for module in _MODULES.values()]
  _check(b''.join(files), _DOCS_HASH, folder.name)
  return types.MappingProxyType({
      class_name: tuple(json.loads(line) for line in raw.splitlines())
      for class_name, raw in zip(CLASSES, files)
  })


@functools.cache
def _owners() -> Mapping[str, str]:
  """Tool name -> class. The 128 names are unique over the classes."""
  return types.MappingProxyType(
      {doc['name']: cls for cls, docs in _docs().items() for doc in docs}
  )


@functools.cache
def tool_names(class_name: str) -> tuple[str, ...]:
  """Documented tools of a class, in the documentation's order."""
  return tuple(doc['name'] for doc in _docs()[class_name])


def owner(name: str) -> str:
  """The class that a tool belongs to; KeyError if there is no such tool."""
  return _owners()[name]


@functools.cache
def parameters(name: str) -> tuple[str, ...]:
  """Parameter names of a tool in the order that positional calls use.

  Taken from the code: for purchase_insurance the documentation lists them in
  another order, and a positional call read by it would be wrong.
  """
  method = getattr(simulator(owner(name)), name)
  return tuple(inspect.signature(method).parameters)[1:]


@functools.cache
def tool_doc(name: str) -> Mapping[str, Any]:
  """The documentation of a tool as JSON. Shared: do not change it."""
  docs = _docs()[owner(name)]
  return next(doc for doc in docs if doc['name'] == name)


@functools.cache
def parameter_text(name: str, parameter: str) -> str:
  """All that the documentation says of a parameter; '' if it is not there."""
  found = tool_doc(name)['parameters']['properties'].get(parameter, {})
  return json.dumps(found, ensure_ascii=False)


@functools.cache
def simulator(class_name: str) -> type:
  """The simulator class itself."""
  package_folder()
  return getattr(
      importlib.import_module(
          'bfcl_eval.eval_checker.multi_turn_eval.func_source_code.'
          + _MODULES[class_name]
      ),
      class_name,
  )


@functools.cache
def known_faults() -> Mapping[str, str]:
  """Faults of the data: task_id or scenario index (as text) -> reason."""
  path = pathlib.Path(__file__).parent.parent / 'assets' / 'known_faults.json'
  return types.MappingProxyType(json.loads(path.read_text(encoding='utf-8')))


def fault_of(task: Task) -> str | None:
  """Why this task's ground truth cannot be trusted, or None.

  Faults of a scenario hold for its tasks in all four categories; generated
  tasks were verified on their own.
  """
  if task.origin == 'generated':
    return None
  faults = known_faults()
  return faults.get(task.task_id) or faults.get(str(task.scenario))
