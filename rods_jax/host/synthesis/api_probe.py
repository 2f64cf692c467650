"""Probes: what short chains of calls show about tools.

Each use of a tool is called in worlds that are drawn from the pools
(api_calls.py). Then every use of the same class is called after it, and again
in the world that the first call would have found: what fails or answers
something else needs, or shows, what the first has done. Simulators share
nothing, so state joins tools of one class only. Arguments of the second call
are drawn; one of them may be an argument or an output of the first: an output
that is taken without an error can feed the parameter.

A parameter that takes most values of its kind, wherever they come from, is
open: which tool feeds it is not decided by the tool.
"""

import collections
import dataclasses
import pickle
from typing import Any, Iterator, Mapping

import numpy as np

from rods_jax.host import bfcl, simulators
from rods_jax.host.synthesis import api_calls
from rods_jax.host.synthesis.api_calls import LIMIT_S, Begun, kind_of, shaped
from rods_jax.host.synthesis.api_graph import Open
from rods_jax.host.synthesis.compose import tables
from rods_jax.types import Call

FOREIGN = 24  # outputs of other classes that a parameter is tried with, about
MIN_OPEN = 0.5  # share of them that an open one takes
TRIES = 3  # of arguments for a second call, until it goes well
FRUITLESS = 24  # tries to feed a parameter, after which it is given up


@dataclasses.dataclass
class Shown:
  """What probes of a pair of tools have shown; see api_graph.Need."""

  shown: int = 0
  broken: int = 0
  probes: int = 0
  state: set[str] = dataclasses.field(default_factory=set)


