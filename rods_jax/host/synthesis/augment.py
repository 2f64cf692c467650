"""Missing-function and missing-parameter forms of a task.

In both forms one turn cannot be answered as it stands, its ground truth is
empty, and the next turn brings what was missing: the withheld tool, or the
value that was blurred.
"""

import dataclasses
import re
from typing import Iterator

import numpy as np

from rods_jax.host import env, tool_calls
from rods_jax.host.synthesis.paraphrase import NEW_TOOLS_TEXT
from rods_jax.host.synthesis.reading import scalars
from rods_jax.host.synthesis.records import Rejection
from rods_jax.types import Task, Turn

CATEGORIES = ('miss_func', 'miss_param')
STAGE = 'augment'

_FILE = (
    r'(?:(?:the|a|an|my|our|this) )?(?:(?:file|document) )?'
    r'(?:(?:titled|named|called|labeled) )?'
)
_FOLDER = (
    r'(?:(?:the|a|an|my|our|this) )?(?:(?:folder|directory) )?'
    r'(?:(?:titled|named|called|labeled) )?'
)
_AFTER_FOLDER = r'(?: (?:folder|directory))?'
# Parameter -> (pattern around VALUE, what stands there instead, supply).
_BLURS = {
    'file_name': (_FILE + 'VALUE', 'one of the files', 'The file is VALUE.'),
    'source': (_FILE + 'VALUE', 'one of the files', 'I mean the file VALUE.'),
    'folder': (
        _FOLDER + 'VALUE' + _AFTER_FOLDER, 'one of the folders',
        'The folder is VALUE.',
    ),
    'dir_name': (
        _FOLDER + 'VALUE' + _AFTER_FOLDER, 'a new folder',
        'The name of the folder is VALUE.',
    ),
    'pattern': (
        r'(?:(?:the|a|this) )?(?:(?:keyword|word|term|phrase) )?VALUE',
        'a certain word', 'The word is VALUE.',
    ),
    'password': (
        r'(?<=password is )VALUE', 'the usual one', 'The password is VALUE.',
    ),
    'access_token': (
        r'(?<=access token )VALUE', 'I was given', 'The access token is VALUE.',
    ),
    'card_id': (
        r'(?<=card )(?:with |labeled |registered )*(?:the )?(?:id )?VALUE',
        'I have in mind', 'The id of the card is VALUE.',
    ),
    'amount': (
        r'VALUE(?= (?:\w+ )?(?:shares|units|stocks))', 'some',
        'The number is VALUE.',
    ),
    'fuelAmount': (
        r'VALUE(?= (?:gallons|liters))', 'some', 'I want exactly VALUE.',
    ),
    'liter': (
        r'(?:around )?VALUE(?= liters)', 'some',
        'I want exactly VALUE liters.',
    ),
    'budget_limit': (
        r'\$?VALUE(?! \w+ equivalent)', 'a certain amount',
        'The amount is VALUE.',
    ),
    'message': (
        r'(?<=saying )VALUE', 'something', 'The message should be VALUE.',
    ),
    'comment_content': (
        r'(?<=comment )VALUE', 'of some kind', 'The comment is VALUE.',
    ),
    'receiver_id': (
        r'(?:the )?(?:individual with )?(?:(?:user )?(?:id|ID) )VALUE',
        'somebody I know',
        'The user id is VALUE.',
    ),
    'ticket_id': (
        r'(?:(?:the|my|a) )?ticket (?:number |id |ID )?#?VALUE',
        'one of the tickets',
        'The ticket id is VALUE.',
    ),
}  # pyformat: disable
# After these words the blurred phrase would not be English.
_NOT_AFTER = frozenset((
    'a', 'an', 'the', 'as', 'be', 'is', 'it', 'call', 'called', 'dubbed',
    'name', 'named', 'titled', 'labeled', 'new', 'file', 'first', 'create',
    'folder', 'directory', 'our', 'my', 'your', 'there', 'this', 'that',
    'mysterious', 'earlier', 'additional', 'precisely', 'exactly',
))  # pyformat: disable
_NOT_BEFORE = frozenset(('file', 'files', 'folder', 'directory', 'document'))
_MAKES = {'touch': 'a new file', 'rmdir': 'one of the folders'}
_QUOTE = '[\'"\u2018\u2019\u201c\u201d]?'
_LEADS = ('', 'Sorry, I forgot to say. ', 'Right. ', 'My mistake. ')


def base_form(task: Task) -> Task | Rejection:
  """The task with its empty turns merged into the turns that complete them."""
  turns: list[Turn] = []
  pending: Turn | None = None
  for turn in task.turns:
    if not turn.ground_truth:
      if pending is not None:
        return Rejection(STAGE, 'two empty turns in a row')
      pending = turn
      continue
    if pending is None:
      turns.append(turn)
      continue
    text = pending.user
    if turn.user != NEW_TOOLS_TEXT:
      text = f'{pending.user} {turn.user}'
    turns.append(Turn(text, turn.ground_truth))
    pending = None
  if pending is not None:
    return Rejection(STAGE, 'the last turn is empty')
  return dataclasses.replace(task, category='base', turns=tuple(turns))


