"""Entities of a dialogue: what may be exchanged, by what, and how it looks.

A `Slot` is one entity of a seed task with all its written forms. `sample`
draws another value of the same kind; `render` writes that value in the style
of a form, so that '$5,000', 'five' and '5000.0' each keep their own look.
"""

import dataclasses
import datetime
import math
import re
import string
from typing import Any

import numpy as np

from rods_jax.host.synthesis import places, pools

LONG_TEXT = 170  # characters; a longer text is not decorated
LEFT = r'(?<![A-Za-z0-9_])'
RIGHT = r'(?![A-Za-z0-9_])'
NAME_LEFT = r'(?<![A-Za-z0-9_.\-])'
NAME_RIGHT = r'(?![A-Za-z0-9_\-]|\.[A-Za-z0-9])'


@dataclasses.dataclass(frozen=True)
class Form:
  """One way in which an entity is written.

  Attributes:
    pattern: regular expression that finds it.
    scope: 'all' for texts, arguments and configuration; 'user' for what the
      user says and for sentences in arguments.
    style: how `render` writes a new value in its place.
  """

  pattern: str
  scope: str = 'all'
  style: str = 'same'

  @property
  def size(self) -> int:
    """Characters that the pattern takes up in a text, roughly."""
    return len(re.sub(r'\(\?<?[!=](?:[^()\\]|\\.)*\)', '', self.pattern))


@dataclasses.dataclass(frozen=True)
class Slot:
  """One exchangeable entity.

  Attributes:
    kind: what it is; decides the pool.
    value: its canonical value in the seed.
    forms: how it is written.
    exact: True: an argument, key or value equal to `value` is replaced even
      where no form matches.
    path: configuration path, for slots that only live in the initial state.
    hint: kind-specific: words to keep, thresholds, sibling values.
  """

  kind: str
  value: Any
  forms: tuple[Form, ...] = ()
  exact: bool = False
  path: tuple[str, ...] = ()
  hint: tuple = ()

  @property
  def numeric(self) -> bool:
    return self.kind.startswith('number:')


def word(text: str) -> str:
  """Pattern of a text that is not part of a longer word."""
  left = LEFT if text[:1].isalnum() else ''
  right = RIGHT if text[-1:].isalnum() else ''
  return left + re.escape(text) + right


def sample(slot: Slot, rng: np.random.Generator, taken: set) -> Any:
  """A new value for the slot, None where it finds none outside `taken`."""
  draw = _SAMPLERS.get(slot.kind) or _SAMPLERS[slot.kind.split(':')[0]]
  for _ in range(12):
    new = draw(slot, rng)
    if new is None:
      return None
    if new != slot.value and new not in taken:
      return new
  return None


def render(slot: Slot, form: Form, new: Any) -> str:
  """The new value in the style of one form."""
  style, _, detail = form.style.partition(':')
  if style == 'same':
    return str(new)
  if style == 'spaced':
    text = stem_of(new).replace('_', ' ').replace('-', ' ')
    text = re.sub(r'(?<=[a-z0-9])(?=[A-Z])', ' ', text).lower()
    return text.title() if detail == 'title' else text
  if style == 'city':
    return new
  if style == 'airport':
    return places.airports()[new]
  if style == 'company':
    return pools.COMPANIES[new]
  if style == 'core':
    return str(new).lstrip('#@')
  if style == 'number':
    return number_text(new, detail)
  if style == 'date':
    return date_text(new, detail)
  raise ValueError(f'unknown style {form.style!r}')


def number_text(value: float, detail: str) -> str:
  """A number as the user wrote the old one: 'word', or '<comma><decimals>'."""
  if detail == 'word' and float(value).is_integer():
    if 0 <= value < len(pools.NUMBER_WORDS):
      return pools.NUMBER_WORDS[int(value)]
    return str(int(value))
  comma = ',' if detail.startswith(',') else ''
  decimals = int(detail.lstrip(',') or 0) if detail != 'word' else 2
  return f'{value:{comma}.{decimals}f}'


_DAY_SUFFIX = {
    1: 'st', 2: 'nd', 3: 'rd', 21: 'st', 22: 'nd', 23: 'rd', 31: 'st',
}  # pyformat: disable


def date_text(iso: str, template: str) -> str:
  """Fills {month}, {mon}, {day}, {sfx}, {year}, {mm}, {dd} of a template."""
  year, month, day = (int(part) for part in iso.split('-'))
  name = pools.MONTHS[month - 1]
  return template.format(
      month=name, mon=name[:3], day=day, sfx=_DAY_SUFFIX.get(day, 'th'),
      year=year, mm=f'{month:02d}', dd=f'{day:02d}',
  )  # pyformat: disable


def stem_of(name: str) -> str:
  """A file's name without its extension."""
  stem, dot, extension = name.rpartition('.')
  return stem if dot and stem and extension.isalnum() else name


