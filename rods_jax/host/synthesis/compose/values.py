"""Draws the values that a user says, by kind.

A value fits what is there when its call is due: a route that is flown, a folder
name that is free, a price near the market's. `Context` tells what is known.
"""

import dataclasses
from typing import Any, Callable, Mapping

import numpy as np

from rods_jax.host.synthesis import places, pools
from rods_jax.host.synthesis.compose.worlds import (
    ENDINGS,
    digits,
    fill,
    name_of,
    pick,
    sentence,
    several,
    stem,
)

TRIES = 8  # values that are looked at, until one is new


@dataclasses.dataclass
class Context:
  """What is known when a value is drawn.

  Attributes:
    rng: the only source of chance.
    live: class -> its simulator.
    args: the arguments of this call so far.
    drawn: all values that were drawn before, oldest first: (kind, value).
  """

  rng: np.random.Generator
  live: Mapping[str, Any]
  args: dict[str, Any] = dataclasses.field(default_factory=dict)
  drawn: list[tuple[str, Any]] = dataclasses.field(default_factory=list)


def draw(kind: str, context: Context) -> Any | None:
  """A value of a kind, one that was not drawn before where there is one.

  Returns:
    None where there is none at all; a tuple for several parameters.
  """
  known = {repr(value) for _, value in context.drawn}
  value = None
  for _ in range(TRIES):
    value = _POOLS[kind](context)
    if value is None or repr(value) not in known:
      break
  context.drawn.append((kind, value))
  return value


def shown(value: Any) -> str:
  """How a user writes a value."""
  if isinstance(value, dict):
    return shown(next(iter(value.values())))
  if isinstance(value, (list, tuple)):
    parts = [shown(v) for v in value]
    return ' and '.join(filter(None, (', '.join(parts[:-1]), parts[-1])))
  if isinstance(value, float):
    return str(int(value)) if value.is_integer() else str(value)
  return str(value)


def kinds() -> frozenset[str]:
  """All kinds that can be drawn."""
  return frozenset(_POOLS)


def _pool(*items) -> Callable[[Context], Any]:
  return lambda c: pick(c.rng, items)


def _steps(low: int, high: int, step: float, as_float=True):
  """Multiples of a step, both ends included."""
  kind = float if as_float else int
  return lambda c: kind(int(c.rng.integers(low, high + 1)) * step)


def _uneven(low: int, high: int):
  """Ends in 5, as no fare and no balance does."""
  return lambda c: 10.0 * int(c.rng.integers(low, high)) + 5


def _fill(templates) -> Callable[[Context], str]:
  return lambda c: fill(c.rng, pick(c.rng, templates))


def _date(c: Context) -> str:
  month, day = int(c.rng.integers(1, 13)), int(c.rng.integers(1, 29))
  return f'2027-{month:02d}-{day:02d}'


def _birthday(c: Context) -> str:
  return f'{int(c.rng.integers(1955, 2000))}{_date(c)[4:]}'


def _urgency(c: Context) -> dict[str, int]:
  """A priority that the ticket does not have yet."""
  queue = c.live['TicketAPI'].ticket_queue
  old = next(t['priority'] for t in queue if t['id'] == c.args['ticket_id'])
  return {'priority': pick(c.rng, [p for p in range(1, 6) if p != old])}


def _traveler(c: Context) -> tuple[str, str]:
  api = c.live['TravelAPI']
  return api.user_first_name, api.user_last_name


def _route(c: Context) -> tuple[str, str]:
  return pick(c.rng, sorted(places.flights()))


def _arrival(c: Context) -> str | None:
  start = c.args['travel_from']
  ends = sorted(b for a, b in places.flights() if a == start)
  return pick(c.rng, ends) if ends else None


def _city(c: Context) -> str:
  """One that flights leave from."""
  starts = {a for a, _ in places.flights()}
  said = {code for kind, value in c.drawn for code in _codes(kind, value)}
  return pick(c.rng, sorted(
      city for city, code in places.airports().items()
      if code in starts and code not in said
  ))  # pyformat: disable


def _codes(kind: str, value: Any) -> tuple[str, ...]:
  """The airports of a value."""
  if kind == 'route':
    return value
  return (value,) if kind == 'arrival' else ()


