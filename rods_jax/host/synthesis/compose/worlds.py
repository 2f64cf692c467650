"""Initial states for composed tasks, and what they need to be patched.

A world is a configuration of each class and the things in it that a user can
name. All values come from the pools, no state of a seed is used.
"""

import copy
import dataclasses
import re
from typing import Any, Callable, Mapping

import numpy as np

from rods_jax.host.synthesis import pools
from rods_jax.host.synthesis.compose.state import ANYWHERE, ROOT

DOORS = ('driver', 'passenger', 'rear_left', 'rear_right')
SINGULAR = tuple(noun for noun in pools.NOUNS if noun != 'minutes')
ENDINGS = ('txt', 'txt', 'md', 'csv', 'log')
BIG = 250_000.0  # dollars; enough for whatever is bought


@dataclasses.dataclass(frozen=True)
class World:
  """An initial state.

  Attributes:
    config: class -> configuration.
    things: (kind, name, place) of what a user can name.
  """

  config: dict[str, Any]
  things: tuple[tuple[str, Any, str], ...]


def draw(classes: tuple[str, ...], rng: np.random.Generator) -> World:
  """A random initial state of these classes."""
  config, things = {}, []
  for name in classes:
    config[name], found = _WORLDS[name](rng)
    things += found
  return World(config, tuple(things))


def with_initial(
    config: Mapping[str, Any], wanted: tuple[tuple[str, str, Any], ...]
) -> dict[str, Any]:
  """A copy with (class, key, value) set; 'none' stands for None."""
  out = copy.deepcopy(dict(config))
  for name, key, value in wanted:
    if key == 'doorStatus':
      value = dict.fromkeys(DOORS, value)
    out[name][key] = None if value == 'none' else value
  return out


def pick(rng: np.random.Generator, pool) -> Any:
  return pool[int(rng.integers(len(pool)))]


def several(rng: np.random.Generator, pool, count: int) -> list[Any]:
  """Different items."""
  return [pool[i] for i in rng.permutation(len(pool))[:count].tolist()]


def digits(rng: np.random.Generator, count: int) -> str:
  """A number of so many digits, as text."""
  return str(int(rng.integers(10 ** (count - 1), 10**count)))


def stem(rng: np.random.Generator) -> str:
  return f'{pick(rng, pools.MODIFIERS)}_{pick(rng, pools.NOUNS)}'


def sentence(rng: np.random.Generator) -> str:
  """One of the whole texts of the pools, filled in."""
  return fill(rng, pick(rng, pools.WHOLE['message']))


def _old_text(rng: np.random.Generator) -> str:
  """What was written before the dialogue; users say other things."""
  return fill(rng, pick(rng, pools.OLD_TEXTS))


def fill(rng: np.random.Generator, template: str) -> str:
  text = template.format(
      noun=pick(rng, SINGULAR), modifier=pick(rng, pools.MODIFIERS)
  )
  return re.sub(r'\b([Aa]) (?=[aeio])', r'\1n ', text)


def name_of(rng: np.random.Generator) -> tuple[str, str]:
  first = pick(rng, pools.FEMALE + pools.MALE)
  return first, pick(rng, pools.LAST)


def _files(rng):
  """Root, a folder in it and one in that; files and an empty folder in each."""
  folders = several(rng, pools.FOLDERS, 9)
  stems = several(rng, [f'{a}_{b}' for a, b in zip(
      several(rng, pools.MODIFIERS, 12), several(rng, pools.NOUNS, 12)
  )], 12)  # pyformat: disable
  things, contents = [], None
  # From the inside to the outside.
  for depth, place in enumerate((folders[1], folders[0], ROOT)):
    names = [
        f'{s}.{pick(rng, ENDINGS)}' for s in stems[depth * 4 : depth * 4 + 3]
    ]
    inner = {
        file: {'type': 'file', 'content': _text(rng)} for file in names
    }
    things += [('file', file, place) for file in names]
    for folder in folders[2 + 2 * depth : 4 + 2 * depth]:
      inner[folder] = {'type': 'directory', 'contents': {}}
      things.append(('folder', folder, place))
    if contents is not None:
      entry = folders[1 if depth == 1 else 0]
      inner[entry] = {'type': 'directory', 'contents': contents}
      things.append(('entry', entry, place))
    contents = inner
  root = {'type': 'directory', 'contents': contents}
  return {'root': {folders[8]: root}}, things


