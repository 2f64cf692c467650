"""The programmatic synthesizer: from a seed task to an executed variant.

Stages, each of which yields its output or a Rejection:
  substitute  entities, values and initial state are exchanged consistently;
  execute     the new ground truth runs in fresh simulators, arguments that
              came from results are taken from the new results;
  augment     (miss_func, miss_param) the turn without an answer may move;
              (base) such a turn may be put in, which changes the category;
  critique    gates on form, offer, profile and triviality.

Everything is a function of the seed and a generator, so a request gives the
same variants in any process. With the planner 'compose' the stages of
compose/stages.py take the place of these; those that deal in language may ask a
language model, and what it answers is kept, so that the same holds.
"""

import dataclasses
import functools
import re
from typing import Any, Sequence

import numpy as np

from rods_jax import rng as rng_lib
from rods_jax.host import task_cache, tool_calls
from rods_jax.host.synthesis import (
    augment,
    critique,
    discover,
    entities,
    execute,
    paraphrase,
    places,
    profile,
    quality,
    states,
)
from rods_jax.host.synthesis.compose import batch
from rods_jax.host.synthesis.llm.records import LlmConfig
from rods_jax.host.synthesis.reading import Reading
from rods_jax.host.synthesis.records import STAGES, Rejection, Report
from rods_jax.host.synthesis.request import Request
from rods_jax.host.synthesis.substitute import Writer, complete_messages
from rods_jax.types import Task, Turn

__all__ = [
    'STAGES', 'Rejection', 'Report', 'Request', 'heldout_variants',
    'is_heldout', 'make_variant', 'run_request',
]  # pyformat: disable

MOVE_EMPTY_TURN = 0.5  # chance that a miss_* variant is augmented anew
AUGMENTED_SHARE = 0.25  # of the variants of base seeds, missing something
MIN_SPOKEN = 2  # entities in the user's texts that a variant exchanges
MIN_HELDOUT = 4  # entities that the user says and an evaluation exchanges
HELDOUT_SHARE = 4  # one in so many contents is for evaluation only
REWORDINGS = 12  # tries to word a variant for its side of that split
PROBES = 3  # trials of a slot on its own, before it is used


@dataclasses.dataclass(frozen=True)
class Plan:
  """A seed, read once: its slots are known to work one by one."""

  reading: Reading
  writer: Writer
  routes: places.Routes

  @functools.cached_property
  def spoken(self) -> frozenset[int]:
    """Slots that the user's texts show; the others are hidden state."""
    text = '\n'.join(self.reading.texts)
    return frozenset(
        i
        for i, slot in enumerate(self.writer.slots)
        if any(re.search(form.pattern, text) for form in slot.forms)
    )


def is_heldout(task: Task) -> bool:
  """Whether a variant's content belongs to evaluation.

  The content itself decides, so that no run, warm start or synthesis that
  keeps to the rule can ever train on a variant that another one evaluates.
  """
  return is_heldout_hash(task.content_hash())


def is_heldout_hash(content_hash: str) -> bool:
  """The same of a content hash in hex digits."""
  return int(content_hash, 16) % HELDOUT_SHARE == 0


def is_varied(seed: Task) -> bool:
  """Whether variants of the seed exchange enough to be all different.

  A seed whose user names hardly anything has few distinct ground truths.
  """
  return len(plan_of(seed).spoken) >= MIN_HELDOUT


