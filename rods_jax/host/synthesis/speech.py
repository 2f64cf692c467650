"""Whether a user's text says a value, literally or in other words."""

import functools
import itertools
import re
from typing import Any

from rods_jax.host.synthesis import discover, entities, places, pools
from rods_jax.host.synthesis.reading import is_number

MIN_SQUASHED = 5  # letters of a name that the user writes in another way
# No parts of dates, times, ids and versions.
_NUMBER = re.compile(r'(?<![\w.:/-])\d[\d,]*(?:\.\d+)?(?![-:/]?\w)')
_SCALES = {'k': 1e3, 'thousand': 1e3, 'million': 1e6}
_SCALED = re.compile(r'(?<![\w.])(\d+(?:\.\d+)?) ?(k|thousand|million)\b')
_TENS = {
    'fifteen': 15, 'twenty': 20, 'thirty': 30, 'forty': 40, 'fifty': 50,
    'sixty': 60, 'hundred': 100, 'thousand': 1000,
}  # pyformat: disable
_WORDS = {word: i for i, word in enumerate(pools.NUMBER_WORDS)} | _TENS
del _WORDS['one']  # mostly a pronoun


class Speech:
  """One user text, prepared for many questions."""

  def __init__(self, text: str):
    self._text = text
    self._folded = fold(text)

  def says(self, value: Any) -> bool:
    """Whether the value stands in the text as it is, whatever its case."""
    if is_number(value):
      return value in self._numbers
    if not isinstance(value, str):
      return False
    if value.isupper():  # 'Zeta Corp' does not say ZETA, nor 'start' START
      return quotes(self._text, value)
    return _quotes_name(self._folded, fold(value))

  def means(self, value: Any) -> bool:
    """Whether the text has another way of writing the value."""
    if is_number(value):
      return value in self._spelled
    if not isinstance(value, str):
      return False
    text = fold(value)
    if '/' in text and ' ' not in text:
      parts = [p for p in text.split('/') if p.strip('.')]
      return bool(parts) and all(map(self._means_name, parts))
    return self._means_name(text) or value in self._aliases

  def _means_name(self, name: str) -> bool:
    if _quotes_name(self._folded, name):
      return True
    short = squash(entities.stem_of(name))
    if len(short) < MIN_SQUASHED:
      return False
    text, edges = self._squashed
    start = text.find(short)
    while start >= 0:
      if start in edges and start + len(short) in edges:
        return True
      start = text.find(short, start + 1)
    return False

  @functools.cached_property
  def _squashed(self) -> tuple[str, frozenset[int]]:
    """The text without anything between words, and where words end there."""
    words = re.findall(r'[^\W_]+', self._folded)
    ends = itertools.accumulate(map(len, words), initial=0)
    return ''.join(words), frozenset(ends)

  @functools.cached_property
  def _numbers(self) -> frozenset[float]:
    return numbers(self._text)

  @functools.cached_property
  def _spelled(self) -> frozenset[float]:
    found = {
        float(n) * _SCALES[scale]
        for n, scale in _SCALED.findall(self._folded)
    }
    words = set(re.findall(r'[a-z]+', self._folded))
    return frozenset(found | {_WORDS[w] for w in words & _WORDS.keys()})

  @functools.cached_property
  def _aliases(self) -> frozenset[str]:
    """Codes and names of the cities, companies and dates it mentions."""
    found = {iso for _, iso, _ in discover.read_dates(self._text)}
    for city in pools.CITIES:
      names = (city, *pools.CITY_ALIASES.get(city, ()))
      if any(quotes(self._folded, fold(name)) for name in names):
        found |= {city, *names, places.airports().get(city, '')}
        found.add(places.zipcodes().get(city, ''))
    for symbol, company in pools.COMPANIES.items():
      short = company.rstrip('.').removesuffix(' Ltd')
      if quotes(self._folded, fold(short)):
        found |= {symbol, company}
    return frozenset(found)


def numbers(text: str) -> frozenset[float]:
  """All numbers that stand in a text in digits; '1,000' is 1000."""
  return frozenset(float(n.replace(',', '')) for n in _NUMBER.findall(text))


def fold(text: str) -> str:
  """Case, escaped quotes and the marks of tags and mentions left out."""
  return text.lower().lstrip('#@').replace("\\'", "'")


def squash(text: str) -> str:
  """Letters and digits only."""
  return re.sub(r'[\W_]', '', text)


def quotes(text: str, value: str) -> bool:
  """Whether the value stands in the text and is no part of a longer word."""
  if not value:
    return False
  start = text.find(value)
  while start >= 0:
    end = start + len(value)
    before = start and _in_word(text[start - 1]) and _in_word(value[0])
    after = end < len(text) and _in_word(text[end]) and _in_word(value[-1])
    if not before and not after:
      return True
    start = text.find(value, start + 1)
  return False


def _quotes_name(text: str, value: str) -> bool:
  """The same, but a full stop does not name the folder '.'."""
  return any(map(str.isalnum, value)) and quotes(text, value)


def _in_word(character: str) -> bool:
  return character.isalnum() or character == '_'
