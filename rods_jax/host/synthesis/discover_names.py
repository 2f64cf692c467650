"""Files and folders of a seed task, and how the dialogue writes their names.

Many names are plain words ('document', 'temp'). Such a name is exchanged only
where the text means the folder: quoted, next to 'folder' or 'directory', or
after a preposition.
"""

import re
from typing import Any, Iterator

from rods_jax.host.synthesis import entities
from rods_jax.host.synthesis.entities import Form, Slot
from rods_jax.host.synthesis.reading import Argument, Reading

_FILE_PARAMS = frozenset((
    'file_name', 'file_name1', 'file_name2', 'source', 'destination',
    'dir_name', 'folder', 'path', 'name',
))  # pyformat: disable
_PLACE = r'(?:folder|directory|dir|subfolder|subdirectory|folders)'
_BEFORE = (
    'folder ', 'directory ', 'named ', 'called ', 'labeled ', 'in ', 'into ',
    'to ', 'from ', 'within ', 'inside ', 'under ', 'and ', 'is ', 'be ',
    'as ', 'open ', 'at ', 'of ', 'new ',
)  # pyformat: disable
_ORDER = r'\b(?:first|last|second|third|alphabet\w*)\b'
_QUOTES = '\'"`\u2018\u2019\u201c\u201d'


def _tree(node: Any) -> Iterator[tuple[str, str]]:
  """(name, 'file' or 'folder') of everything in a file system's config."""
  if not isinstance(node, dict):
    return
  for name, item in node.items():
    if isinstance(item, dict) and 'type' in item:
      yield name, 'file' if item['type'] == 'file' else 'folder'
      yield from _tree(item.get('contents'))


def find(reading: Reading) -> Iterator[Slot]:
  """Slots of the names that the user says, and of unmentioned ones."""
  config = reading.seed.initial_config.get('GorillaFileSystem')
  if 'GorillaFileSystem' not in reading.seed.classes:
    return
  kinds = dict(_tree((config or {}).get('root')))
  for a in reading.arguments:
    if a.param in _FILE_PARAMS and isinstance(a.value, str):
      kinds.setdefault(a.value, _kind_of_new(a))
  last = len(reading.texts)
  alphabetic = reading.said(r'alphabetically (?:first|last)', last)
  folders = [name for name, kind in kinds.items() if kind == 'folder']
  for name, kind in kinds.items():
    if kind is None or not re.fullmatch(r'\w[\w. \-]*', name):
      continue
    if not re.search(r'[A-Za-z]', name) or _named_in_names(reading, name):
      continue
    if _tail_length_matters(reading, name):
      continue
    uses = _uses(reading, name)
    forms = _file_forms(name) if kind == 'file' else _folder_forms(name)
    joined = '|'.join(f.pattern for f in forms)
    # 'The first file of the list' names no file: what is not said stays.
    if not all(reading.said(joined, a.turn) for a in uses):
      continue
    if kind == 'file' and alphabetic:
      continue
    hint = _kept_words(reading, name, folders)
    if not uses and (hint or reading.said(joined, len(reading.texts))):
      continue
    if not uses and reading.said(_ORDER, len(reading.texts)):
      continue
    yield Slot(kind, name, forms, exact=True, hint=hint)


def _kind_of_new(a: Argument) -> str | None:
  """What a name is that the ground truth brings into the world."""
  if a.tool == 'mkdir' or a.param == 'folder' or a.param == 'path':
    return 'folder' if '/' not in a.value and a.value not in '..' else None
  if a.tool == 'find':
    return None
  return 'file'


def _named_in_names(reading: Reading, name: str) -> bool:
  """Whether the user looks for the word inside other names."""
  pattern = rf"{re.escape(name)}['\"]? in (?:their|its|the)(?: file)? names?"
  return reading.said(pattern, len(reading.texts))


def _tail_length_matters(reading: Reading, name: str) -> bool:
  """long_context keeps some files short by their name; those stay."""
  return reading.seed.category == 'long_context' and any(
      a.tool == 'tail' and a.value == name for a in reading.arguments
  )


def _file_forms(name: str) -> tuple[Form, ...]:
  pattern = entities.NAME_LEFT + re.escape(name) + entities.NAME_RIGHT
  forms = [Form(pattern, 'all' if '.' in name or _odd(name) else 'user')]
  words = entities.stem_of(name).replace('_', ' ').replace('-', ' ')
  if ' ' in words and not any(c.isdigit() for c in words):
    for text, style in ((words.lower(), ''), (words.title(), 'title')):
      forms.append(Form(entities.word(text), 'user', f'spaced:{style}'))
  return tuple(forms)


def _odd(name: str) -> bool:
  """Whether a name cannot be mistaken for a word of the dialogue."""
  return bool(re.search(r'[_\d\-.]|[a-z][A-Z]', name))


def _folder_forms(name: str) -> tuple[Form, ...]:
  if _odd(name):
    pattern = entities.NAME_LEFT + re.escape(name) + entities.NAME_RIGHT
    return (Form(pattern, 'all'),)
  old = re.escape(name)
  before = '|'.join(f'(?<={re.escape(w)})' for w in _BEFORE)
  quote = f'[{_QUOTES}]'
  return (
      Form(f'(?<={quote}){old}(?={quote})', 'user'),
      Form(f'{entities.LEFT}{old}(?={quote}?[ -]{_PLACE}\\b)', 'user'),
      Form(f'(?:{before}){old}{entities.NAME_RIGHT}', 'user'),
      Form(f'(?<=/){old}(?={quote}|/|\\s|$)', 'user'),
  )


def _kept_words(
    reading: Reading, name: str, folders: list[str]
) -> tuple[str, ...]:
  """Lower-case words of a name that the dialogue uses on their own."""
  stem = entities.stem_of(name)
  spaced = stem.replace('_', ' ').replace('-', ' ')
  text = ' '.join(reading.texts)
  for form in (name, stem, spaced):
    text = re.sub(re.escape(form), ' ', text, flags=re.IGNORECASE)
  for folder in folders:
    if folder != name:
      for form in _folder_forms(folder):
        text = re.sub(form.pattern, ' ', text)
  looked_for = [
      a.value.lower() for a in reading.arguments
      if a.tool == 'find' and a.param == 'name' and isinstance(a.value, str)
      and a.value != name
  ]  # pyformat: disable
  kept = []
  for part in entities.name_parts(stem):
    low = part.lower()
    stem_of_word = low[: max(4, len(low) - 2)]  # 'archive' for 'archived'
    spoken = len(low) > 2 and re.search(
        rf'\b{stem_of_word}\w{{0,3}}\b', text, re.IGNORECASE
    )
    if low.isalpha() and (spoken or any(w in low for w in looked_for)):
      kept.append(low)
  return tuple(kept)


def _uses(reading: Reading, value: Any) -> list[Argument]:
  return [
      a for a in reading.arguments
      if a.value == value
      or (isinstance(a.value, str) and '/' in a.value
          and value in a.value.split('/'))
  ]  # pyformat: disable
