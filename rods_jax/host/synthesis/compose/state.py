"""What is there after some planned calls, and which calls it is owed to."""

import dataclasses
from typing import Any, Iterator, Mapping

from rods_jax.host import bfcl
from rods_jax.host.synthesis.compose import tables
from rods_jax.host.synthesis.compose.records import Slot, Step, Thing

Calls = frozenset[int]
NONE: Calls = frozenset()
FIXED = ('me', 'traveler', 'twitterlogin')  # always the same when drawn
ROOT, ANYWHERE = '', '*'  # places other than folders


@dataclasses.dataclass(frozen=True)
class State:
  """What is known after some calls.

  Attributes:
    kinds: of the tables.
    long_context: whether results are the long ones.
    things: all so far, by number.
    near: numbers of those that an argument may name.
    writers: resource, or '#number' of a thing -> calls that it depends on.
    touched: resources and kinds that were needed, read or written.
    closed: resources that no call may touch any more.
    done: numbers of things that were ended in their state.
    place: the current folder.
    asked: what was asked for already.
    tools: how often each tool was used.
    config: (class, key, value) that the initial state must have.
  """

  kinds: Mapping[str, tables.Kind]
  long_context: bool
  things: tuple[Thing, ...]
  near: frozenset[int]
  writers: Mapping[str, Calls] = dataclasses.field(default_factory=dict)
  touched: frozenset[str] = frozenset()
  closed: frozenset[str] = frozenset()
  done: frozenset[int] = frozenset()
  place: str = ''
  asked: frozenset[tuple] = frozenset()
  tools: Mapping[str, int] = dataclasses.field(default_factory=dict)
  config: tuple[tuple[str, str, Any], ...] = ()

  def needs_of(self, number: int) -> Calls:
    """Calls without which a thing is not there."""
    found = self.writers.get(f'#{number}', NONE)
    kind = self.kinds.get(self.things[number].kind)
    if kind and kind.anchored:
      found |= self.writers.get(tables.HERE, NONE)
    return found

  def owed_to(self, number: int) -> Calls:
    """Calls on which a call depends that names the thing."""
    source = self.things[number].source
    return self.needs_of(number) | (NONE if source is None else {source})

  def latest(self, kind: str, count: int) -> list[int]:
    """The last things of a kind, in order."""
    found = [n for n in sorted(self.near) if self.things[n].kind == kind]
    return found[-count:]


@dataclasses.dataclass(frozen=True)
class Touch:
  """The resources of a call, the things in their names filled in."""

  needs: tuple[str, ...]
  reads: tuple[str, ...]
  sets: tuple[str, ...]
  adds: tuple[str, ...]
  wants: tuple[str, ...]
  fresh: tuple[str, ...]

  @classmethod
  def of(cls, use: tables.Use, slots: tuple[Slot, ...], state: State):
    by = _by_param(slots)
    by['place'] = state.place

    def fill(names):
      if not any('{' in name for name in names):
        return names
      return tuple(name.format_map(by) for name in names)

    reads = use.reads + (use.long_reads if state.long_context else ())
    reads += tuple(f'?{name}' for name in use.draws)
    return cls(*map(fill, (
        use.needs, reads, use.sets, use.adds, use.wants, use.fresh
    )))  # pyformat: disable

  @property
  def names(self) -> set[str]:
    return {*self.needs, *self.reads, *self.sets, *self.adds}


def owed(
    use: tables.Use, slots: tuple[Slot, ...], state: State
) -> Calls | None:
  """The calls that a call would depend on; None if it is not possible."""
  if not state.touched.isdisjoint(use.first):
    return None
  if (question := asked(use, slots)) and question in state.asked:
    return None
  by = _by_param(slots)
  if any(by[p] in state.done for p in use.done):
    return None
  if use.same:
    value, other = map(by.get, use.same)
    if value is not None and other not in state.things[value].of:
      return None
  touch = Touch.of(use, slots, state)
  if not touch.names.isdisjoint(state.closed):
    return None
  if not all(state.writers.get(name) for name in touch.wants):
    return None
  if any(state.writers.get(name) for name in touch.fresh):
    return None
  found = NONE
  for slot in slots:
    if slot.thing is not None:
      found |= state.owed_to(slot.thing)
  for name in (*touch.needs, *touch.reads):
    found |= state.writers.get(name, NONE)
  return found


