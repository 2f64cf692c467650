"""The composer's parts: tables, values, patches, words."""

import numpy as np
import pytest

from rods_jax.host import bfcl, simulators
from rods_jax.host.synthesis.compose import (
    execute,
    plan,
    stages,
    tables,
    values,
    worlds,
)
from rods_jax.host.synthesis.records import Rejection
from rods_jax.types import Task, Turn

USES = [use for cls in bfcl.CLASSES for use in tables.uses(cls)]
KINDS = tables.kinds(bfcl.CLASSES)


def label(use):
  return f'{use.tool}-{use.index}'


@pytest.mark.parametrize('use', USES, ids=label)
def test_tables_hold_together(use):
  """All kinds can be drawn or worded, and each phrase says what it must."""
  assert len(use.say) >= 2 and len(set(use.say)) == len(use.say)
  for params, sources in use.args:
    for source in sources:
      if source.how in (tables.POOL, tables.NEW):
        assert source.kind in values.kinds()
      elif source.how == tables.THING:
        assert source.kind in KINDS
    silent = use.twin or all(
        s.how == tables.CONST or s.kind and s.kind in KINDS
        and (KINDS[s.kind].intro or params == ('cityA',)) for s in sources
    )  # pyformat: disable
    for phrase in use.say:
      assert silent or all(f'{{{p}}}' in phrase for p in params), phrase
  for kind, _ in use.makes + use.gives + use.short_gives:
    assert KINDS[kind].made or KINDS[kind].name
  for phrase in use.say:
    assert phrase[0].isupper() == (phrase[-1] in '.?')


def test_unknown_parameters_are_named(tmp_path, monkeypatch):
  (tmp_path / 'MathAPI.toml').write_text(
      '[[use]]\ntool = "add"\nargs = { z = "~number" }\nsay = ["a", "b"]\n'
  )
  monkeypatch.setattr(tables, 'FOLDER', tmp_path)
  tables._table.cache_clear()
  tables.uses.cache_clear()
  with pytest.raises(ValueError, match=r"MathAPI.toml: add has no .*'z'"):
    tables.uses('MathAPI')
  monkeypatch.undo()
  tables._table.cache_clear()
  tables.uses.cache_clear()
  assert tables.uses('MathAPI')


def test_sources_are_read():
  option, = tables._sources('?l:lines,w')
  assert option.values == ('l', 'w') and option.words == ('lines', 'w')
  const, = tables._sources('=["a|b"]'.replace('|', ','))
  assert const.values == (['a,b'],)
  quoted = list(tables._sources('&It is {price|fare}.'))
  assert [s.kind for s in quoted] == ['price', 'fare']
  assert quoted[0].text.format(3) == 'It is 3.'


@pytest.mark.parametrize('cls', bfcl.CLASSES)
def test_worlds_load_and_hold_what_they_name(cls):
  world = worlds.draw((cls,), np.random.default_rng(0))
  instance = simulators.World((cls,), world.config).instances[cls]
  for _, value, _ in world.things:
    assert str(value) in str(world.config) and instance is not None


def test_a_lack_of_money_is_patched_in_the_initial_state():
  """One share costs 100, the balance is 3: more money, then it is bought."""
  seed = Task('s', 'base', 0, ('TradingBot',), {}, (
      Turn('', ("trading_logout()",)),
      Turn('', ("place_order('Buy', 'AAPL', 1.0, 1)",)),
  ))  # pyformat: disable
  brief = stages.brief_of(seed)
  for key in range(60):
    rng = np.random.default_rng(key)
    found = plan.plan(brief, frozenset(), rng)
    if isinstance(found, Rejection):
      continue
    if all(s.use.tool != 'place_order' for s in found.steps):
      continue
    found.config['TradingBot']['account_info']['balance'] = 3.0
    result = execute.execute(found, rng)
    if 'Buy' in str([c.kwargs for c in result.calls]):
      assert result.patches == ('more money',)
      assert result.config['TradingBot']['account_info']['balance'] > 1e5
      assert found.config['TradingBot']['account_info']['balance'] == 3.0
      return
  raise AssertionError('no plan buys anything')


@pytest.mark.parametrize(('error', 'name'), [
    ('Insufficient funds: required', 'more money'),
    ('Market is closed. Transactions are not allowed.', 'the market opens'),
    ('Cannot fill gas above the tank capacity.', 'less fuel at first'),
    ('No available route for the given airports.', None),
])  # pyformat: disable
def test_only_some_errors_can_be_patched(error, name):
  config = worlds.draw(
      ('TradingBot', 'VehicleControlAPI'), np.random.default_rng(0)
  ).config
  found = worlds.patched(config, error)
  assert (found and found[1]) == name


@pytest.mark.parametrize(('value', 'text'), [
    (1500.0, '1500'), (0.25, '0.25'), (['a', 'b', 'c'], 'a, b and c'),
    (['a'], 'a'), ({'priority': 4}, '4'), ('x', 'x'),
])  # pyformat: disable
def test_how_values_are_written(value, text):
  assert values.shown(value) == text


def test_an_edit_changes_the_ticket():
  """A ticket of priority 2 was once to be given the priority 2 instead."""
  rng = np.random.default_rng(0)
  config = worlds.draw(('TicketAPI',), rng).config
  live = simulators.World(('TicketAPI',), config).instances
  ticket = config['TicketAPI']['ticket_queue'][0]
  drawn = set()
  for _ in range(60):
    context = values.Context(rng, live, {'ticket_id': ticket['id']})
    drawn.add(values.draw('urgency', context)['priority'])
  assert drawn == {1, 2, 3, 4, 5} - {ticket['priority']}