def _zipcity(c: Context) -> str | None:
  """One with a known way to the city before, if there was one."""
  before = [value for kind, value in c.drawn if kind == 'zipcity']
  codes = places.zipcodes()
  pool = {
      city for city in codes
      if any(codes[city] in pair for pair in places.drives())
      and city not in before
  }
  if before:
    pool &= {
        city for city in pool
        if (codes[before[-1]], codes[city]) in places.drives()
    }  # pyformat: disable
  return pick(c.rng, sorted(pool)) if pool else None


def _zipother(c: Context) -> str | None:
  start = c.args['cityA']
  ends = sorted(b for a, b in places.drives() if a == start)
  return pick(c.rng, ends) if ends else None


def _member(c: Context) -> str:
  """A colleague who has not had a message yet."""
  return pick(c.rng, list(c.live['MessageAPI'].user_map)[3:7])


def _newcomer(c: Context) -> str:
  known = c.live['MessageAPI'].user_map
  pool = [n for n in pools.FEMALE + pools.MALE if n not in known]
  return pick(c.rng, pool)


def _inboxword(c: Context) -> str:
  """A word of a message that is there."""
  text = next(iter(c.live['MessageAPI'].inbox[0].values()))
  return pick(c.rng, _words(text))


def _tweetword(c: Context) -> str:
  tweets = c.live['TwitterAPI'].tweets
  return pick(c.rng, _words(tweets[min(tweets)]['content']))


def _author(c: Context) -> str:
  tweets = c.live['TwitterAPI'].tweets
  return tweets[pick(c.rng, sorted(tweets)[:2])]['username']


def _login(c: Context) -> tuple[str, str]:
  api = c.live['TwitterAPI']
  return api.username, api.password


def _words(text: str) -> list[str]:
  """Words that say something."""
  found = [w.strip('.,!?').lower() for w in text.split()]
  return [w for w in found if len(w) > 4] or found


def _mentions(c: Context) -> list[str]:
  return ['@' + pick(c.rng, pools.WORDS) + pick(c.rng, ('hub', 'daily', 'io'))]


def _company(c: Context) -> str:
  """One that is traded and was not named by its symbol before."""
  named = [value for _, value in c.drawn]
  api = c.live['TradingBot']
  named += [order['symbol'] for order in api.orders.values()]
  pool = [
      company for symbol, company in pools.COMPANIES.items()
      if symbol in api.stocks and symbol not in named
  ]  # pyformat: disable
  return pick(c.rng, pool) if pool else None


def _stocks(c: Context) -> list[str]:
  return several(c.rng, sorted(c.live['TradingBot'].stocks), 3)