def _text(rng) -> str:
  return '\n'.join(_old_text(rng) for _ in range(int(rng.integers(2, 5))))


def _trading(rng):
  symbols = several(rng, [s for s in pools.COMPANIES if s != 'GORI'], 12)
  stocks = {}
  for symbol in symbols:
    price = round(float(rng.uniform(20, 900)), 2)
    stocks[symbol] = {
        'price': price,
        'percent_change': round(float(rng.uniform(-2, 2)), 2),
        'volume': round(float(rng.uniform(0.5, 4)), 3),
        'MA(5)': round(price * 1.004, 2),
        'MA(20)': round(price * 0.991, 2),
    }
  counter = int(rng.integers(13_000, 99_000))
  orders, things = {}, []
  for i, status in enumerate(('Pending', 'Open')):
    number = counter - 2 + i
    orders[str(number)] = {
        'id': number, 'order_type': pick(rng, ('Buy', 'Sell')),
        'symbol': symbols[i], 'price': stocks[symbols[i]]['price'],
        'amount': int(rng.integers(5, 60)), 'status': status,
    }  # pyformat: disable
    things.append(('order', number, ANYWHERE))
  watched = symbols[2:5]
  things += [('watched', symbol, ANYWHERE) for symbol in watched]
  things += [('stock', symbol, ANYWHERE) for symbol in symbols[5:9]]
  config = {
      'orders': orders,
      'account_info': {
          'account_id': int(digits(rng, 5)),
          'balance': float(rng.integers(200, 4000) * 10 + 3),
          'binding_card': int(digits(rng, 16)),
      },
      'authenticated': True,
      'market_status': pick(rng, ('Open', 'Open', 'Open', 'Closed')),
      'order_counter': counter,
      'stocks': stocks,
      'watch_list': watched,
      'transaction_history': [{
          'type': 'deposit', 'amount': float(rng.integers(5, 90) * 100),
          'timestamp': f'2024-08-{int(rng.integers(10, 29))} 09:15:00',
      }],
      'random_seed': int(digits(rng, 6)),
  }  # pyformat: disable
  return config, things


def _tickets(rng):
  user = name_of(rng)[0].lower() + digits(rng, 2)
  counter = int(rng.integers(2_000, 9_000))
  queue = [
      {
          'id': counter - 5 + i,
          'title': fill(rng, 'Question about the {modifier} {noun}'),
          'description': _old_text(rng),
          'status': 'Open',
          'priority': int(rng.integers(1, 5)),
          'created_by': user,
      }
      for i in range(2)
  ]
  config = {
      'ticket_queue': queue, 'ticket_counter': counter, 'current_user': user
  }
  return config, [('ticket', t['id'], ANYWHERE) for t in queue]


def _messages(rng):
  names = several(rng, pools.FEMALE + pools.MALE, 7)
  start = int(rng.integers(11, 60)) * 10
  users = {n: f'USR{start + i:03d}' for i, n in enumerate(names)}
  ids = list(users.values())
  # Nothing has been sent to those who can get a message.
  inbox = [{ids[i]: _old_text(rng)} for i in (4, 5)]
  config = {
      'user_count': start + 20,
      'user_map': users,
      'inbox': inbox,
      'message_count': len(inbox),
      'current_user': ids[0],
      'random_seed': int(digits(rng, 6)),
  }
  things = [('user', user, ANYWHERE) for user in ids[1:3]]
  return config, [('self', ids[0], ANYWHERE), *things]


def _tweets(rng):
  me, *others = [
      name.lower() + '_' + word
      for name, word in zip(
          several(rng, pools.FEMALE + pools.MALE, 6),
          several(rng, pools.WORDS, 6),
      )
  ]
  counter = int(rng.integers(200, 900))
  tweets = {
      str(counter - 4 + i): {
          'id': counter - 4 + i,
          'username': others[i],
          'content': _old_text(rng),
          'tags': ['#' + pick(rng, pools.TAG_WORDS)],
          'mentions': [],
      }
      for i in range(2)
  }
  config = {
      'username': me,
      'password': pick(rng, pools.WORDS) + digits(rng, 3),
      'authenticated': True,
      'tweets': tweets,
      'comments': {},
      'retweets': {},
      'following_list': others[2:5],
      'tweet_counter': counter,
  }
  things = [('tweet', int(number), ANYWHERE) for number in tweets]
  return config, things + [('followed', o, ANYWHERE) for o in others[2:5]]


