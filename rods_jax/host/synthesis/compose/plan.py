"""Plan: composes a chain of calls that depends as the seed's does.

The calls of the seed are put into a random order that keeps dependencies
before what depends on them, and the order of their classes. Then, position by
position, a tool of the same class is taken that the API graph has after all
the calls that this one is to depend on (api_graph.py), in a use of the tables
that depends on exactly those: it takes what they have made or given, and needs
or reads what they have changed. The graph says, on evidence, what can follow
what; the tables how a tool is used and which of its arguments name things. A
look ahead, whether heirs are there at all, asks the tables alone: it saves time
and decides nothing. What is promised is measured later, by the critique.
"""

import collections
import itertools
from typing import Iterator, Mapping

import numpy as np

from rods_jax.host import bfcl
from rods_jax.host.synthesis import api_graph
from rods_jax.host.synthesis.compose import state as state_lib
from rods_jax.host.synthesis.compose import tables, worlds
from rods_jax.host.synthesis.compose.records import (
    Brief,
    Plan,
    Slot,
    Step,
    Thing,
)
from rods_jax.host.synthesis.compose.state import State
from rods_jax.host.synthesis.records import Rejection

STAGE = 'plan'
ORDERS = 12  # of the seed's calls, tried one after the other
SHUFFLES = 8  # tries for one such order
TRIALS = 30  # uses that are put into place, per order
BINDINGS = 12  # combinations of things that are looked at, per use
AGAIN = 0.25  # factor of a tool's weight for each time that it was used
Links = frozenset[tuple[int, int]]
# Kind -> (number of a thing, calls that one depends on who names it).
Menu = Mapping[str, list[tuple[int, state_lib.Calls]]]


def plan(
    brief: Brief,
    blocked: frozenset[str],
    rng: np.random.Generator,
    last: Rejection | None = None,
) -> Plan | Rejection:
  """A plan, or why there is none.

  Args:
    brief: what the variant has to look like.
    blocked: tools not to use.
    rng: the only source of chance.
    last: why the plan before was rejected; all that counts is blocked.
  """
  del last
  classes = brief.seed.classes
  world = worlds.draw(classes, rng)
  things = tuple(
      Thing(i, kind, value, place=place)
      for i, (kind, value, place) in enumerate(world.things)
  )
  at_hand = (state_lib.ROOT, state_lib.ANYWHERE)
  near = frozenset(t.number for t in things if t.place in at_hand)
  start = State(tables.kinds(classes), brief.long_context, things, near)
  reason = 'no chain of calls has these dependencies'
  for _ in range(ORDERS):
    order = _order(brief, rng)
    found = _Search(brief, blocked, order, rng).run(start, ())
    if found is None:
      continue
    state, steps = found
    if tuple(step.use.tool for step in steps) == brief.tools:
      reason = "the seed's calls again"
      continue
    config = worlds.with_initial(world.config, state.config)
    return Plan(brief, config, state.things, steps, _moved(brief.links, order))
  return Rejection(STAGE, reason)


def _order(brief: Brief, rng: np.random.Generator) -> tuple[int, ...]:
  """Another order of the seed's calls, or their own where none is found.

  What depends comes after what it depends on, the classes come in the order
  that they have, and as many turns as before depend on an earlier one.
  """
  least = _turns_back(brief.links, brief.calls)
  for _ in range(SHUFFLES):
    order = _shuffled(brief, rng)
    if order and _turns_back(_moved(brief.links, order), brief.calls) >= least:
      return order
  return tuple(range(len(brief.tools)))


def _shuffled(brief: Brief, rng: np.random.Generator) -> tuple[int, ...]:
  """A random order of the calls; () where it comes to a dead end."""
  before = collections.defaultdict(set)
  for i, j in brief.links:
    before[j].add(i)
  classes = [bfcl.owner(tool) for tool in brief.tools]
  order, left = [], list(range(len(classes)))
  while left:
    ready = [
        i for i in left
        if before[i] <= set(order) and classes[i] == classes[len(order)]
    ]
    if not ready:
      return ()
    order.append(ready[int(rng.integers(len(ready)))])
    left.remove(order[-1])
  return tuple(order)


def _turns_back(links: Links, calls: tuple[int, ...]) -> int:
  """Turns with a call that depends on one of an earlier turn."""
  turn = [t for t, size in enumerate(calls) for _ in range(size)]
  return len({turn[j] for i, j in links if turn[i] < turn[j]})