def move(task: Task, rng: np.random.Generator) -> Task | Rejection:
  """The same dialogue with the empty turn somewhere else."""
  base = base_form(task)
  if isinstance(base, Rejection):
    return base
  if len(base.turns) != len(task.turns) - 1:
    return Rejection(STAGE, 'not exactly one empty turn')
  return make(base, task.category, rng)


def make(
    base: Task, category: str, rng: np.random.Generator
) -> Task | Rejection:
  """A miss_func or miss_param form of a task without empty turns."""
  if not all(turn.ground_truth for turn in base.turns):
    return Rejection(STAGE, 'a turn is empty already')
  if category == 'miss_func':
    return miss_func(base, rng)
  if category == 'miss_param':
    return miss_param(base, rng)
  return Rejection(STAGE, f'{category} is no augmented category')


def miss_func(base: Task, rng: np.random.Generator) -> Task | Rejection:
  """Withholds a tool in the first turn that needs it; it comes one turn later.

  Args:
    base: a task without empty turns.
    rng: chooses among the tools that no earlier turn needs.
  """
  options = []
  earlier: set[str] = set()
  for index, turn in enumerate(base.turns):
    names = {text.partition('(')[0] for text in turn.ground_truth}
    options += [(index, name) for name in sorted(names - earlier)]
    earlier |= names
  if not options:
    return Rejection(STAGE, 'no tool to withhold')
  index, name = options[int(rng.integers(len(options)))]
  old = base.turns[index]
  return _split(
      base,
      'miss_func',
      index,
      Turn(old.user, ()),
      Turn(NEW_TOOLS_TEXT, old.ground_truth, (name,)),
  )


def miss_param(base: Task, rng: np.random.Generator) -> Task | Rejection:
  """Blurs a value that only one turn's text holds; the next turn supplies it.

  A value that occurs anywhere earlier, in a text or in a result, could be
  found without asking, so it is not blurred.
  """
  options = list(_blurs(base))
  if not options:
    return Rejection(STAGE, 'no value to blur')
  index, blurred, supply = options[int(rng.integers(len(options)))]
  lead = _LEADS[int(rng.integers(len(_LEADS)))]
  return _split(
      base,
      'miss_param',
      index,
      Turn(blurred, ()),
      Turn(lead + supply, base.turns[index].ground_truth),
  )


def _split(
    base: Task, category: str, index: int, first: Turn, second: Turn
) -> Task:
  turns = (*base.turns[:index], first, second, *base.turns[index + 1 :])
  return dataclasses.replace(base, category=category, turns=turns)


def _blurs(base: Task) -> Iterator[tuple[int, str, str]]:
  """(turn, blurred text, supplying text) of every value that can be blurred."""
  results = env.replay(base).results
  seen = ''
  for index, turn in enumerate(base.turns):
    done = set()
    for tool, name, value in _values(turn):
      if (name, value) in done or value in seen:
        continue
      done.add((name, value))
      pattern, instead, supply = _BLURS[name]
      instead = _MAKES.get(tool, instead)
      quoted = f'{_QUOTE}(?<!\\w){re.escape(value)}(?!\\w|\\.\\w){_QUOTE}'
      found = list(re.finditer(pattern.replace('VALUE', quoted), turn.user))
      if len(found) == 1 and turn.user.count(value) == 1:
        start, end = found[0].span()
        noun = 'password' not in name and 'token' not in name
        if noun and not _fits(turn.user, start, end):
          continue
        text = turn.user[:start] + instead + turn.user[end:]
        shown = value if value.isdigit() else f"'{value}'"
        if start == 0:
          text = text[:1].upper() + text[1:]
        yield index, text, supply.replace('VALUE', shown)
    seen += turn.user + ' '.join(results[index])


def _fits(text: str, start: int, end: int) -> bool:
  """Whether a noun phrase may stand between the words around the span."""
  before = re.findall(r"[\w']+", text[:start])
  after = re.findall(r"[\w']+", text[end:])
  return not (
      before and before[-1].lower() in _NOT_AFTER
      or after and after[0].lower() in _NOT_BEFORE
  )  # pyformat: disable


def _values(turn: Turn) -> Iterator[tuple[str, str, str]]:
  """(tool, parameter, value as text) of arguments that may be blurred."""
  for text in turn.ground_truth:
    call = tool_calls.parse_ground_truth(text)
    for path, value in scalars(call.kwargs):
      if path[0] not in _BLURS or isinstance(value, bool) or len(path) > 1:
        continue
      if isinstance(value, float) and value.is_integer():
        value = int(value)
      text = str(value)
      if text and "'" not in text and text not in ('.', '..'):
        yield call.name, path[0], text