def _travel(rng):
  first, last = name_of(rng)
  token = pick(rng, pools.WORDS) + digits(rng, 6)
  cards = [
      f'{bank}_{digits(rng, 4)}' for bank in several(rng, pools.BANKS, 2)
  ]  # pyformat: disable
  bookings = {}
  for _ in range(2):
    bookings[digits(rng, 7)] = {
        'card_id': cards[0], 'travel_date': '2026-09-14',
        'travel_from': 'SFO', 'travel_to': pick(rng, ('LAX', 'BOS', 'ORD')),
        'travel_class': 'economy',
        'travel_cost': float(rng.integers(2, 9) * 100),
        'transaction_id': digits(rng, 8),
    }  # pyformat: disable
  config = {
      'random_seed': int(digits(rng, 6)),
      'credit_card_list': {
          card: {
              'card_number': digits(rng, 16),
              'expiration_date': f'{int(rng.integers(1, 13)):02d}/2029',
              'cardholder_name': f'{first} {last}',
              'card_verification_number': int(digits(rng, 3)),
              'balance': float(rng.integers(200, 2000) * 10 + 3),
          }
          for card in cards
      },
      'booking_record': bookings,
      'access_token': token,
      'token_type': 'Bearer',
      'token_expires_in': 3600,
      'token_scope': 'read_write',
      'user_first_name': first,
      'user_last_name': last,
      'budget_limit': None,
  }
  return config, [
      ('access', token, ANYWHERE),
      *(('card', card, ANYWHERE) for card in cards[:1]),
      *(('booking', booking, ANYWHERE) for booking in bookings),
  ]


def _vehicle(rng):
  tires = {
      f'{end}{side}TirePressure': round(float(rng.uniform(28, 36)), 1)
      for end in ('front', 'rear') for side in ('Left', 'Right')
  }  # pyformat: disable
  config = {
      'random_seed': int(digits(rng, 6)),
      'fuelLevel': round(float(rng.uniform(4, 40)), 1),
      'batteryVoltage': round(float(rng.uniform(12, 13.5)), 1),
      'engineState': 'running',
      'doorStatus': dict.fromkeys(DOORS, 'locked'),
      'acTemperature': float(rng.integers(17, 27)),
      'fanSpeed': int(rng.integers(2, 10)) * 10,
      'acMode': 'auto',
      'humidityLevel': float(rng.integers(30, 60)),
      'headLightStatus': 'off',
      'parkingBrakeStatus': 'released',
      'brakePedalStatus': 'pressed',
      'brakePedalForce': 1000.0,
      'distanceToNextVehicle': 50.0,
      'cruiseStatus': 'inactive',
      'destination': 'None',
      **tires,
  }
  return config, []


_WORLDS: dict[str, Callable] = {
    'GorillaFileSystem': _files,
    'MathAPI': lambda rng: ({}, []),
    'MessageAPI': _messages,
    'TwitterAPI': _tweets,
    'TicketAPI': _tickets,
    'TradingBot': _trading,
    'TravelAPI': _travel,
    'VehicleControlAPI': _vehicle,
}


def _rich(config: dict[str, Any]) -> None:
  if 'TradingBot' in config:
    config['TradingBot']['account_info']['balance'] = BIG
  for card in config.get('TravelAPI', {}).get('credit_card_list', {}).values():
    card['balance'] = BIG


def _open(config: dict[str, Any]) -> None:
  config['TradingBot']['market_status'] = 'Open'


def _empty_tank(config: dict[str, Any]) -> None:
  config['VehicleControlAPI']['fuelLevel'] = 1.5


# Part of an error -> (name of the patch, what it changes).
PATCHES = (
    ('nsufficient funds', 'more money', _rich),
    ('less than budget limit', 'more money', _rich),
    ('Market is closed', 'the market opens', _open),
    ('above the tank capacity', 'less fuel at first', _empty_tank),
)


def patched(
    config: Mapping[str, Any], error: str
) -> tuple[dict[str, Any], str] | None:
  """A copy in which the error does not occur, and the patch's name."""
  for part, name, change in PATCHES:
    if part in error:
      out = copy.deepcopy(dict(config))
      change(out)
      return out, name
  return None