def make_variant(
    seed: Task,
    rng: np.random.Generator,
    attempts: int,
    forbidden: frozenset[str] | set[str] = frozenset(),
    report: Report | None = None,
    heldout: bool = False,
    category: str | None = None,
    max_profile_distance: float = profile.MAX_DISTANCE,
) -> Task | Rejection:
  """One variant of a seed, or the last attempt's rejection.

  Args:
    seed: human or generated.
    rng: consumed; the only source of chance.
    attempts: candidates to try, at least 1. Later ones exchange less.
    forbidden: content hashes that count as duplicates.
    report: counts every attempt, if given.
    heldout: the side of the `is_heldout` split to make it for.
    category: the seed's, unless another is given: for a base seed one of
      augment.CATEGORIES. Where that cannot be made, it is the seed's again.
    max_profile_distance: from the variant to its seed, 0 to 1.
  """
  category = category or seed.category
  report = report or Report()
  result = Rejection('substitute', 'no attempt was made')
  for attempt in range(attempts):
    report.attempts += 1
    result, changed = _attempt(seed, rng, attempt, heldout, category)
    if isinstance(result, Task):
      result = critique.review(seed, result, max_profile_distance) or result
    if isinstance(result, Task):
      if result.content_hash() in forbidden:
        result = Rejection('duplicate', 'known already')
      else:
        report.accepted += 1
        report.substituted += changed
        return result
    report.reject(result)
    if result.stage == augment.STAGE:
      category = seed.category  # nothing to withhold or to blur
  return result


def run_request(request: Request) -> tuple[list[Task], Report]:
  """All variants of a request: its pure function, without duplicates."""
  if request.planner == 'compose':
    return _composed(request)
  report = Report()
  known = set(request.forbidden) | {s.content_hash() for s in request.seeds}
  variants = []
  for index, seed in enumerate(request.seeds):
    for copy in range(request.per_seed):
      rng = rng_lib.host(
          request.rng_seed, request.stream, request.epoch, index, copy
      )
      category = seed.category if request.heldout else _category(seed, rng)
      result = make_variant(
          seed, rng, request.attempts, known, report, request.heldout,
          category, request.max_profile_distance,
      )  # pyformat: disable
      if isinstance(result, Rejection):
        report.failed_seeds += 1
        continue
      known.add(result.content_hash())
      variants.append(result)
  return variants, report


def _composed(request: Request) -> tuple[list[Task], Report]:
  """The same for tasks of composed calls."""
  report = Report()
  wanted = [
      batch.Wanted(
          seed,
          functools.partial(
              rng_lib.host, request.rng_seed, request.stream, request.epoch,
              index, copy,
          ),
      )
      for index, seed in enumerate(request.seeds)
      for copy in range(request.per_seed)
  ]  # pyformat: disable

  def accepts(task: Task) -> bool:
    content = task.content_hash()
    is_ours = is_heldout_hash(content) == request.heldout
    return is_ours and content not in request.forbidden

  made = batch.compose_all(
      wanted,
      accepts,
      quality.Novelty(
          request.gates.min_novelty, (*request.seeds, *request.known)
      ),
      request.attempts,
      request.gates,
      None if request.llm is None else LlmConfig(**request.llm),
  )
  return list(batch.tasks(made, report)), report


def _category(seed: Task, rng: np.random.Generator) -> str:
  """Of one variant for training: some of those of base seeds are augmented."""
  if seed.category != 'base' or rng.random() >= AUGMENTED_SHARE:
    return seed.category
  return augment.CATEGORIES[int(rng.integers(len(augment.CATEGORIES)))]


def heldout_variants(
    seeds: Sequence[Task], per_seed: int, rng_seed: int
) -> list[Task]:
  """The fixed evaluation set, from a random stream that nothing else uses.

  Only seeds that `is_varied` gives any: what an evaluation asks for must not
  coincide by chance with something that was trained on.
  """
  varied = tuple(seed for seed in seeds if is_varied(seed))
  request = Request(
      0, varied, per_seed, rng_seed, attempts=6,
      stream='synthesis/heldout', heldout=True,
  )  # pyformat: disable
  return run_request(request)[0]


_plans: task_cache.TaskCache[Plan] = task_cache.TaskCache(1024)


def plan_of(seed: Task) -> Plan:
  """The seed's plan; cached by content."""
  return _plans.get(seed, lambda seed: (_make_plan(seed), True))


