"""Numbers of a seed task: said ones, hidden ones, and ones nobody can trace."""

import collections
import re
from typing import Iterator

from rods_jax.host.synthesis import entities, pools
from rods_jax.host.synthesis.entities import Form, Slot
from rods_jax.host.synthesis.reading import (
    Argument,
    Reading,
    is_number,
    scalars,
)

_KINDS = {
    ('fillFuelTank', 'fuelAmount'): 'fuel',
    ('liter_to_gallon', 'liter'): 'volume',
    ('gallon_to_liter', 'gallon'): 'volume',
    ('place_order', 'amount'): 'shares',
    ('place_order', 'price'): 'price',
    ('fund_account', 'amount'): 'money',
    ('withdraw_funds', 'amount'): 'money',
    ('set_budget_limit', 'budget_limit'): 'money',
    ('purchase_insurance', 'insurance_cost'): 'money',
    ('compute_exchange_rate', 'value'): 'money',
    ('adjustClimateControl', 'temperature'): 'celsius',
    ('adjustClimateControl', 'fanSpeed'): 'fan',
    ('setCruiseControl', 'speed'): 'speed',
    ('setCruiseControl', 'distanceToNextVehicle'): 'distance',
    ('estimate_drive_feasibility_by_mileage', 'distance'): 'distance',
    ('create_ticket', 'priority'): 'priority',
    ('edit_ticket', 'updates'): 'priority',
    ('register_credit_card', 'card_verification_number'): 'id',
    ('mean', 'numbers'): 'list',
    ('standard_deviation', 'numbers'): 'list',
    ('min_value', 'numbers'): 'list',
    ('max_value', 'numbers'): 'list',
    ('sum_values', 'numbers'): 'list',
    ('logarithm', 'value'): 'operand',
    ('logarithm', 'precision'): 'small',
}  # pyformat: disable
_MATH = frozenset((
    'add', 'subtract', 'multiply', 'divide', 'power', 'percentage',
    'absolute_value', 'round_number', 'square_root', 'si_unit_conversion',
    'imperial_si_conversion',
))  # pyformat: disable
_ID_PARAMS = frozenset(('ticket_id', 'order_id', 'tweet_id'))
_NUMBER = re.compile(
    r'(?<![\w.\-/:,#])(?P<int>\d{1,3}(?:,\d{3})+|\d+)(?P<frac>\.\d+)?'
    r'(?![\w/\-:]|\.\d|,\d)'
)
_TIRES = (
    'frontLeftTirePressure', 'frontRightTirePressure', 'rearLeftTirePressure',
    'rearRightTirePressure',
)  # pyformat: disable
_MIN_ID = 100  # smaller ids are also counts, priorities, days


def numbers_in(text: str) -> Iterator[tuple[str, float, str]]:
  """(written form, value, detail for entities.number_text) in a text."""
  for match in _NUMBER.finditer(text):
    comma = ',' if ',' in match['int'] else ''
    decimals = len(match['frac'] or '.') - 1
    value = float(match[0].replace(',', ''))
    yield match[0], value, f'{comma}{decimals}'


def kind_of(a: Argument) -> str | None:
  if a.param in _ID_PARAMS:
    return 'id' if is_number(a.value) and a.value >= _MIN_ID else None
  if a.tool in _MATH and a.param not in ('precision', 'decimal_places'):
    return 'operand'
  return _KINDS.get((a.tool, a.param))


def find(reading: Reading, others: list[Slot]) -> list[Slot]:
  """Slots of the numbers that the user says."""
  masked = [_mask(text, others) for text in reading.texts]
  groups = collections.defaultdict(list)
  for a in reading.arguments:
    if is_number(a.value) and kind_of(a):
      groups[float(a.value)].append(a)
  out = []
  for value, uses in groups.items():
    slot = _slot(reading, masked, value, uses)
    if slot:
      out.append(slot)
  return out


def _mask(text: str, slots: list[Slot]) -> str:
  """The text without what other slots claim."""
  for slot in slots:
    if slot.kind != 'message':
      for form in slot.forms:
        text = re.sub(form.pattern, ' ', text)
  return text