def name_parts(stem: str) -> list[str]:
  """Words and numbers of a file or folder name."""
  return re.findall(r'[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+', stem)


def _pick(rng: np.random.Generator, pool) -> Any:
  return pool[int(rng.integers(len(pool)))]


def _styled(words: list[str], like: str) -> str:
  """Joins words the way `like` does: snake, kebab, Camel, with capitals."""
  joint = next((mark for mark in '_- ' if mark in like), '')
  first = next((c for c in like if c.isalpha()), 'a')
  letters = [c for c in like if c.isalpha()]
  if len(letters) > 2 and all(c.isupper() for c in letters):
    return joint.join(words).upper()
  if not joint and len(name_parts(re.sub(r'\d', '', like))) < 2:
    joint = '' if first.isupper() and len(words) > 1 else '_'
  tail = like[like.find(joint) + 1:] if joint and joint in like else like[1:]
  capital = any(c.isupper() for c in tail)
  out = [w.capitalize() if capital or not joint else w for w in words]
  if first.isupper():
    out[0] = out[0].capitalize()
  elif not capital:
    out[0] = out[0].lower()
  return joint.join(out)


def _file(slot: Slot, rng: np.random.Generator) -> str:
  """A new stem; words that the user refers to alone (hint) stay."""
  stem = stem_of(slot.value)
  extension = slot.value[len(stem):]
  parts = name_parts(stem)
  keep = [p for p in parts if p.lower() in slot.hint]
  words = keep or [_pick(rng, pools.NOUNS)]
  words = [_pick(rng, pools.MODIFIERS)] + [w.lower() for w in words]
  digits = [p for p in parts if p.isdigit()]
  name = _styled(words, stem)
  if digits:
    joint = '_' if re.search(r'[_-]\d', stem) else ''
    last = digits[-1]
    new = str(rng.integers(2015, 2027)) if len(last) == 4 else last
    name += joint + new
  return name + extension


def _folder(slot: Slot, rng: np.random.Generator) -> str:
  parts = name_parts(slot.value)
  keep = [p.lower() for p in parts if p.lower() in slot.hint]
  words = [_pick(rng, pools.MODIFIERS)] + keep
  if not keep:
    words = [_pick(rng, pools.FOLDERS)]
    if len(parts) > 1:
      words.insert(0, _pick(rng, pools.MODIFIERS))
  return _styled(words, slot.value)


def _token(slot: Slot, rng: np.random.Generator) -> str:
  """The same shape with other digits and letters.

  Words in front or between marks ('card_12', 'access_token_7') stay where
  there are digits to change; where there are none, the words change.
  """
  value = str(slot.value)
  if not any(c.isdigit() for c in value):
    return re.sub(r'[A-Za-z]{3,}', lambda m: _word_like(m[0], rng), value)
  words = [m.span() for m in re.finditer(r'(?<![0-9])[A-Za-z]+(?=[_-])', value)]
  words.append(re.match(r'[A-Za-z]*', value).span())
  out = []
  for i, c in enumerate(value):
    if not c.isalnum() or any(a <= i < b for a, b in words):
      out.append(c)
    elif c.isdigit():
      # A leading zero would change the length of a number.
      low = 1 if i == 0 or not value[i - 1].isdigit() else 0
      out.append(str(rng.integers(low, 10)))
    else:
      letter = _pick(rng, string.ascii_lowercase)
      out.append(letter.upper() if c.isupper() else letter)
  return ''.join(out)


def _word_like(text: str, rng: np.random.Generator) -> str:
  new = _pick(rng, pools.WORDS)
  return new.capitalize() if text[0].isupper() else new


def _handle(slot: Slot, rng: np.random.Generator) -> str:
  prefix = '@' if str(slot.value).startswith('@') else ''
  core = str(slot.value).lstrip('@')
  words = [_pick(rng, pools.MODIFIERS), _pick(rng, pools.WORDS)]
  if '_' not in core and len(name_parts(core)) < 2:
    words = words[1:]
  return prefix + _styled(words, core)


def _tag(slot: Slot, rng: np.random.Generator) -> str:
  prefix = '#' if slot.value.startswith('#') else ''
  new = _pick(rng, pools.TAG_WORDS)
  return prefix + (new.lower() if slot.value.islower() else new)


def _person(slot: Slot, rng: np.random.Generator) -> str:
  if slot.value in pools.KNOWN_MALE:
    return _pick(rng, pools.MALE)
  if slot.value in pools.KNOWN_FEMALE:
    return _pick(rng, pools.FEMALE)
  return _pick(rng, pools.MALE + pools.FEMALE)


def _last(slot: Slot, rng: np.random.Generator) -> str:
  return _pick(rng, pools.LAST)