def _moved(links: Links, order: tuple[int, ...]) -> Links:
  """The dependencies between the calls' new places."""
  place = {call: i for i, call in enumerate(order)}
  return frozenset((place[i], place[j]) for i, j in links)


def _closest(links: Links) -> dict[int, frozenset[int]]:
  """Per call its parents, without those that other parents depend on."""
  parents = collections.defaultdict(set)
  for i, j in links:
    parents[j].add(i)
  return {
      j: frozenset(
          i for i in found if not any((i, other) in links for other in found)
      )
      for j, found in parents.items()
  }


class _Search:
  """A search for uses, depth first, with a bound."""

  def __init__(
      self,
      brief: Brief,
      blocked: frozenset[str],
      order: tuple[int, ...],
      rng: np.random.Generator,
  ):
    links = _moved(brief.links, order)
    self._classes = [bfcl.owner(brief.tools[call]) for call in order]
    self._uses = tuple(
        use for cls in brief.seed.classes for use in tables.uses(cls)
        if use.tool in brief.offered and use.tool not in blocked
    )  # pyformat: disable
    self._places = collections.defaultdict(list)  # of a class's uses
    for place, use in enumerate(self._uses):
      self._places[bfcl.owner(use.tool)].append(place)
    self._turns = [t for t, n in enumerate(brief.calls) for _ in range(n)]
    self._parents = [frozenset(i for i, k in links if k == j)
                     for j in range(len(self._turns))]  # pyformat: disable
    self._closest = _closest(links)
    self._children = [
        [child for child, found in self._closest.items() if i in found]
        for i in range(len(self._turns))
    ]
    self._added = frozenset(name for use in self._uses for name in use.adds)
    self._graph = api_graph.load()
    self._known: dict[tuple, bool] = {}
    self._rng = rng
    self._left = TRIALS

  def run(
      self, state: State, steps: tuple[Step, ...]
  ) -> tuple[State, tuple[Step, ...]] | None:
    """The state after the whole chain and the chain, or None."""
    position = len(steps)
    if position == len(self._turns):
      return state, steps
    wanted = self._parents[position]
    menu = _menu(state, wanted)
    able = self._able(steps)
    for use in self._shuffled(state, self._classes[position]):
      if not _may_fit(use, state, menu, wanted):
        continue
      if not self._has_heirs(use, steps):
        continue
      # Drawn for every use that may fit, so that an edge more in the graph
      # changes no chances but those of the chains that it joins.
      choices = self._choices(use, state, menu)
      if use.tool not in able:
        continue
      slots = self._bind(use, choices, state, steps)
      if slots is None:
        continue
      self._left -= 1
      step = Step(self._turns[position], use, slots)
      after, step = state_lib.after(state, step, position)
      found = self.run(after, (*steps, step))
      if found is not None or self._left <= 0:
        return found
    return None

  def _able(self, steps: tuple[Step, ...]) -> frozenset[str]:
    """Tools that the graph has after the next call's parents.

    A parent on which another parent depends is reached through that one. It
    saves the search for arguments; `_is_known` then asks for each edge.
    """
    found = frozenset(self._graph.tools)
    for parent in self._closest.get(len(steps), ()):
      found &= self._graph.successors[steps[parent].use.tool]
    return found

  def _has_heirs(self, use: tables.Use, steps: tuple[Step, ...]) -> bool:
    """Whether uses could follow that depend on it as the links want.

    A call on which others depend that the same call depends on counts with
    them: a log-in with what is done after it.
    """
    position = len(steps)
    for child in self._children[position]:
      given = {use.provides} | {
          steps[i].use.provides for i in self._closest[child] if i < position
      }
      if not self._possible(child, frozenset(given)):
        return False
    return True

  def _possible(self, position: int, given: frozenset[frozenset]) -> bool:
    """Whether a use fits that depends on what some parents provide.

    It is only as good as the tables: kinds and resources, no things.
    """
    key, wanted = (position, given), self._classes[position]
    if key not in self._known:
      count = len(self._closest[position])
      self._known[key] = any(
          (
              heir.capacity >= count
              or not heir.gathers.isdisjoint(self._added)
          )
          and all(not tags.isdisjoint(heir.consumes) for tags in given)
          and all(
              self._possible(child, frozenset((heir.provides,)))
              for child in self._children[position]
          )
          for heir in map(self._uses.__getitem__, self._places[wanted])
      )
    return self._known[key]

  def _shuffled(self, state: State, cls: str) -> list[tables.Use]:
    """The uses of a class in random order, seldom used ones first."""
    keys = self._rng.random(len(self._uses)).tolist()
    for place in self._places[cls]:
      use = self._uses[place]
      weight = use.weight * AGAIN ** state.tools.get(use.tool, 0)
      keys[place] **= 1 / weight
    order = sorted(self._places[cls], key=keys.__getitem__, reverse=True)
    return [self._uses[place] for place in order]

  def _choices(
      self, use: tables.Use, state: State, menu: Menu
  ) -> Iterator[tuple[Slot, ...]]:
    """Combinations of what the arguments may be, in random order."""
    if use.twin:
      return _twins(use, state)
    options = []
    for params, sources in use.args:
      found = [
          slot
          for source in sources
          for slot in self._options(params, source, menu)
      ]
      if len(found) > 1:
        found = [found[i] for i in self._rng.permutation(len(found))]
      options.append(found)
    return itertools.islice(itertools.product(*options), BINDINGS)

  def _bind(
      self,
      use: tables.Use,
      choices: Iterator[tuple[Slot, ...]],
      state: State,
      steps: tuple[Step, ...],
  ) -> tuple[Slot, ...] | None:
    """Slots with which the use depends on exactly the wanted calls."""
    wanted = self._parents[len(steps)]
    for slots in choices:
      named = [s.thing for s in slots if s.thing is not None]
      if len(set(named)) == len(named):
        if state_lib.owed(use, slots, state) == wanted:
          if self._is_known(use, slots, state, steps):
            return slots
    return None

  def _is_known(
      self,
      use: tables.Use,
      slots: tuple[Slot, ...],
      state: State,
      steps: tuple[Step, ...],
  ) -> bool:
    """Whether all that joins the use to its parents are edges of the graph."""
    fed = set()
    for slot in slots:
      thing = None if slot.thing is None else state.things[slot.thing]
      if thing is None or thing.source is None:
        continue
      fed.add(thing.source)
      source = steps[thing.source].use.tool
      for output, param in itertools.product(thing.outputs, slot.params):
        if not self._graph.feeds(source, output, use.tool, param):
          return False
    return all(
        parent in fed or self._graph.enables(steps[parent].use.tool, use.tool)
        for parent in self._closest.get(len(steps), ())
    )

  def _options(
      self, params: tuple[str, ...], source: tables.Source, menu: Menu
  ) -> Iterator[Slot]:
    """What one argument may be."""
    if source.how == tables.OPTION:
      option = int(self._rng.integers(len(source.values)))
      yield Slot(params, source, option=option)
    elif source.how != tables.THING:
      yield Slot(params, source)
    else:
      for number, _ in menu.get(source.kind, ()):
        yield Slot(params, source, number)