def _slot(
    reading: Reading, masked: list[str], value: float, uses: list[Argument]
) -> Slot | None:
  kinds = {kind_of(a) for a in uses}
  if len(kinds) != 1:
    return None
  kind = kinds.pop()
  if any((a.call, a.path) in reading.sources for a in uses) and kind != 'id':
    return None  # Also a result: `late` numbers are not exchanged by hand.
  forms = {}
  first = None
  for turn, text in enumerate(masked):
    for written, number, detail in numbers_in(text):
      if number == value:
        forms[written] = _form(written, detail)
        first = turn if first is None else first
  if first is None and kind != 'id':
    first = _words(masked, value, forms)
  if first is None or any(a.turn < first for a in uses):
    return None
  if kind == 'fuel' and _other_numbers(masked, value, uses):
    return None
  if kind == 'list' and any(_among_results(reading, a) for a in uses):
    return None
  if _is_quoted_result(reading, value):
    return None
  if not _all_recognized(masked, value, forms):
    return None
  hint = tuple(sorted({(a.tool, a.param) for a in uses}))
  if kind == 'id':
    value = int(value)
  else:
    kind = f'number:{kind}'
  path = _config_path(reading, kind, value)
  return Slot(kind, value, tuple(forms.values()), path=path, hint=hint)


def _config_path(reading: Reading, kind: str, value: float) -> tuple[str, ...]:
  """Where the initial state holds the number that the user says, or ()."""
  config = reading.seed.initial_config
  car = config.get('VehicleControlAPI', {})
  if kind in ('number:fuel', 'number:volume'):
    if car.get('fuelLevel') == value:
      return ('VehicleControlAPI', 'fuelLevel')
  if kind == 'number:price':
    used = {a.value for a in reading.arguments if isinstance(a.value, str)}
    stocks = config.get('TradingBot', {}).get('stocks', {})
    for symbol, stock in stocks.items():
      if symbol in used and stock.get('price') == value:
        return ('TradingBot', 'stocks', symbol, 'price')
  return ()


def _form(written: str, detail: str) -> Form:
  pattern = (
      rf'(?<![\w.\-/:,#]){re.escape(written)}(?![\w/\-:]|\.\d|,\d)'
  )
  return Form(pattern, 'user', f'number:{detail}')


def _words(masked: list[str], value: float, forms: dict) -> int | None:
  """Adds the form of a spelled-out number; the first turn that has it."""
  if not value.is_integer() or not 2 <= value < len(pools.NUMBER_WORDS):
    return None
  name = pools.NUMBER_WORDS[int(value)]
  for turn, text in enumerate(masked):
    if re.search(rf'\b{name}\b', text):
      forms[name] = Form(entities.word(name), 'user', 'number:word')
      return turn
  return None


def _other_numbers(
    masked: list[str], value: float, uses: list[Argument]
) -> bool:
  """Whether the turn also says another number, as in 'to end with 40'."""
  return any(
      number != value
      for a in uses
      for _, number, _ in numbers_in(masked[a.turn])
  )


def _among_results(reading: Reading, a: Argument) -> bool:
  """Whether other items of the same list are results.

  'The mean of the three' says how many there are, and no item.
  """
  return any(
      call == a.call and path[:2] == a.path[:2] and path != a.path
      for call, path in reading.sources
  )


def _is_quoted_result(reading: Reading, value: float) -> bool:
  """Whether a text argument that the user does not say holds it as a result.

  30 PSI in a tweet of tire pressures are not the 30 gallons said before.
  """
  return any(
      isinstance(a.value, str) and ' ' in a.value
      and (a.call, a.path) not in reading.spoken
      and any(number == value for _, number, _ in numbers_in(a.value))
      and any(
          is_number(found) and found == value
          for structure in reading.parsed[: a.call]
          for _, found in scalars(structure)
      )
      for a in reading.arguments
  )  # pyformat: disable


def _all_recognized(masked: list[str], value: float, forms: dict) -> bool:
  """Whether no digits of this value stand outside the forms ('30psi')."""
  digits = f'{value:g}'
  loose = re.compile(rf'(?<![\d.,]){re.escape(digits)}(?![\d]|[.,]\d)')
  for text in masked:
    for form in forms.values():
      text = re.sub(form.pattern, ' ', text)
    if loose.search(text):
      return False
  return True