def _pricerange(c: Context) -> tuple[float, float]:
  """Around the price of the first stock, so that something is left."""
  stocks = c.live['TradingBot'].stocks
  named = [s for s in c.args['stocks'] if s in stocks] or sorted(stocks)
  price = stocks[named[0]]['price']
  return float(price // 10 * 10 - 50), float(price // 10 * 10 + 200)


def _limitprice(c: Context) -> float:
  stock = c.live['TradingBot'].stocks.get(c.args['symbol'], {'price': 100.0})
  return float(round(stock['price'] * float(c.rng.uniform(0.9, 1.1))))


def _newfile(c: Context) -> str:
  return f'{stem(c.rng)}.{pick(c.rng, ENDINGS)}'


def _here(c: Context) -> Mapping[str, Any]:
  """The entries of the current folder."""
  api = c.live['GorillaFileSystem']
  return api._current_dir.contents  # pylint: disable=protected-access


def _stem(c: Context) -> str | None:
  """What one file of the current folder begins with, and no other entry."""
  names = list(_here(c))
  stems = [n.partition('.')[0] for n in names if '.' in n and '_' in n]
  pool = [s for s in stems if sum(s in name for name in names) == 1]
  return pick(c.rng, pool) if pool else None


def _file_text(c: Context) -> str:
  return _here(c)[c.args['file_name']].content


def _pattern(c: Context) -> str | None:
  text = _file_text(c).split('\n\n')[0][:300]
  words = [w.strip('.,!?') for w in text.split() if w.strip('.,!?').isalpha()]
  words = [w for w in words if len(w) > 4]
  return pick(c.rng, words) if words else None


_POOLS: dict[str, Callable[[Context], Any]] = {
    # Travel
    'client': lambda c: f'client-{digits(c.rng, 4)}',
    'secret': lambda c: f'{pick(c.rng, pools.WORDS)}-{digits(c.rng, 4)}',
    'refresh': lambda c: f'refresh{digits(c.rng, 5)}',
    'person': lambda c: name_of(c.rng),
    'fullname': lambda c: ' '.join(name_of(c.rng)),
    'cardnumber': lambda c: digits(c.rng, 16),
    'expiry': lambda c: f'{int(c.rng.integers(1, 13)):02d}/20'
                        f'{int(c.rng.integers(28, 34))}',
    'cvv': lambda c: int(digits(c.rng, 3)),
    'date': _date,
    'birthday': _birthday,
    'passport': lambda c: f'US{digits(c.rng, 8)}',
    'traveler': _traveler,
    'route': _route,
    'arrival': _arrival,
    'city': _city,
    'support': _fill(pools.SUPPORT),
    'budget': _uneven(100, 950),
    'cost': _uneven(9, 60),
    'sum': _uneven(50, 900),
    # Trading
    'company': _company,
    'stocks': _stocks,
    'pricerange': _pricerange,
    'limitprice': _limitprice,
    'shares': _steps(4, 24, 5, as_float=False),
    'money': _uneven(30, 600),
    'withdrawal': _uneven(10, 150),
    'percent': _pool(0.25, 0.5, 0.75, 1.25, 1.5),
    'username': lambda c: name_of(c.rng)[1].lower() + digits(c.rng, 2),
    'password': lambda c: pick(c.rng, pools.WORDS) + digits(c.rng, 4),
    # Tickets
    'title': _fill(pools.TITLES),
    'problem': lambda c: sentence(c.rng),
    'priority': _steps(1, 5, 1, as_float=False),
    'urgency': _urgency,
    'fix': _fill(pools.WHOLE['resolution']),
    # Messages
    'note': lambda c: sentence(c.rng),
    'member': _member,
    'newcomer': _newcomer,
    'inboxword': _inboxword,
    # Tweets
    'twitterlogin': _login,
    'content': lambda c: sentence(c.rng),
    'remark': _fill(pools.WHOLE['comment_content']),
    'tags': lambda c: ['#' + pick(c.rng, pools.TAG_WORDS)],
    'mentions': _mentions,
    'follower': lambda c: pick(c.rng, pools.WORDS) + '_' + digits(c.rng, 2),
    'tweetword': _tweetword,
    'author': _author,
    'me': lambda c: c.live['TwitterAPI'].username,
    # Vehicle
    'cruise': _steps(8, 22, 5),
    'gap': _steps(4, 20, 10),
    'fuel': _steps(3, 30, 1),
    'liters': _steps(5, 60, 1),
    'miles': _steps(4, 90, 10),
    'celsius': _steps(17, 27, 1),
    'fan': _steps(2, 10, 10, as_float=False),
    'place': lambda c: f'{int(c.rng.integers(12, 990))} '
                       f'{pick(c.rng, pools.STREETS)}, '
                       f'{pick(c.rng, pools.CITIES)}',
    'zipcity': _zipcity,
    'zippair': lambda c: pick(c.rng, sorted(places.drives())),
    'zipother': _zipother,
    'log': lambda c: [sentence(c.rng)],
    # Math
    'number': _steps(15, 900, 1),
    'quantity': _steps(15, 900, 1),
    'whole': _steps(310, 900, 1),
    'numbers': lambda c: [float(n) for n in c.rng.integers(14, 400, 4)],
    'factor': _steps(3, 40, 0.5),
    'part': _steps(13, 300, 1),
    'logbase': _pool(2.0, 3.0, 5.0, 10.0, 20.0),
    'digits': _steps(5, 15, 1, as_float=False),
    'decimal': lambda c: round(float(c.rng.uniform(13, 900)), 4),
    'places': _pool(2, 3),
    'small': _steps(2, 12, 1),
    'exponent': _pool(2, 3, 4),
    # Files
    'newfile': _newfile,
    'copied': _newfile,
    'newfolder': lambda c: f'{pick(c.rng, pools.FOLDERS)}_{digits(c.rng, 2)}',
    'stem': _stem,
    'line': lambda c: sentence(c.rng),
    'lines': _pool(2, 3),
    'pattern': _pattern,
}
