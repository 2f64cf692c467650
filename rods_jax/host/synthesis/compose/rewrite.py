"""Rewrite: words all queries in one pass, from the tables' phrases.

The whole dialogue is known, so a thing that was named before, or that a call
has made, can be referred to ("that file", "the order you just placed"). No tool
is named. A user keeps to one degree of politeness.
"""

import dataclasses
import re
from typing import Mapping

import numpy as np

from rods_jax.host.synthesis.compose import tables
from rods_jax.host.synthesis.compose.records import (
    Blur,
    Execution,
    Plan,
    Slot,
    Step,
    Wording,
)
from rods_jax.host.synthesis.compose.values import shown
from rods_jax.host.synthesis.compose.worlds import pick
from rods_jax.host.synthesis.records import Rejection

REFERENCES = 0.6  # chance of "that file" for what was the last file named
FRAMES = 0.12  # chance of a greeting, or thanks, per turn
_THANKS = (' Thanks!', ' Thank you.', ' Many thanks.', ' I appreciate it.')
NUMBERS = ('first', 'second', 'third', 'fourth', 'fifth', 'sixth', 'seventh')
_MANNERS = {
    'plain': ('{C}.', '{C}.', 'I want you to {c}.', 'Now {c}.'),
    'polite': (
        'Please {c}.', 'Could you {c}?', 'Can you {c}, please?',
        'Would you {c}?', 'I would like you to {c}.',
    ),
    'chatty': (
        "I'd like you to {c}.", 'It would help me if you could {c}.',
        'Please {c}.', 'Next, {c} for me, please.', 'Can you {c}?',
    ),
}  # pyformat: disable
_PAIRS = (
    'Please {a}, and then {b}.', 'First {a}, and after that {b}.',
    '{A}, then {b}.', 'I need you to {a} and to {b}.',
    'Could you {a} and then {b}?', '{A} and {b}.',
)  # pyformat: disable
_LINKS = ('Then {c}.', 'After that, {c}.', 'Also, {c}.', 'And {c}, please.',
          'Once that is done, {c}.')  # pyformat: disable
_LAST = ('Finally, {c}.', 'At the end, {c}.', 'Lastly, {c}.')
_NOT_FIRST = re.compile(r'^(Now|Next,) ')


@dataclasses.dataclass(frozen=True)
class _Clause:
  """One call's wording: a phrase whose parameters have words to fill in."""

  phrase: str
  words: Mapping[str, str]
  literal: Mapping[str, Slot]  # what is named by its value
  intros: tuple[str, ...] = ()

  def text(self, **changed: str) -> str:
    text = self.phrase.format_map({**self.words, **changed})
    return re.sub(r'\b([Aa]) (?=economy|auto\b)', r'\1n ', text)


def rewrite(
    plan: Plan,
    execution: Execution,
    rng: np.random.Generator,
    last: Rejection | None = None,
) -> Wording | Rejection:
  """The user's texts, and the values that they could leave out at first."""
  del last  # There is nothing that the tables could mend.
  return _Writer(plan, execution, rng).write()


