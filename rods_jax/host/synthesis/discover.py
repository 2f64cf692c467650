"""Finds the entities of a seed task that a variant may exchange.

An entity is exchanged only where the user says it (or a tool showed it) before
it is needed, so that a variant asks for nothing that its seed did not.
"""

import collections
import re
from typing import Iterator

from rods_jax.host.synthesis import (
    discover_names,
    discover_numbers,
    entities,
    places,
    pools,
)
from rods_jax.host.synthesis.entities import Form, Slot
from rods_jax.host.synthesis.reading import Argument, Reading

_KINDS = {
    'username': 'handle', 'username_to_follow': 'handle',
    'username_to_unfollow': 'handle', 'mentions': 'handle',
    'mentioned_usernames': 'handle', 'password': 'token',
    'access_token': 'token', 'card_id': 'token', 'client_id': 'token',
    'client_secret': 'token', 'refresh_token': 'token',
    'card_number': 'token', 'passport_number': 'token',
    'booking_id': 'token', 'insurance_id': 'token', 'user_id': 'token',
    'receiver_id': 'token', 'message': 'message', 'comment_content': 'message',
    'content': 'message', 'title': 'title', 'description': 'message',
    'resolution': 'message', 'pattern': 'pattern', 'tags': 'tag',
    'first_name': 'person', 'last_name': 'last', 'user': 'person',
    'user_first_name': 'person', 'user_last_name': 'last',
    'user_name': 'person', 'keyword': 'pattern',
}  # pyformat: disable
_CITY_PARAMS = frozenset(('location', 'city', 'travel_from', 'travel_to'))


def find_slots(reading: Reading) -> tuple[Slot, ...]:
  """All slots of a seed, each safe to exchange on its own."""
  found: list[Slot] = []
  found += discover_names.find(reading)
  found += _strings(reading)
  found += _people(reading)
  found += _dates(reading)
  found += _cities(reading)
  found += _stocks(reading)
  slots = _unique(found)
  slots += discover_numbers.find(reading, slots)
  opaque = discover_numbers.has_opaque(reading)
  slots += discover_numbers.state_slots(reading, opaque)
  if opaque:
    # A number that nobody said and no tool returned was worked out by hand
    # from others: everything that could feed it stays.
    slots = [s for s in slots if s.kind not in _FEEDS_NUMBERS]
    slots = [s for s in slots if not s.numeric]
  return tuple(slots)


_FEEDS_NUMBERS = frozenset(('city', 'stock', 'date', 'state', 'counter'))


def _unique(slots: list[Slot]) -> list[Slot]:
  """Drops values that two kinds claim, keeping the first slot of a kind."""
  by_value = collections.defaultdict(list)
  for slot in slots:
    by_value[str(slot.value).lstrip('#@')].append(slot)
  out = []
  for group in by_value.values():
    kinds = {slot.kind for slot in group}
    if len(kinds) == 1:
      out.append(group[0])
    elif kinds == {'message', 'title'} or kinds == {'handle', 'person'}:
      out.append(group[0])
  return out


def visible(reading: Reading, pattern: str, uses: list[Argument]) -> bool:
  """Whether every use comes after the user or a tool named the value."""
  return all(
      reading.said(pattern, a.turn)
      or reading.in_results(str(a.value), a.call)
      for a in uses
  )


# Names, texts, tokens.


def _strings(reading: Reading) -> Iterator[Slot]:
  groups = collections.defaultdict(list)
  for a in reading.arguments:
    kind = _KINDS.get(a.param)
    if kind and isinstance(a.value, str) and a.value.strip():
      groups[a.value, kind].append(a)
  for (value, kind), uses in groups.items():
    slot = _string_slot(reading, value, kind, uses[0].param)
    if slot and slot.kind == 'message' and _quoted(reading, value, uses):
      continue
    if slot and all(reading.said(slot.forms[0].pattern, a.turn) for a in uses):
      yield slot


