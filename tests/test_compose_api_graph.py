"""What the composer's tables promise, held against the API graph.

The graph knows what the documentation says and what the training tasks do. A
table may promise more, if there is a reason to believe it: here they stand.
Whatever a table promises is measured again in each task that uses it, by the
critique, so a wrong promise costs an attempt and never a wrong task.
"""

import collections

import pytest

from experiments import synthesize
from rods_jax.host import bfcl
from rods_jax.host.synthesis import api_graph
from rods_jax.host.synthesis.compose import tables

USES = [use for cls in bfcl.CLASSES for use in tables.uses(cls)]

# (kind of the value, parameters that take it) -> why.
MATH = ('a', 'value', 'number', 'numbers')
TEXT = ('content', 'message')
NUMBERS = (
    'balance', 'count', 'degrees', 'distance', 'fare', 'gallons', 'pressures',
    'price', 'result', 'speed',
)  # pyformat: disable
REASONS = (
    (NUMBERS, MATH, 'any number can be reckoned with'),
    (NUMBERS, TEXT, 'any number can be quoted in a text'),
    (('foundline', 'shop', 'text'), TEXT, 'a text can be passed on whole'),
    (('balance', 'fare'), ('budget_limit',), 'sums of money in dollars'),
    (('listed',), ('file_name',), 'find returns paths of files'),
    (('stock',), ('stock',), 'the symbol that get_symbol_by_name returns'),
    (('stocklist',), ('stocks',), 'get_available_stocks lists symbols'),
)


@pytest.fixture(scope='module')
def graph():
  """Of the training scenarios; the categories differ in nothing here."""
  return api_graph.build(s for s in synthesize.seeds() if s.category == 'base')


def values():
  """(source, target, parameter) -> kinds, of values that a result gives."""
  found = collections.defaultdict(set)
  for use in USES:
    given = {
        kind for kind, path in use.makes + use.gives + use.short_gives
        if path[0] != '@'
    }  # pyformat: disable
    for target in USES:
      for params, sources in target.args:
        for source in sources:
          if source.how == tables.THING and source.kind in given:
            found[use.tool, target.tool, params[0]].add(source.kind)
  return found


def reason(kinds, param):
  return next(
      (
          why for names, params, why in REASONS
          if kinds <= set(names) and param in params
      ),
      '',
  )  # pyformat: disable


def test_values_flow_as_the_graph_knows_or_for_a_reason(graph):
  known = {(link.source, link.target, link.param) for link in graph.links}
  ours = values()
  assert len(ours.keys() & known) >= 40
  without = {
      edge for edge, kinds in ours.items()
      if edge not in known and not reason(kinds, edge[2])
  }  # pyformat: disable
  assert without == set()


def test_no_reason_is_stale(graph):
  """Each is needed by some promise that the graph does not know."""
  known = {(link.source, link.target, link.param) for link in graph.links}
  used = {
      reason(kinds, edge[2])
      for edge, kinds in values().items() if edge not in known
  }  # pyformat: disable
  assert used == {why for _, _, why in REASONS}


def test_needs_that_training_tasks_show_are_in_the_tables(graph):
  """Where leaving a call out makes another fail, in half of the scenarios and
  three at least, tables whose tools are both used promise it too: by a
  resource, or by a thing that one makes and the other names."""
  made = collections.defaultdict(set)
  for use in USES:
    made[use.tool] |= use.provides
  wants = collections.defaultdict(set)
  for use in USES:
    wants[use.tool] |= use.consumes
  missing = {
      (need.source, need.target)
      for need in graph.needs
      if need.fails >= max(3, need.of / 2)
      and made[need.source] and wants[need.target]
      and made[need.source].isdisjoint(wants[need.target])
  }  # pyformat: disable
  assert missing == set()
