"""The composer's tables: how tools are used, what they take, how users ask.

Which tool can follow which is an edge of the API graph (api_graph.py); the
tables ground it: which arguments name which things, and which resources a call
touches. One file per class, assets/compose/<Class>.toml. A `[[use]]` is one way
to use a tool; a tool may have several. Its fields, all but `tool` and `say`
optional:

  args         parameter -> source; "a,b" is two parameters drawn together:
                 ~kind  a fresh value that the user says (values.py draws it);
                 +kind  the same, and it is the name of a new thing;
                 kind   a thing of the initial state, or one that a call made;
                 ?a,b   one of these options, as the user says; "l:lines" is
                        the option l, said as lines;
                 =json  always this value;
                 &text  a text that quotes the thing in its braces.
               Several, parted by |, are alternatives; inside braces too.
  needs reads  resources whose earlier changes it needs to work, or shows.
  sets adds    resources that it replaces, or changes; both: later calls that
               need or read them depend on this one.
  ends, done   parameters whose thing is gone afterwards; is not to be ended
               twice.
  makes gives  kind -> where its result holds the name of a new thing, or a
               value; '@p' is the value of its own parameter p.
  draws        chances that it takes from: whatever makes an earlier taker fail
               gives it another one.
  fresh        resources that no call has changed before.
  first last   resources that nothing has touched before, will touch after.
  config       what the initial state must be for it.
  wants        resources that a call must have changed before.
  short_gives  gives, and long_reads reads, without, and with, long contexts.
  spoils       kinds whose earlier values can no longer be meant.
  same         two parameters: the value of one must be of the other's thing.
  twin         it takes the two latest things of a kind, in their order.
  enters       its thing is a folder, and the things in there are near now.
  weight       how often it is chosen, 1 if not said.
  say          wordings: a clause after "please", or a whole sentence.

A resource 'balance:{card_id}' is one for each thing, 'names:{place}' for each
folder. A `[kind.x]` words things and values of a kind: `name` where they are
named, `ref` where they were before, `made` where a call made or gave them,
`nth` where several were made; `intro` is a sentence that names it once for the
whole dialogue; `vague` and `supply` for a value that is missing at first.
An `anchored` kind is found only from the folder that it is in; of a kind with
`many` (or `nth`) older ones can be named after newer ones were made or given;
where there is only a `single` one, a new one takes the initial one's place.
"""

import dataclasses
import functools
import json
import pathlib
import tomllib
from typing import Any, Iterator, Mapping

from rods_jax.host import bfcl

FOLDER = pathlib.Path(__file__).parents[3] / 'assets' / 'compose'
HERE = 'cwd'  # the resource that anchored things are found from
CONST, OPTION, POOL, NEW, THING = 'const', 'option', 'pool', 'new', 'thing'
_SIGNS = {'=': CONST, '?': OPTION, '~': POOL, '+': NEW}


@dataclasses.dataclass(frozen=True)
class Source:
  """Where an argument may come from.

  Attributes:
    how: CONST, OPTION, POOL, NEW or THING.
    kind: of the value; '' for constants and options.
    values: the constant, or the options.
    words: how the user says each option.
    text: that quotes the value in place of '{}'; '' for the value itself.
  """

  how: str
  kind: str = ''
  values: tuple[Any, ...] = ()
  words: tuple[str, ...] = ()
  text: str = ''


