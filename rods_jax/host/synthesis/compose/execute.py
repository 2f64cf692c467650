"""Execute: the ground truth first. Fills in the plan's arguments and runs it.

Values come from the tables, the live state, earlier outputs and the pools. An
error that a better initial state avoids is patched there and the chain begins
anew; whatever else fails is a rejection that names the tool, so that the next
plan does without it.
"""

from typing import Any, Mapping

import numpy as np

from rods_jax.host import bfcl, simulators
from rods_jax.host.synthesis import patience, reading
from rods_jax.host.synthesis.compose import tables, values, worlds
from rods_jax.host.synthesis.compose.records import (
    Execution,
    Plan,
    Slot,
    Step,
)
from rods_jax.host.synthesis.records import Rejection
from rods_jax.types import Call

STAGE = 'execute'
MAX_PATCHES = 3
NOTHING_AT = 'nothing at'  # a path that a result has not
_MAY_BE_EMPTY = ('tags', 'mentions')  # of a tweet
_STATES_ONLY = ('get_login_status', 'estimate_drive', 'check_tire')


def execute(
    plan: Plan, rng: np.random.Generator
) -> Execution | Rejection:
  """The plan run in fresh simulators, its initial state patched as needed."""
  config, patches = plan.config, ()
  # The same chances after a patch: the same dialogue in a better state.
  key = int(rng.integers(2**63))
  for _ in range(MAX_PATCHES + 1):
    run, failed = _patiently(plan, config, key)
    if failed is None:
      return Execution(
          config, tuple(run.calls), tuple(run.results), tuple(run.values),
          tuple(run.names), patches,
      )  # pyformat: disable
    found = worlds.patched(config, failed.reason)
    if found is None or found[1] in patches:
      return failed
    config, patches = found[0], (*patches, found[1])
  return failed


def _patiently(
    plan: Plan, config: Mapping[str, Any], key: int
) -> tuple['_Run', Rejection | None]:
  """One pass over the plan, and what it failed at."""

  def attempt(limit_s: float):
    run = _Run(plan, config, np.random.default_rng(key), limit_s)
    failed = run.go()
    return (run, failed), not run.stopped

  return patience.run(attempt)


class _Run:
  """One pass over the plan."""

  def __init__(
      self,
      plan: Plan,
      config: Mapping[str, Any],
      rng: np.random.Generator,
      limit_s: float,
  ):
    self._plan = plan
    self._limit_s = limit_s
    self._world = simulators.World(
        plan.brief.seed.classes, config, plan.brief.long_context
    )
    self._rng = rng
    self._drawn: list[tuple[str, Any]] = [
        (thing.kind, thing.value) for thing in plan.things
        if thing.value is not None
    ]  # pyformat: disable
    self.calls: list[Call] = []
    self.results: list[str] = []
    self.values: list[Mapping[str, Any]] = []
    self.names: list[Any] = [thing.value for thing in plan.things]

  @property
  def stopped(self) -> bool:
    """Whether a call ran out of time."""
    return self._world.broken

  def go(self) -> Rejection | None:
    """None when all went well."""
    for position, step in enumerate(self._plan.steps):
      args = self._args(step)
      if isinstance(args, Rejection):
        return args
      call = Call(step.use.tool, (), args)
      outcome = self._world.call(call, self._limit_s)
      parsed = reading.parsed(outcome.text)
      if not outcome.ok or is_soft_failure(step.use.tool, parsed):
        return _failed(step, outcome.text[:120])
      self.calls.append(call)
      self.results.append(outcome.text)
      self.values.append(args)
      for number, thing in enumerate(self._plan.things):
        if thing.maker == position:
          name = _at(thing.path, parsed, args)
          if name is None:
            return _failed(step, f'{NOTHING_AT} {thing.path}')
          self.names[number] = name
    return None

  def _args(self, step: Step) -> dict[str, Any] | Rejection:
    """All arguments of a call, in the order of the parameters.

    Things first: what is drawn may have to fit them.
    """
    context = values.Context(
        self._rng, self._world.instances, drawn=self._drawn
    )
    slots = sorted(
        step.slots,
        key=lambda s: s.source.how in (tables.POOL, tables.NEW),
    )
    for slot in slots:
      found = self._value(slot, context)
      if found is None:
        return _failed(step, f'no value for {slot.params[0]}')
      together = found if len(slot.params) > 1 else (found,)
      context.args.update(zip(slot.params, together))
    order = bfcl.parameters(step.use.tool)
    return {p: context.args[p] for p in order if p in context.args}

  def _value(self, slot: Slot, context: values.Context) -> Any:
    source = slot.source
    if source.how == tables.CONST:
      return source.values[0]
    if source.how == tables.OPTION:
      return source.values[slot.option]
    if source.how == tables.THING:
      name = self.names[slot.thing]
      return source.text.format(values.shown(name)) if source.text else name
    return values.draw(source.kind, context)


def _failed(step: Step, reason: str) -> Rejection:
  return Rejection(STAGE, f'{step.use.tool}: {reason}')


def is_soft_failure(tool: str, parsed: Any) -> bool:
  """Whether a result says without an error that nothing came of it."""
  if any(part in tool for part in _STATES_ONLY):
    return False
  if parsed == [] or parsed in ('Unknown', 'Stock not found'):
    return True
  if not isinstance(parsed, dict):
    return False
  return any(
      value is False
      or value == [] and key not in _MAY_BE_EMPTY
      or value in ('Unknown', 'Stock not found', '00000', 'Already retweeted')
      for key, value in parsed.items()
  ) and 'healthy_tire_pressure' not in parsed


def _at(path: str, parsed: Any, args: Mapping[str, Any]) -> Any:
  """What a result holds at 'a.0.b'; a list for 'a,b'; '@p' is argument p."""
  if path[0] == '@':
    return args[path[1:]]
  if ',' in path:
    return [_at(part, parsed, args) for part in path.split(',')]
  for key in path.split('.'):
    try:
      parsed = parsed[int(key) if key.isdigit() else key]
    except (KeyError, IndexError, TypeError):
      return None
  if isinstance(parsed, str):
    return parsed.removeprefix('./')
  return parsed