def _quoted(reading: Reading, value: str, uses: list[Argument]) -> bool:
  """Whether a text repeats what a tool returned; then it is not free."""
  return any(
      (a.call, a.path) in reading.sources or reading.in_results(value, a.call)
      for a in uses
  )


def _string_slot(
    reading: Reading, value: str, kind: str, param: str
) -> Slot | None:
  if kind in ('message', 'title'):
    if value.replace('.', '').isdigit():
      return None
    pattern = re.escape(value).replace("'", r"\\?'")
    topic = _topic(reading, value)
    return Slot('message', value, (Form(pattern, 'user'),), True,
                hint=(topic, param))  # pyformat: disable
  if kind in ('tag', 'handle'):
    core = value.lstrip('#@')
    if not core or ' ' in core:
      return None
    return Slot(kind, value, (Form(entities.word(core), 'all', 'core'),))
  if len(value) < 3:
    return None
  return Slot(kind, value, (Form(entities.word(value), 'all'),), True)


def _topic(reading: Reading, value: str) -> str:
  """'own' where the rest of the dialogue depends on what the text says.

  It shares a content word with it, or a call uses a value that stands in it:
  an annual report 'Q1: $5000' whose mean is asked for later must keep numbers.
  """
  if any(c.isdigit() for c in value):
    return 'own'
  for a in reading.arguments:
    text = str(a.value)
    if len(text) > 2 and text != value and text in value:
      return 'own'
  rest = ' '.join(reading.texts).replace(value, ' ').lower()
  words = re.findall(r'[a-z]{4,}', value.lower())
  return 'own' if any(w[:6] in rest for w in words) else 'free'


def _people(reading: Reading) -> Iterator[Slot]:
  """Names in the configuration that every use of the dialogue says."""
  config = reading.seed.initial_config
  first, last = set(), set()
  first.update(config.get('MessageAPI', {}).get('user_map', {}))
  travel = config.get('TravelAPI', {})
  first.add(travel.get('user_first_name'))
  last.add(travel.get('user_last_name'))
  for kind, names in (('person', first), ('last', last)):
    for name in sorted(n for n in names if n):
      if not re.fullmatch(r'[A-Z][a-z]+', name):
        continue
      if reading.said(entities.word(name.lower()), len(reading.texts)):
        continue  # 'Colleague' is a name to the simulator only.
      pattern = entities.word(name)
      uses = [
          a for a in reading.arguments
          if isinstance(a.value, str) and re.search(pattern, a.value)
      ]  # pyformat: disable
      if visible(reading, pattern, uses):
        yield Slot(kind, name, (Form(pattern, 'all'),))


# Dates, places, stocks.

_MON = '|'.join(f'{m[:3]}(?:{m[3:]})?' if m != 'May' else m
                for m in pools.MONTHS)  # pyformat: disable
_DATE = re.compile(
    rf'(?P<iso>\d{{4}}-\d\d-\d\d)'
    rf'|(?P<m1>{_MON}|Sept)\.? (?P<d1>\d{{1,2}})(?P<s1>st|nd|rd|th)?'
    rf'(?P<c1>,? (?:of )?)(?P<y1>\d{{4}})'
    rf'|(?P<d2>\d{{1,2}})(?P<s2>st|nd|rd|th)?(?P<o2> of| )? ?'
    rf'(?P<m2>{_MON}|Sept)(?P<c2>,? )(?P<y2>\d{{4}})'
)  # pyformat: disable