@dataclasses.dataclass(frozen=True)
class Use:
  """One way to use a tool; the module's docstring explains the fields."""

  index: int
  tool: str
  say: tuple[str, ...]
  args: tuple[tuple[tuple[str, ...], tuple[Source, ...]], ...] = ()
  needs: tuple[str, ...] = ()
  reads: tuple[str, ...] = ()
  long_reads: tuple[str, ...] = ()
  sets: tuple[str, ...] = ()
  adds: tuple[str, ...] = ()
  ends: tuple[str, ...] = ()
  done: tuple[str, ...] = ()
  first: tuple[str, ...] = ()
  last: tuple[str, ...] = ()
  draws: tuple[str, ...] = ()
  fresh: tuple[str, ...] = ()
  wants: tuple[str, ...] = ()
  makes: tuple[tuple[str, str], ...] = ()
  gives: tuple[tuple[str, str], ...] = ()
  short_gives: tuple[tuple[str, str], ...] = ()
  config: tuple[tuple[str, Any], ...] = ()
  spoils: tuple[str, ...] = ()
  same: tuple[str, ...] = ()
  twin: bool = False
  enters: bool = False
  weight: float = 1.0

  @functools.cached_property
  def provides(self) -> frozenset[str]:
    """Resources and kinds by which a later call can depend on it."""
    found = [_base(name) for name in self.sets + self.adds]
    found += [kind for kind, _ in self.makes + self.gives + self.short_gives]
    for _, sources in self.args:
      found += [s.kind for s in sources if s.how == NEW]
    return frozenset(found)

  @functools.cached_property
  def consumes(self) -> frozenset[str]:
    """Resources and kinds by which it can depend on an earlier call."""
    found = [_base(name) for name in self.needs + self.reads + self.long_reads]
    named = [
        s.kind for _, sources in self.args for s in sources if s.how == THING
    ]  # pyformat: disable
    if any(kinds(bfcl.CLASSES)[kind].anchored for kind in named):
      found.append(HERE)
    return frozenset(found + named)

  @functools.cached_property
  def gathers(self) -> frozenset[str]:
    """Resources that several earlier calls can have changed."""
    return frozenset(self.needs + self.reads + self.long_reads)

  @functools.cached_property
  def capacity(self) -> int:
    """On how many calls it can depend, by one thing or resource each."""
    things = sum(
        any(s.how == THING for s in sources) for _, sources in self.args
    )
    return things + len(self.gathers)

  @functools.cached_property
  def fixed(self) -> tuple[str, ...]:
    """What it needs or reads, whatever its arguments are."""
    names = self.needs + self.reads + tuple(f'?{n}' for n in self.draws)
    return tuple(n for n in names if '{' not in n)

  @functools.cached_property
  def is_open(self) -> bool:
    """Whether it reads more, which depends on its arguments or the place."""
    reads = self.needs + self.reads
    return bool(self.long_reads) or any('{' in name for name in reads)


@dataclasses.dataclass(frozen=True)
class Kind:
  """How things and values of a kind are worded; see the module's docstring."""

  name: tuple[str, ...] = ('{v}',)
  ref: tuple[str, ...] = ()
  made: tuple[str, ...] = ()
  nth: str = ''
  intro: tuple[str, ...] = ()
  vague: str = ''
  supply: str = ''
  anchored: bool = False
  many: bool = False
  single: bool = False


@functools.cache
def uses(class_name: str) -> tuple[Use, ...]:
  """All uses of a class, in the file's order.

  Raises:
    ValueError: the table names a tool or a parameter that does not exist.
  """
  found = []
  for entry in _table(class_name)['use']:
    found.append(_use(len(found), entry))
    known = set(bfcl.parameters(found[-1].tool))
    for params, _ in found[-1].args:
      if not set(params) <= known:
        raise ValueError(
            f'assets/compose/{class_name}.toml: {found[-1].tool} has no '
            f'parameters {params}; it has {sorted(known)}.'
        )
  return tuple(found)


@functools.cache
def kinds(class_names: tuple[str, ...]) -> Mapping[str, Kind]:
  """The kinds of some classes; a kind has one meaning in all of them."""
  found = {}
  for name in class_names:
    for kind, entry in _table(name).get('kind', {}).items():
      found[kind] = Kind(**{k: _frozen(v) for k, v in entry.items()})
  return found


@functools.cache
def _table(class_name: str) -> dict[str, Any]:
  text = (FOLDER / f'{class_name}.toml').read_text(encoding='utf-8')
  return tomllib.loads(text)


def _use(index: int, entry: dict[str, Any]) -> Use:
  fields = {k: _frozen(v) for k, v in entry.items() if k != 'args'}
  args = tuple(
      (tuple(params.split(',')), tuple(_sources(text)))
      for params, text in entry.get('args', {}).items()
  )
  return Use(index=index, args=args, **fields)


@functools.cache
def outputs(path: str) -> tuple[str, ...]:
  """What a result calls the values at a path: 'a.b.0,c' -> ('b', 'c')."""
  return tuple(
      next((k for k in part.split('.')[::-1] if not k.isdigit()), '')
      for part in path.split(',')
  )


def _base(resource: str) -> str:
  return resource.partition(':')[0]


def _frozen(value: Any) -> Any:
  if isinstance(value, list):
    return tuple(value)
  return tuple(value.items()) if isinstance(value, dict) else value


def _sources(text: str) -> Iterator[Source]:
  if text[0] == '&':
    before, _, rest = text[1:].partition('{')
    kinds_, _, after = rest.partition('}')
    for kind in kinds_.split('|'):
      yield Source(THING, kind, text=f'{before}{{}}{after}')
  else:
    yield from map(_source, text.split('|'))


def _source(text: str) -> Source:
  how = _SIGNS.get(text[0], THING)
  rest = text if how == THING else text[1:]
  if how == CONST:
    return Source(how, values=(json.loads(rest),))
  if how == OPTION:
    pairs = [option.partition(':') for option in rest.split(',')]
    return Source(
        how,
        values=tuple(value for value, _, _ in pairs),
        words=tuple(words or value for value, _, words in pairs),
    )
  return Source(how, rest)