_QUANTITIES = frozenset((
    'fuel', 'volume', 'shares', 'price', 'money', 'distance', 'list',
    'operand',
))  # pyformat: disable


def has_opaque(reading: Reading) -> bool:
  """Whether some quantity was neither said nor returned by a tool."""
  said = collections.defaultdict(set)
  known = set()
  for turn, text in enumerate(reading.texts):
    known |= {number for _, number, _ in numbers_in(text)}
    known |= {
        float(i) for i, name in enumerate(pools.NUMBER_WORDS)
        if re.search(rf'\b{name}\b', text, re.IGNORECASE)
    }  # pyformat: disable
    said[turn] = set(known)
  return any(
      is_number(a.value)
      and kind_of(a) in _QUANTITIES
      and (a.call, a.path) not in reading.sources
      and float(a.value) not in said[a.turn]
      for a in reading.arguments
  )


# The initial state: values that the user never says.


def state_slots(reading: Reading, opaque: bool) -> list[Slot]:
  """Numbers of the initial state that can change unnoticed by the dialogue."""
  config = reading.seed.initial_config
  out = []
  for name in reading.seed.classes:
    section = config.get(name)
    if section is None:
      continue
    if name == 'VehicleControlAPI':
      out += _car(reading, section, opaque)
    elif name == 'TradingBot':
      out += _market(reading, section, opaque)
    if name in ('TravelAPI', 'TradingBot', 'MessageAPI', 'VehicleControlAPI'):
      out.append(Slot('seed', section.get('random_seed', 0),
                      path=(name, 'random_seed')))  # pyformat: disable
    out += _counters(reading, name, section)
  return out


def _spoken(reading: Reading) -> set[float]:
  return {n for text in reading.texts for _, n, _ in numbers_in(text)}


def _car(reading: Reading, car: dict, opaque: bool) -> Iterator[Slot]:
  spoken = _spoken(reading)
  given = {a.value for a in reading.arguments if is_number(a.value)}
  limits = {'batteryVoltage': (12.1, 13.2), 'humidityLevel': (30.0, 70.0)}
  limits['acTemperature'] = (18.0, 29.0)
  for key in _TIRES:
    value = car.get(key)
    if value is None:
      continue
    low, high = value - 2.0, value + 2.0
    for threshold in spoken | {30.0, 35.0}:
      if value >= threshold:
        low = max(low, threshold)
      else:
        high = min(high, threshold - 1.0)
    limits[key] = (low, high)
  if not opaque:
    fuel = car.get('fuelLevel', 0.0)
    limits['fuelLevel'] = (max(1.0, 0.6 * fuel), min(49.0, 1.4 * fuel))
  for key, (low, high) in limits.items():
    value = car.get(key)
    if value is None or value in spoken or not low <= value <= high:
      continue
    if value in given and key not in ('fuelLevel', *_TIRES):
      continue
    yield Slot('state', value, path=('VehicleControlAPI', key),
               hint=(low, high))  # pyformat: disable


def _market(reading: Reading, bot: dict, opaque: bool) -> Iterator[Slot]:
  spoken = _spoken(reading)
  account = bot.get('account_info', {})
  card = account.get('binding_card')
  if card:
    yield Slot('id', card, path=('TradingBot', 'account_info', 'binding_card'))
  if opaque:
    return
  used = {a.value for a in reading.arguments if isinstance(a.value, str)}
  for symbol, stock in bot.get('stocks', {}).items():
    for key in ('price', 'volume', 'MA(5)', 'MA(20)'):
      value = stock.get(key)
      if symbol not in used or value is None or value in spoken:
        continue
      yield Slot(
          'state', value, path=('TradingBot', 'stocks', symbol, key),
          hint=(value * 0.9, value * 1.1),
      )  # pyformat: disable


def _counters(reading: Reading, name: str, section: dict) -> Iterator[Slot]:
  spoken = _spoken(reading)
  for key in ('order_counter', 'ticket_counter', 'tweet_counter'):
    value = section.get(key)
    if value is None or value in spoken:
      continue
    uses = [
        a for a in reading.arguments
        if a.param in _ID_PARAMS and a.value == value
    ]  # pyformat: disable
    if all((a.call, a.path) in reading.sources for a in uses):
      yield Slot('counter', value, path=(name, key))
