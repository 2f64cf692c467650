"""Pools are large, values keep the look of what they replace."""

import numpy as np
import pytest

from rods_jax.host.synthesis import discover, entities, places, pools
from rods_jax.host.synthesis.entities import Form, Slot


@pytest.fixture
def rng():
  return np.random.default_rng(0)


def draws(slot, rng, n=200):
  return [entities.sample(slot, rng, set()) for _ in range(n)]


def test_pools_are_large():
  assert len(set(pools.MODIFIERS)) * len(set(pools.NOUNS)) > 1000
  assert len(set(pools.FOLDERS)) >= 60
  assert len(set(pools.FEMALE) | set(pools.MALE)) >= 60
  assert not set(pools.FEMALE) & set(pools.MALE)


@pytest.mark.parametrize(
    ('value', 'detail', 'expected'),
    [
        (1234567.0, ',0', '1,234,567'),
        (7.5, '2', '7.50'),
        (12.0, '0', '12'),
        (5.0, 'word', 'five'),
        (15.0, 'word', '15'),
    ],
)
def test_numbers_keep_their_look(value, detail, expected):
  assert entities.number_text(value, detail) == expected


@pytest.mark.parametrize(
    ('written', 'iso', 'again'),
    [
        ('December 15th, 2026', '2026-12-15', 'March 3rd, 2026'),
        ('1st of December, 2026', '2026-12-01', '3rd of March, 2026'),
        ('Oct 10 2026', '2026-10-10', 'Mar 3 2026'),
        ('2026-07-15', '2026-07-15', '2026-03-03'),
    ],
)
def test_dates_are_read_and_written(written, iso, again):
  ((text, date, template),) = discover.read_dates(f'Fly on {written} please.')
  assert (text, date) == (written, iso)
  assert entities.date_text('2026-03-03', template) == again


def test_dates_keep_the_fare(rng):
  """Fares double where the digits' sum is even; 2+0+2+6+1+2+1+5 = 19 is odd.

  A date with an even sum would double the price of the variant's flight.
  """
  for new in draws(Slot('date', '2026-12-15'), rng):
    assert sum(int(c) for c in new if c.isdigit()) % 2 == 1
    assert new.startswith('2026-')


def test_files_keep_extension_and_spoken_words(rng):
  slot = Slot('file', 'final_report.pdf', hint=('report',))
  for name in draws(slot, rng):
    assert name.endswith('_report.pdf') and name != 'final_report.pdf'
  for name in draws(Slot('file', 'AnnualReport2023.docx'), rng):
    assert name[0].isupper() and name.endswith('.docx') and '_' not in name


def test_tokens_keep_their_shape(rng):
  for token in draws(Slot('token', 'card_3478'), rng, 50):
    assert token.startswith('card_') and token[5:].isdigit()
    assert len(token) == 9
  for token in draws(Slot('token', '1432-7890'), rng, 50):
    assert [len(part) for part in token.split('-')] == [4, 4]
  for token in draws(Slot('token', 'latest_reservation'), rng, 50):
    assert set(token.split('_')) <= set(pools.WORDS)


@pytest.mark.parametrize(
    ('kind', 'value', 'low', 'high'),
    [
        ('number:priority', 3.0, 1, 5),
        ('number:speed', 65.0, 30, 115),
        ('number:money', 5000.0, 2000, 7000),
        ('number:shares', 100.0, 40, 130),
    ],
)
def test_numbers_keep_magnitude_and_limits(rng, kind, value, low, high):
  """Cruise control takes multiples of five only, tickets priority 1 to 5."""
  new = draws(Slot(kind, value), rng)
  assert len(set(new)) >= 4
  assert all(low <= n <= high and n.is_integer() for n in new)
  if kind == 'number:speed':
    assert all(n % 5 == 0 for n in new)


def test_names_fit_the_pronouns(rng):
  """'My friend David ... send him': not to Daphne."""
  assert set(draws(Slot('person', 'David'), rng)) <= set(pools.MALE)
  assert set(draws(Slot('person', 'Alice'), rng)) <= set(pools.FEMALE)


def test_nothing_left_outside_taken(rng):
  slot = Slot('number:priority', 3.0)
  assert entities.sample(slot, rng, {1.0, 2.0, 4.0, 5.0}) is None


def test_places_agree_with_the_simulators():
  assert places.airports()['San Francisco'] == 'SFO'
  assert places.zipcodes()['Rivermist'] == '83214'
  assert ('SFO', 'LAX') in places.flights()
  assert ('LHR', 'SFO') not in places.flights()
  assert ('83214', '94016') in places.drives()


def test_famous_airports_stay_famous():
  """Nobody can know the code of Rivermist's airport without asking."""
  pool = places.candidates('Boston', ('known',))
  assert set(pool) <= pools.FAMOUS_CITIES and 'Boston' not in pool


def test_spaced_form_of_a_stem():
  slot = Slot('file', 'final_report.pdf')
  form = Form('x', 'user', 'spaced:title')
  assert entities.render(slot, form, 'harbor_memo.pdf') == 'Harbor Memo'