def _pattern(slot: Slot, rng: np.random.Generator) -> str:
  words = [_pick(rng, pools.WORDS) for _ in slot.value.split()]
  if slot.value[:1].isupper():
    words[0] = words[0].capitalize()
  return ' '.join(words)


def _message(slot: Slot, rng: np.random.Generator) -> tuple[str, str, str]:
  """(before, core, after); core '' keeps the text itself.

  hint[0]: 'own' where the dialogue is about the text's topic, 'free' where
  it is not; hint[1]: the parameter, which decides the pool.
  """
  topic, param = slot.hint
  if len(slot.value) > LONG_TEXT:
    return ('', '', '')  # Only what it mentions changes.
  if topic == 'free' and param in pools.WHOLE:
    core = _pick(rng, pools.WHOLE[param]).format(
        noun=_pick(rng, pools.NOUNS), modifier=_pick(rng, pools.MODIFIERS)
    )
    return ('', core, '')
  title = param == 'title' or (' ' not in slot.value)
  pool = pools.TITLE_DECORATIONS if title else pools.DECORATIONS
  before, after = _pick(rng, pool)
  return (before, '', after)


def _date(slot: Slot, rng: np.random.Generator) -> str:
  """Another day of the same year; the sum of digits stays even or odd.

  Fares double on days whose digits sum to an even number, so the parity keeps
  them.
  """
  def parity(iso):
    return sum(int(c) for c in iso if c.isdigit()) % 2

  year = int(slot.value[:4])
  while True:
    day = datetime.date(year, 1, 1) + datetime.timedelta(int(rng.integers(365)))
    if parity(day.isoformat()) == parity(slot.value):
      return day.isoformat()


def _stock(slot: Slot, rng: np.random.Generator) -> str | None:
  """One of the configured stocks (hint) that is as well known as the old."""
  pool = [s for s in slot.hint if s in pools.COMPANIES]
  famous = slot.value in pools.FAMOUS_STOCKS
  pool = [s for s in pool if (s in pools.FAMOUS_STOCKS) <= famous]
  return _pick(rng, pool) if pool else None


def decimals_of(value: float) -> int:
  """Decimals that a number is written with; 0 for integers."""
  text = f'{value:.6f}'.rstrip('0')
  return len(text.partition('.')[2])


def _number(slot: Slot, rng: np.random.Generator) -> float:
  """The same magnitude, decimals and roundness."""
  kind, value = slot.kind.split(':')[1], slot.value
  low, high = _RANGES.get(kind, (0.5, 1.25))
  if kind in _ABSOLUTE:
    return float(rng.integers(low, high + 1) * _ABSOLUTE[kind])
  decimals = decimals_of(value)
  unit = 10.0**-decimals
  if not decimals and value:
    unit = 10.0 ** max(0, _trailing_zeros(int(value)) - 1)
    unit = unit if abs(value) / unit >= 8 else max(1.0, unit / 10)
  span = max(abs(value), 4 * unit)
  new = rng.uniform(low, high) * span
  new = round(max(new, unit) / unit) * unit
  return round(math.copysign(new, value), decimals)


def _trailing_zeros(value: int) -> int:
  text = str(abs(value))
  return len(text) - len(text.rstrip('0'))


_RANGES = {
    'priority': (1, 5), 'speed': (6, 23), 'fan': (2, 10), 'celsius': (16, 29),
    'small': (2, 8),
}  # pyformat: disable
_ABSOLUTE = {'priority': 1, 'speed': 5, 'fan': 10, 'celsius': 1, 'small': 1}


def _id(slot: Slot, rng: np.random.Generator) -> int:
  digits = len(str(slot.value))
  return int(rng.integers(10 ** (digits - 1), 10**digits))


def _state(slot: Slot, rng: np.random.Generator) -> float:
  """Jitter of a number that only the initial state holds.

  hint: limits (low, high) it has to stay between, so that every comparison
  the user makes ("if any tire is under 30") comes out as before.
  """
  low, high = slot.hint
  decimals = 0 if isinstance(slot.value, int) else decimals_of(slot.value)
  new = round(min(max(round(rng.uniform(low, high), decimals), low), high), 3)
  return int(new) if isinstance(slot.value, int) else new


def _seed(slot: Slot, rng: np.random.Generator) -> int:
  return int(rng.integers(1, 1_000_000))


def _counter(slot: Slot, rng: np.random.Generator) -> int:
  span = 10 ** max(1, len(str(slot.value)) - 1)
  return int(slot.value + rng.integers(1, span))


_SAMPLERS = {
    'file': _file, 'folder': _folder, 'token': _token, 'handle': _handle,
    'tag': _tag, 'person': _person, 'last': _last, 'pattern': _pattern,
    'message': _message, 'date': _date, 'stock': _stock,
    'number': _number, 'id': _id, 'state': _state, 'seed': _seed,
    'counter': _counter,
}  # pyformat: disable