def read_dates(text: str) -> Iterator[tuple[str, str, str]]:
  """(written form, ISO date, template for entities.date_text) in a text."""
  for match in _DATE.finditer(text):
    if match['iso']:
      yield match[0], match[0], '{year}-{mm}-{dd}'
      continue
    n = '1' if match['m1'] else '2'
    month = next(
        i for i, m in enumerate(pools.MONTHS, 1) if m[:3] == match['m' + n][:3]
    )
    day, year = int(match['d' + n]), match['y' + n]
    if not 1 <= day <= 31:
      continue
    name = '{month}' if match['m' + n] in pools.MONTHS else '{mon}'
    suffix = '{sfx}' if match['s' + n] else ''
    if n == '1':
      template = f'{name} {{day}}{suffix}{match["c1"]}{{year}}'
    else:
      of = (match['o2'] or '').rstrip() + ' '
      template = f'{{day}}{suffix}{of}{name}{match["c2"]}{{year}}'
    yield match[0], f'{year}-{month:02d}-{day:02d}', template


def _dates(reading: Reading) -> Iterator[Slot]:
  forms = collections.defaultdict(dict)
  for text in reading.texts:
    for written, iso, template in read_dates(text):
      forms[iso][written] = Form(
          entities.word(written), 'all', f'date:{template}'
      )
  whole = ' '.join(reading.texts)
  if re.search(r'\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|weekend', whole):
    return
  for iso, written in forms.items():
    uses = [a for a in reading.arguments if a.value == iso]
    joined = '|'.join(f.pattern for f in written.values())
    rest = re.sub(joined, ' ', whole)
    month = pools.MONTHS[int(iso[5:7]) - 1]
    if re.search(rf'\b{month[:3]}(?:{month[3:]})?\b', rest):
      continue
    if uses and all(reading.said(joined, a.turn) for a in uses):
      written.setdefault(
          iso, Form(entities.word(iso), 'all', 'date:{year}-{mm}-{dd}')
      )
      yield Slot('date', iso, tuple(written.values()), exact=True)


def _cities(reading: Reading) -> Iterator[Slot]:
  """Cities that the user names; codes and zip codes follow."""
  codes = places.airports()
  drive = 'VehicleControlAPI' in reading.seed.classes
  for city in pools.CITIES:
    code = codes.get(city)
    names = (city, *pools.CITY_ALIASES.get(city, ()))
    forms = [Form(entities.word(name), 'all', 'city') for name in names]
    forms.append(Form(entities.word(code), 'all', 'airport'))
    said = '|'.join(f.pattern for f in forms)
    uses = [
        a for a in reading.arguments
        if a.value in names or (a.value == code and a.param in _CITY_PARAMS)
    ]  # pyformat: disable
    if not uses or not all(reading.said(said, a.turn) for a in uses):
      continue
    by_name = any(
        a.value == code
        and not reading.said(entities.word(code), a.turn)
        and not reading.in_results(code, a.call)
        for a in uses
    )
    hint = (('known',) if by_name else ()) + (('drive',) if drive else ())
    yield Slot('city', city, tuple(forms), hint=hint)


def _stocks(reading: Reading) -> Iterator[Slot]:
  market = reading.seed.initial_config.get('TradingBot', {}).get('stocks')
  if not market:
    return
  used = {a.value for a in reading.arguments}
  text = ' '.join(reading.texts)
  free = [
      s for s in market
      if s not in used and s not in text
      and pools.COMPANIES.get(s, s) not in text
  ]  # pyformat: disable
  listed = ' '.join(
      result
      for (_, call), result in zip(reading.calls, reading.results)
      if call.name == 'get_available_stocks'
  )
  for symbol in market:
    company = pools.COMPANIES.get(symbol)
    uses = [a for a in reading.arguments if a.value == symbol]
    if not uses:
      continue
    forms = [Form(entities.word(symbol), 'all')]
    if company:
      short = company.rstrip('.').removesuffix(' Ltd')
      names = {company, company.rstrip('.'), short}
      forms += [
          Form(entities.word(n), 'user', 'company') for n in sorted(names)
      ]
    said = '|'.join(f.pattern for f in forms)
    if all(reading.said(said, a.turn) for a in uses):
      # A stock of the sector that the user asked about stays in it.
      pool = [s for s in free if symbol not in listed or s in listed]
      yield Slot('stock', symbol, tuple(forms), exact=True, hint=tuple(pool))
