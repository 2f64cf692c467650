"""Cities, airports and zip codes of the simulators, and routes between them.

All tables are asked of the simulators, so they cannot disagree with them. The
simulators know few routes, so the cities of a variant are chosen together.
"""

import functools
from typing import Iterable, Mapping

import numpy as np

from rods_jax.host import bfcl
from rods_jax.host.synthesis import pools
from rods_jax.host.synthesis.reading import Reading

TRIES = 200  # random assignments of cities; each costs microseconds


@functools.cache
def airports() -> Mapping[str, str]:
  """City -> airport code."""
  api = bfcl.simulator('TravelAPI')()
  codes = {
      city: api.get_nearest_airport_by_city(location=city)['nearest_airport']
      for city in pools.CITIES
  }
  return {city: code for city, code in codes.items() if code != 'Unknown'}


@functools.cache
def zipcodes() -> Mapping[str, str]:
  """City -> zip code."""
  api = bfcl.simulator('VehicleControlAPI')()
  codes = {
      city: api.get_zipcode_based_on_city(city=city)['zipcode']
      for city in pools.CITIES
  }
  return {city: code for city, code in codes.items() if code != '00000'}


@functools.cache
def flights() -> frozenset[tuple[str, str]]:
  """Pairs of airport codes with a fare, in this direction."""
  api = bfcl.simulator('TravelAPI')()
  api._load_scenario({})  # pylint: disable=protected-access
  found = set()
  for a in airports().values():
    for b in airports().values():
      try:
        api.get_flight_cost(a, b, '2026-01-01', 'economy')
        found.add((a, b))
      except ValueError:
        continue
  return frozenset(found)


@functools.cache
def drives() -> frozenset[tuple[str, str]]:
  """Pairs of zip codes with a known distance."""
  api = bfcl.simulator('VehicleControlAPI')()
  api._load_scenario({})  # pylint: disable=protected-access
  codes = zipcodes().values()
  return frozenset(
      (a, b)
      for a in codes
      for b in codes
      if 'error' not in api.estimate_distance(a, b)
  )


class Routes:
  """What a seed asks of its cities: which flights and drives must exist."""

  def __init__(self, reading: Reading):
    self._flights = set()
    self._drives = set()
    legs = {}
    for a in reading.arguments:
      legs.setdefault(a.call, {})[a.param] = a.value
    for call in legs.values():
      pair = call.get('travel_from'), call.get('travel_to')
      if pair in flights():
        self._flights.add(pair)
      pair = call.get('cityA'), call.get('cityB')
      if pair in drives():
        self._drives.add(pair)

  def draw(
      self,
      pools_of: Mapping[str, Iterable[str]],
      rng: np.random.Generator,
  ) -> dict[str, str] | None:
    """New cities for old ones; None where no assignment was found.

    Args:
      pools_of: old city -> candidates. Cities that are not keys stay.
      rng: consumed.
    """
    pools_of = {old: sorted(pool) for old, pool in pools_of.items()}
    for _ in range(TRIES):
      new = {
          old: pool[int(rng.integers(len(pool)))]
          for old, pool in pools_of.items()
      }
      if len(set(new.values())) == len(new) and self._allow(new):
        return new
    return None

  def _allow(self, new: Mapping[str, str]) -> bool:
    fly = {airports()[a]: airports()[b] for a, b in new.items()}
    if not all(
        (fly.get(a, a), fly.get(b, b)) in flights() for a, b in self._flights
    ):
      return False
    zips = zipcodes()
    drive = {zips[a]: zips.get(b, '') for a, b in new.items() if a in zips}
    return all(
        (drive.get(a, a), drive.get(b, b)) in drives()
        for a, b in self._drives
    )


def candidates(city: str, hint: tuple[str, ...]) -> list[str]:
  """Cities that may stand for another one.

  hint: 'known' where the dialogue needs the airport's code without naming it
  or looking it up: then a famous city stays famous. 'drive': has a zip code.
  """
  pool = zipcodes() if 'drive' in hint else airports()
  if 'known' in hint and city in pools.FAMOUS_CITIES:
    pool = pools.FAMOUS_CITIES
  return sorted(other for other in pool if other != city)
