"""Writes a variant: exchanges the values of slots everywhere in a task.

All forms of all slots are replaced in one pass over each text, the longest
form first, so that two entities can trade places and a file name inside a
message is found before the words inside the file name.
"""

import dataclasses
import re
from typing import Any, Mapping

from rods_jax.host.synthesis import entities, places
from rods_jax.host.synthesis.entities import Form, Slot
from rods_jax.host.synthesis.reading import Argument, is_number, rebuild

_GAP = ' '
Values = Mapping[int, Any]  # slot index -> new value


class Writer:
  """Replaces slots in texts, arguments and configuration.

  Built once per seed; the patterns do not depend on the new values.
  """

  def __init__(self, slots: tuple[Slot, ...]):
    self.slots = slots
    pairs = [
        (i, form)
        for i, slot in enumerate(slots)
        for form in slot.forms
    ]
    # Long patterns first: a form that contains another one wins.
    pairs.sort(
        key=lambda p: (slots[p[0]].kind != 'message', -p[1].size)
    )
    inner = [p for p in pairs if slots[p[0]].kind != 'message']
    self._inner = _Table(inner)
    self._user = _Table(pairs, self._inner)
    self._all = _Table([p for p in inner if p[1].scope == 'all'])
    self._exact = {
        slot.value: i for i, slot in enumerate(slots) if slot.exact
    }
    self._ids = {
        slot.value: i for i, slot in enumerate(slots) if slot.kind == 'id'
    }

  def text(self, text: str, values: Values) -> str:
    """What the user says."""
    return self._user.apply(text, self.slots, values)

  def core(self, text: str, values: Values) -> str:
    """The text of a message: everything but messages is exchanged."""
    return self._inner.apply(text, self.slots, values)

  def argument(self, argument: Argument, values: Values) -> Any:
    """An argument of a call; its type stays."""
    old = argument.value
    if is_number(old):
      return self._number(argument, values)
    if not isinstance(old, str):
      return old
    index = self._exact.get(old)
    if index is not None and index in values:
      return str(entities_value(self.slots[index], values[index]))
    for index, value in values.items():
      slot = self.slots[index]
      if slot.kind == 'city' and old == places.airports().get(slot.value):
        return places.airports()[value]
    table = self._user if ' ' in old else self._all
    return self._path(table.apply(old, self.slots, values), values)

  def config(self, config: Any, values: Values) -> Any:
    """The initial configuration, keys included."""
    swaps = _stock_swaps(self.slots, values)
    out = self._config(config, values, swaps)
    for index, value in values.items():
      path = self.slots[index].path
      if path:
        # A new random_seed or counter may not be in the seed's configuration.
        node = out
        for step in path[:-1]:
          node = node[swaps.get(step, step)]
        node[path[-1]] = value
    return out

  def _config(self, node: Any, values: Values, swaps: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
      return {
          self._config_text(key, values, swaps): self._config(
              value, values, swaps
          )
          for key, value in node.items()
      }
    if isinstance(node, list):
      return [self._config(item, values, swaps) for item in node]
    if isinstance(node, str):
      return self._config_text(node, values, swaps)
    if is_number(node) and self._ids.get(node) in values:
      return type(node)(values[self._ids[node]])
    return node

  def _config_text(
      self, text: str, values: Values, swaps: Mapping[str, str]
  ) -> str:
    if text in swaps:
      return swaps[text]
    index = self._exact.get(text)
    if index is not None and index in values:
      return str(entities_value(self.slots[index], values[index]))
    if text.isdigit() and self._ids.get(int(text)) in values:
      return str(values[self._ids[int(text)]])
    # Sentences follow the rules of the dialogue that quotes them.
    table = self._inner if ' ' in text else self._all
    return table.apply(text, self.slots, values)

  def _number(self, argument: Argument, values: Values) -> Any:
    old = argument.value
    for index, value in values.items():
      slot = self.slots[index]
      if slot.value != old or not is_number(slot.value):
        continue
      if slot.kind == 'id' or (
          slot.numeric and (argument.tool, argument.param) in slot.hint
      ):
        return type(old)(value)
    return old

  def _path(self, text: str, values: Values) -> str:
    """Folder names inside a path argument."""
    if '/' not in text or ' ' in text:
      return text
    parts = []
    for part in text.split('/'):
      index = self._exact.get(part)
      known = index is not None and index in values
      parts.append(values[index] if known else part)
    return '/'.join(parts)


def entities_value(slot: Slot, value: Any) -> Any:
  """The text that stands for a slot where its whole value stands."""
  if slot.kind == 'message':
    before, core, after = value
    return before + core + after
  return value


def _stock_swaps(slots: tuple[Slot, ...], values: Values) -> dict[str, str]:
  """Symbols trade places in the market, so no two entries collide."""
  swaps = {}
  for index, value in values.items():
    if slots[index].kind == 'stock':
      swaps[slots[index].value] = value
      swaps.setdefault(value, slots[index].value)
  return swaps


@dataclasses.dataclass
class _Table:
  """One alternation over many forms, with the slot of each."""

  pairs: list[tuple[int, Form]]
  inner: '_Table | None' = None  # for the inside of a form that stays

  def __post_init__(self):
    self._regex = None
    if self.pairs:
      parts = [f'(?P<g{i}>{f.pattern})' for i, (_, f) in enumerate(self.pairs)]
      self._regex = re.compile('|'.join(parts))

  def apply(self, text: str, slots: tuple[Slot, ...], values: Values) -> str:
    if self._regex is None:
      return text

    def put(match: re.Match) -> str:
      index, form = self.pairs[int(match.lastgroup[1:])]
      if index not in values:
        if self.inner is not None and slots[index].kind == 'message':
          return self.inner.apply(match.group(), slots, values)
        return match.group()
      slot = slots[index]
      return entities.render(slot, form, entities_value(slot, values[index]))

    return self._regex.sub(put, text)


def complete_messages(
    writer: Writer, values: dict[int, Any]
) -> dict[int, Any]:
  """Gives messages that keep their text its new inner entities.

  A message 'Moved report.txt.' becomes (before, 'Moved memo.txt.', after).
  """
  inner = {
      i: v for i, v in values.items() if writer.slots[i].kind != 'message'
  }
  out = dict(values)
  for index, value in values.items():
    if writer.slots[index].kind == 'message' and not value[1]:
      core = writer.core(writer.slots[index].value, inner)
      out[index] = (value[0], core, value[2])
  return out


def change_calls(calls, change):
  """Rebuilds one call's arguments: change(path, scalar) -> scalar."""
  args = tuple(
      rebuild(value, change, ('args', i)) for i, value in enumerate(calls.args)
  )
  kwargs = {
      name: rebuild(value, change, ('kwargs', name))
      for name, value in calls.kwargs.items()
  }
  return args, kwargs