class Probes:
  """All probes of some classes, run at once.

  Attributes:
    outputs: tool -> key of its result -> kind.
    opens: open parameters.
    links: (source, output, target, parameter) -> [accepted, probes].
    needs: (source, target) -> what was shown.
  """

  def __init__(self, classes: tuple[str, ...] = bfcl.CLASSES):
    self._classes = classes
    self._begun = [
        begun for cls in classes for use in tables.uses(cls)
        for begun in api_calls.first_calls(use)
    ]  # pyformat: disable
    self._samples = self._outputs()
    self.outputs = collections.defaultdict(dict)
    for (tool, key), sample in self._samples.items():
      self.outputs[tool][key] = kind_of(sample)
    self.opens = tuple(self._open_params())
    self._open = {(each.tool, each.param) for each in self.opens}
    self.links = collections.defaultdict(lambda: [0, 0])
    self.needs = collections.defaultdict(Shown)
    self._thirds: set[tuple[str, str]] = set()
    for begun in self._begun:
      self._follow(begun)

  def _outputs(self) -> dict[tuple[str, str], Any]:
    """(tool, key) -> the first value that was seen; sorted."""
    found = {}
    for begun in self._begun:
      for key, value in api_calls.outputs_of(begun.result):
        found.setdefault((begun.use.tool, key), value)
    return dict(sorted(found.items()))

  def _open_params(self) -> Iterator[Open]:
    """Tries each parameter with outputs of other classes."""
    for cls in self._classes:
      for tool in bfcl.tool_names(cls):
        for param in bfcl.parameters(tool):
          kind = api_calls.kind_taken(tool, param)
          foreign = [
              sample for (source, _), sample in self._samples.items()
              if bfcl.owner(source) != cls and kind_of(sample) == kind
          ]  # pyformat: disable
          foreign = foreign[:: max(1, len(foreign) // FOREIGN)]
          taken = _taken(tool, param, foreign)
          if kind and foreign and taken >= MIN_OPEN * len(foreign):
            yield Open(tool, param, kind, taken, len(foreign))

  def _follow(self, begun: Begun) -> None:
    """Every use of the class after a first call."""
    rng = np.random.default_rng(begun.key)
    for use in tables.uses(bfcl.owner(begun.use.tool)):
      if begun.state:
        self._tried(begun, use, {}, rng)
      for param in (param for names, _ in use.args for param in names):
        if (use.tool, param) not in self._open:
          for output, value in _candidates(begun, use.tool, param):
            self._feed(begun, output, use, param, value, rng)

  def _feed(
      self,
      begun: Begun,
      output: str | None,
      use: tables.Use,
      param: str,
      value: Any,
      rng: np.random.Generator,
  ) -> None:
    """Whether a parameter takes a value; what no try has shown is given up."""
    if output is None:
      self._tried(begun, use, {param: value}, rng, 1)
      return
    link = self.links[begun.use.tool, output, use.tool, param]
    if link[0] or link[1] < FRUITLESS:
      count, accepted = self._tried(begun, use, {param: value}, rng)
      link[0] += accepted
      link[1] += count

  def _tried(
      self,
      begun: Begun,
      use: tables.Use,
      fixed: Mapping[str, Any],
      rng: np.random.Generator,
      tries: int = TRIES,
  ) -> tuple[int, bool]:
    """Draws all other arguments until the call goes well: (tries, whether)."""
    count = 0
    for _ in range(tries):
      world = pickle.loads(begun.after)
      args = api_calls.arguments(use, world, begun.things, rng)
      if args is not None:
        count += 1
        if self._pair(begun, world, use, {**args, **fixed}):
          return count, True
    return count, False

  def _pair(
      self,
      begun: Begun,
      world: simulators.World,
      use: tables.Use,
      args: dict[str, Any],
  ) -> bool:
    """One probe, in the world after the first call; whether it goes well."""
    call = Call(use.tool, (), args)
    outcome = world.call(call, LIMIT_S)
    good = api_calls.went_well(use.tool, outcome)
    if not begun.state:
      return good
    other = pickle.loads(begun.before)
    without = other.call(call, LIMIT_S)
    found = self.needs[begun.use.tool, use.tool]
    found.probes += 1
    if outcome.ok and without.text != outcome.text:
      found.shown += 1
      found.broken += not without.ok
      found.state |= begun.state
      pair = begun.use.tool, use.tool
      if not without.ok and pair not in self._thirds:
        self._thirds.add(pair)
        self._third(begun, world, other)
    return good

  def _third(
      self, begun: Begun, world: simulators.World, other: simulators.World
  ) -> None:
    """Calls that the first one changes by what the second then draws.

    Args:
      begun: the first call.
      world: after both.
      other: without the first, so that the second failed and drew nothing.
    """
    rng = np.random.default_rng(begun.key)
    alone = pickle.loads(begun.after)
    api_calls.pass_on(world, alone)
    both, none, alone = map(pickle.dumps, (world, other, alone))
    for use in tables.uses(bfcl.owner(begun.use.tool)):
      args = api_calls.arguments(use, pickle.loads(both), begun.things, rng)
      if args is None:
        continue
      call = Call(use.tool, (), args)
      texts = []
      for start in (both, none, alone):
        outcome = pickle.loads(start).call(call, LIMIT_S)
        texts.append(outcome.text if outcome.ok else None)
      if texts[0] is None or texts[0] != texts[2]:
        continue  # It fails, or shows what the second has done.
      found = self.needs[begun.use.tool, use.tool]
      found.probes += 1
      if texts[0] != texts[1]:
        found.shown += 1
        found.broken += texts[1] is None
        found.state |= begun.state


def _taken(tool: str, param: str, foreign: list[Any]) -> int:
  """How many of these values a parameter takes."""
  for use in tables.uses(bfcl.owner(tool)):
    if use.tool != tool or all(param not in params for params, _ in use.args):
      continue
    begun = next(api_calls.first_calls(use), None)
    if begun is not None:
      return sum(_takes(begun, param, value) for value in foreign)
  return 0


def _takes(begun: Begun, param: str, value: Any) -> bool:
  """Whether the first call goes well with another value."""
  tool = begun.use.tool
  args = {**begun.args, param: shaped(tool, param, value)}
  world = pickle.loads(begun.before)
  return api_calls.went_well(tool, world.call(Call(tool, (), args), LIMIT_S))


def _candidates(
    begun: Begun, tool: str, param: str
) -> Iterator[tuple[str | None, Any]]:
  """(output, or None for an argument; value) that a parameter could take."""
  found = list(api_calls.outputs_of(begun.result))
  if begun.state:
    found += [(None, value) for value in begun.args.values()]
  for output, value in found:
    if kind_of(value) == api_calls.kind_taken(tool, param):
      yield output, shaped(tool, param, value)
