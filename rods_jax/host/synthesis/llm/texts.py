"""What is wrong with a user's text, before anything is run: '' or a reason."""

import re
from typing import Sequence

from rods_jax.host.synthesis.compose import critique
from rods_jax.host.synthesis.llm.answers import Unusable

MAX_TEXT = 1000  # characters of one query
FOREIGN = 0.2  # share of letters that English has not
MIN_WORDS = 6  # fewer words say nothing of a language
ONE_IN = 12  # words, at least, is one of those below
# Frequent in English, and no words of its neighbours.
_ENGLISH = frozenset(
    'the and of to my for that this with you please what how your can could'
    ' would from all which whom are then after also have has been need want'
    ' show is it by if now there just some something somebody follows named'
    " called there's i'd i'm let let's".split()
)
_QUOTED = re.compile(r'"[^"]*"|(?<!\w)\'[^\']*\'(?!\w)')


def check(texts: Sequence[str]) -> None:
  """Raises Unusable for the first text that no user would write."""
  for number, text in enumerate(texts):
    where = f'query {number}'
    if len(text) > MAX_TEXT:
      raise Unusable('a query is too long', where)
    if not is_english(text):
      raise Unusable('a query is not in English', where)
    if critique.named_tool(text):
      raise Unusable(
          'a query names a tool', f'{where}: {critique.named_tool(text)}'
      )
  if not is_english(' '.join(texts)):
    raise Unusable('the queries are not in English')


def is_english(text: str) -> bool:
  """Whether a text may be English; what it quotes does not count."""
  text = _QUOTED.sub(' ', text.lower())
  letters = [c for c in text if c.isalpha()]
  foreign = sum(not c.isascii() for c in letters)
  if foreign > FOREIGN * len(letters):
    return False
  words = re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)?", text)
  known = sum(word in _ENGLISH for word in words)
  return len(words) < MIN_WORDS or known * ONE_IN >= len(words)