def _menu(state: State, wanted: state_lib.Calls) -> Menu:
  """What may be named, by kind, without depending on other calls."""
  found = collections.defaultdict(list)
  for number in sorted(state.near):
    owed = state.owed_to(number)
    if owed <= wanted:
      found[state.things[number].kind].append((number, owed))
  return found


def _may_fit(
    use: tables.Use, state: State, menu: Menu, wanted: state_lib.Calls
) -> bool:
  """A quick look before all combinations: False only where none fits."""
  if not state.touched.isdisjoint(use.first):
    return False
  found = state_lib.NONE
  for name in use.fixed:
    found |= state.writers.get(name, state_lib.NONE)
  if not found <= wanted:
    return False
  for _, sources in use.args:
    is_there = False
    for source in sources:
      if source.how != tables.THING:
        is_there = True
        continue
      for _, owed in menu.get(source.kind, ()):
        is_there = True
        found |= owed
    if not is_there:
      return False
  return found == wanted or use.is_open


def _twins(use: tables.Use, state: State) -> Iterator[tuple[Slot, ...]]:
  """The latest things of one kind, in their order."""
  things = state.latest(use.args[0][1][0].kind, len(use.args))
  if len(things) == len(use.args):
    yield tuple(
        Slot(params, sources[0], number)
        for (params, sources), number in zip(use.args, things)
    )