def asked(use: tables.Use, slots: tuple[Slot, ...]) -> tuple:
  """What must not be asked twice; values that are drawn make a difference."""
  if any(
      s.source.how in (tables.POOL, tables.NEW) and s.source.kind not in FIXED
      for s in slots
  ):
    return ()
  named = tuple((s.thing, s.option) for s in slots)
  return (use.tool, use.index, named)


def after(state: State, step: Step, position: int) -> tuple[State, Step]:
  """The state after a call, and the call with its new things named."""
  use = step.use
  touch = Touch.of(use, step.slots, state)
  by = _by_param(step.slots)
  fails = NONE
  for number in by.values():
    if number is not None:
      fails |= state.needs_of(number)
  for name in touch.needs:
    fails |= state.writers.get(name, NONE)
  effect = fails | {position}
  writers = dict(state.writers)
  writers |= dict.fromkeys(touch.sets, effect)
  for name in touch.adds:
    writers[name] = writers.get(name, NONE) | effect
  for name in use.draws:
    writers[f'?{name}'] = writers.get(f'?{name}', NONE) | fails
  slots, things = list(step.slots), list(state.things)
  near = state.near - {by[p] for p in use.ends}
  near = {
      n for n in near
      if things[n].maker is None or things[n].kind not in use.spoils
  }  # pyformat: disable
  for thing, is_made in _new_things(step, state, position):
    near = _joined(near, thing, things, state.kinds)
    things.append(thing)
    if is_made:
      writers[f'#{thing.number}'] = effect
    for i, slot in enumerate(slots):
      if slot.source.how == tables.NEW and slot.params[0] == thing.path[1:]:
        slots[i] = dataclasses.replace(slot, thing=thing.number)
  place = state.place
  if use.enters:
    place = state.things[step.slots[0].thing].value
    inside = {t.number for t in things if t.place == place}
    near = {n for n in near if things[n].place == ANYWHERE} | inside
  named = {state.things[n].kind for n in by.values() if n is not None}
  owner = bfcl.owner(use.tool)
  return dataclasses.replace(
      state,
      things=tuple(things),
      near=frozenset(near),
      writers=writers,
      touched=state.touched | touch.names | named | {*use.first, *use.last},
      closed=state.closed | set(use.last),
      done=state.done | {by[p] for p in use.done},
      place=place,
      asked=state.asked | {asked(use, step.slots)},
      tools={**state.tools, use.tool: state.tools.get(use.tool, 0) + 1},
      config=state.config + tuple((owner, k, v) for k, v in use.config),
  ), dataclasses.replace(step, slots=tuple(slots))  # pyformat: disable


def _by_param(slots: tuple[Slot, ...]) -> dict[str, Any]:
  return {param: slot.thing for slot in slots for param in slot.params}


def _new_things(
    step: Step, state: State, position: int
) -> Iterator[tuple[Thing, bool]]:
  """(thing, whether it is in the state, so that others can change it)."""
  use, by = step.use, _by_param(step.slots)
  number = len(state.things)
  named = tuple(n for n in by.values() if n is not None)
  for slot in step.slots:
    if slot.source.how == tables.NEW:
      yield Thing(
          number, slot.source.kind, maker=position,
          path=f'@{slot.params[0]}', place=state.place,
      ), True  # pyformat: disable
      number += 1
  gives = use.gives + (() if state.long_context else use.short_gives)
  for is_made, pairs in ((True, use.makes), (False, gives)):
    for kind, path in pairs:
      source, outputs = position, tables.outputs(path)
      if path[0] == '@':
        other = state.things[by[path[1:]]]
        source, outputs = other.source, other.outputs
      place = state.place if state.kinds[kind].anchored else ANYWHERE
      yield Thing(
          number, kind, maker=position, source=source, path=path,
          outputs=outputs, place=place, of=named,
      ), is_made  # pyformat: disable
      number += 1


def _joined(
    near: frozenset[int],
    thing: Thing,
    things: list[Thing],
    kinds: Mapping[str, tables.Kind],
) -> frozenset[int]:
  """Near things with a new one; 'that price' means the latest one only."""
  kind = kinds[thing.kind]
  if thing.path[0] == '@' and thing.source is None or kind.nth or kind.many:
    return near | {thing.number}
  return {
      n for n in near
      if things[n].kind != thing.kind
      or things[n].maker is None and not kind.single
  } | {thing.number}  # pyformat: disable