def _make_plan(seed: Task) -> Plan:
  """Keeps the slots that can be exchanged alone; what fails alone stays.

  The probes draw from a stream of their own, so that a plan does not depend
  on who asks for it first.
  """
  reading = Reading(states.complete(seed))
  routes = places.Routes(reading)
  rng = np.random.default_rng(int(seed.content_hash()[:8], 16))
  found = discover.find_slots(reading)
  cities = tuple(slot for slot in found if slot.kind == 'city')
  groups = [(slot,) for slot in found if slot.kind != 'city']
  if cities:
    groups.append(cities)  # Routes tie them together.
  kept = []
  for group in groups:
    trial = Plan(reading, Writer(group), routes)
    for _ in range(PROBES):
      values = _draw(trial, rng, set(range(len(group))))
      if values and not isinstance(_execute(trial, values), Rejection):
        kept += group
        break
  return Plan(reading, Writer(tuple(kept)), routes)


def _attempt(
    seed: Task,
    rng: np.random.Generator,
    attempt: int,
    heldout: bool,
    category: str,
) -> tuple[Task | Rejection, int]:
  """One candidate up to the critique, and how many entities it exchanged."""
  plan = plan_of(seed)
  slots = plan.writer.slots
  chosen = {
      i for i in range(len(slots)) if attempt < 2 or rng.random() < 0.6
  }
  values = _draw(plan, rng, chosen)
  changed = len(plan.spoken & values.keys())
  least = MIN_HELDOUT if heldout else min(MIN_SPOKEN, len(plan.spoken))
  if not values or changed < least:
    return Rejection('substitute', 'too little to exchange'), 0
  outcome = _execute(plan, values)
  if isinstance(outcome, Rejection):
    return outcome, 0
  config, executed = outcome
  variant = _assemble(plan, values, config, executed)
  if category != seed.category:
    variant = augment.make(variant, category, rng)
    if isinstance(variant, Rejection):
      return variant, 0
  elif category in augment.CATEGORIES and rng.random() < MOVE_EMPTY_TURN:
    moved = augment.move(variant, rng)
    variant = variant if isinstance(moved, Rejection) else moved
  for _ in range(REWORDINGS):
    worded = paraphrase.vary(variant, rng)
    if is_heldout(worded) == heldout:
      break
  else:
    return Rejection('duplicate', 'always on the other side of the split'), 0
  variant = worded
  variant = dataclasses.replace(
      variant, task_id=f'syn_{variant.content_hash()}', parent=seed.task_id
  )
  return variant, changed


def _draw(
    plan: Plan, rng: np.random.Generator, chosen: set[int]
) -> dict[int, Any]:
  """New values for the chosen slots; no two alike, none the seed has."""
  slots = plan.writer.slots
  taken = {slot.value for slot in slots}
  cities = {slots[i].value: i for i in chosen if slots[i].kind == 'city'}
  values = {}
  if cities:
    pool = {c: places.candidates(c, slots[i].hint) for c, i in cities.items()}
    new = plan.routes.draw(dict(sorted(pool.items())), rng) or {}
    values = {cities[old]: city for old, city in new.items()}
  for index in sorted(chosen):
    slot = slots[index]
    new = None if slot.kind == 'city' else entities.sample(slot, rng, taken)
    if new is None:
      continue
    values[index] = new
    if slot.kind not in ('message', 'state', 'seed'):
      taken.add(new)
  return complete_messages(plan.writer, values)


def _execute(
    plan: Plan, values: dict[int, Any]
) -> tuple[dict[str, Any], execute.Outcome] | Rejection:
  """Writes the new configuration and runs the new calls in it."""
  reading = plan.reading
  config = plan.writer.config(reading.seed.initial_config, values)
  outcome = execute.run(reading, plan.writer, values, config)
  if isinstance(outcome, Rejection):
    return outcome
  return config, outcome


def _assemble(
    plan: Plan,
    values: dict[int, Any],
    config: dict[str, Any],
    executed: execute.Outcome,
) -> Task:
  """The variant as a task; its id is set when nothing changes any more."""
  seed = plan.reading.seed
  calls = [[] for _ in seed.turns]
  for (turn, _), call in zip(plan.reading.calls, executed.calls):
    calls[turn].append(tool_calls.render(call))
  turns = tuple(
      Turn(plan.writer.text(old.user, values), tuple(new), old.new_tools)
      for old, new in zip(seed.turns, calls)
  )
  return dataclasses.replace(seed, initial_config=config, turns=turns)