class _Writer:
  """Words one dialogue from its beginning to its end."""

  def __init__(
      self, plan: Plan, execution: Execution, rng: np.random.Generator
  ):
    self._plan = plan
    self._run = execution
    self._rng = rng
    self._kinds = tables.kinds(plan.brief.seed.classes)
    self._manner = pick(rng, sorted(_MANNERS))
    self._named: dict[str, int] = {}  # kind -> the thing that was named last
    self._known: set[int] = set()  # things that the user has named
    self._phrases: set[str] = set()
    self._seen = 0  # the last thing that a call has made

  def write(self) -> Wording:
    texts, blurs = [], []
    for turn in range(len(self._plan.brief.calls)):
      clauses = [
          self._clause(position, step)
          for position, step in enumerate(self._plan.steps)
          if step.turn == turn
      ]
      key = int(self._rng.integers(2**63))
      texts.append(self._joined(clauses, turn, key))
      blurs += self._blurs(clauses, turn, key)
    return Wording(tuple(texts), tuple(blurs))

  def _clause(self, position: int, step: Step) -> _Clause:
    fresh = [p for p in step.use.say if p not in self._phrases]
    phrase = pick(self._rng, fresh or step.use.say)
    self._phrases.add(phrase)
    words, literal, intros = {}, {}, []
    for slot in step.slots:
      for param in slot.params:
        if f'{{{param}}}' in phrase:
          words[param], named = self._words(position, slot, param)
          if named:
            literal[param] = slot
        elif slot.thing is not None and self._must_be_introduced(slot.thing):
          kind = self._kinds[self._plan.things[slot.thing].kind]
          name = self._run.names[slot.thing]
          intros.append(pick(self._rng, kind.intro).format(v=name))
          self._known.add(slot.thing)
      self._name(slot)
    for thing in self._plan.things:
      if thing.maker == position:  # Now "that card" is the new one.
        self._named[thing.kind] = self._seen = thing.number
    return _Clause(phrase, words, literal, tuple(intros))

  def _must_be_introduced(self, number: int) -> bool:
    thing = self._plan.things[number]
    return (
        thing.maker is None
        and number not in self._known
        and bool(self._kinds[thing.kind].intro)
    )

  def _name(self, slot: Slot) -> None:
    if slot.thing is not None:
      self._known.add(slot.thing)
      self._named[self._plan.things[slot.thing].kind] = slot.thing

  def _words(
      self, position: int, slot: Slot, param: str
  ) -> tuple[str, bool]:
    """How an argument is said, and whether its value is."""
    value = self._run.values[position][param]
    if slot.source.how == tables.OPTION:
      return slot.source.words[slot.option], False
    kind = self._kinds.get(slot.source.kind, tables.Kind())
    number = slot.thing
    if slot.source.how == tables.THING:
      thing = self._plan.things[number]
      is_last = self._named.get(thing.kind, number) == number
      if thing.source is not None:
        return self._made(number, kind), False
      can_refer = number in self._known and is_last and kind.ref
      if can_refer and self._rng.random() < REFERENCES:
        return pick(self._rng, kind.ref), False
    if slot.source.how == tables.NEW:
      return kind.name[0].format(v=shown(value)), True
    return pick(self._rng, kind.name).format(v=shown(value)), True

  def _made(self, number: int, kind: tables.Kind) -> str:
    """Words for what a call has made or given."""
    alike = [
        t.number for t in self._plan.things
        if t.kind == self._plan.things[number].kind and t.maker is not None
    ]  # pyformat: disable
    latest = max(n for n in alike if n <= max(self._seen, number))
    if kind.nth and (number != latest or alike.index(number)):
      return kind.nth.format(n=NUMBERS[alike.index(number)])
    return pick(self._rng, kind.made)

  def _joined(self, clauses: list[_Clause], turn: int, key: int) -> str:
    """One turn's text. The same key gives the same words around clauses."""
    rng = np.random.default_rng(key)
    return self._sentences(
        [clause.text() for clause in clauses], clauses, turn, rng
    )

  def _sentences(
      self,
      bodies: list[str],
      clauses: list[_Clause],
      turn: int,
      rng: np.random.Generator,
  ) -> str:
    out = []
    plain = [not body[0].isupper() for body in bodies]
    short = [len(b) < 70 and not set(b) & set('";:,') for b in bodies]
    start = int(rng.integers(len(_LINKS)))
    i = 0
    while i < len(bodies):
      body = bodies[i]
      if not plain[i]:
        out.append(body)
      elif (
          i + 1 < len(bodies) and plain[i + 1] and short[i] and short[i + 1]
          and not out and rng.random() < 0.6
      ):  # pyformat: disable
        after = bodies[i + 1]
        out.append(pick(rng, _PAIRS).format(
            a=body, b=after, A=_capital(body)
        ))  # pyformat: disable
        i += 1
      else:
        out.append(self._framed(body, i, len(bodies), turn, start, rng))
      i += 1
    text = ' '.join(out + [s for clause in clauses for s in clause.intros])
    draw = rng.random()
    if draw < FRAMES and turn == 0:
      return pick(rng, ('Hi there. ', 'Hello! ', 'Good day. ', 'Hey. ')) + text
    if draw > 1 - FRAMES and text[-1] in '.?':
      short = _THANKS[:2]  # after a question nothing else sounds right
      return text + pick(rng, short if text[-1] == '?' else _THANKS)
    return text

  def _framed(
      self,
      body: str,
      i: int,
      size: int,
      turn: int,
      start: int,
      rng: np.random.Generator,
  ) -> str:
    """One clause as a sentence."""
    if i and i == size - 1 and size > 2 and rng.random() < 0.5:
      frame = pick(rng, _LAST)
    elif i:
      frame = _LINKS[(start + i) % len(_LINKS)]
    else:
      frames = _MANNERS[self._manner]
      if turn == 0:
        frames = [f for f in frames if not _NOT_FIRST.match(f)]
      frame = pick(rng, frames)
    if body[-1] in '."' and frame[-1] == '?' or ';' in body or ':' in body:
      frame = '{C}.' if not i else 'Also, {c}.'
    text = frame.format(c=body, C=_capital(body))
    if text.endswith(('.".', '!".', '?".')):
      text = text[:-1]
    return text

  def _blurs(self, clauses: list[_Clause], turn: int, key: int) -> list[Blur]:
    """All ways to leave one value of the turn out."""
    found, first = [], sum(self._plan.brief.calls[:turn])
    for index, clause in enumerate(clauses):
      for param, slot in clause.literal.items():
        kind = self._kinds.get(slot.source.kind, tables.Kind())
        if not kind.vague or len(slot.params) > 1:
          continue
        bodies = [c.text() for c in clauses]
        bodies[index] = clause.text(**{param: kind.vague})
        rng = np.random.default_rng(key)
        text = self._sentences(bodies, clauses, turn, rng)
        value = self._run.values[first + index][param]
        found.append(
            Blur(turn, value, text, kind.supply.format(v=shown(value)))
        )
    return found


def _capital(text: str) -> str:
  return text[:1].upper() + text[1:]
