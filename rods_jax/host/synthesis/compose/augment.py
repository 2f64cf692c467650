"""Augment: the forms in which a function or a parameter is missing at first."""

import dataclasses
import re

import numpy as np

from rods_jax.host.synthesis import augment
from rods_jax.host.synthesis.compose.records import Blur, Execution, Wording
from rods_jax.host.synthesis.compose.values import shown
from rods_jax.host.synthesis.compose.worlds import pick
from rods_jax.host.synthesis.records import Rejection
from rods_jax.types import Task, Turn

STAGE = augment.STAGE
_LEADS = ('', 'Sorry, I forgot to say. ', 'Right. ', 'My mistake. ', 'Oh, ')


def make(
    base: Task,
    category: str,
    wording: Wording,
    execution: Execution,
    rng: np.random.Generator,
) -> Task | Rejection:
  """The task in the form of a category.

  Args:
    base: without turns that are answered by no call.
    category: 'base' and 'long_context' leave it as it is.
    wording: of the task; says what can be left out.
    execution: of the task.
    rng: chooses what is missing.
  """
  if category not in augment.CATEGORIES:
    return dataclasses.replace(base, category=category)
  if category == 'miss_func':
    return augment.miss_func(base, rng)
  blurs = [b for b in wording.blurs if _is_missing(b, base, execution)]
  if not blurs:
    return Rejection(STAGE, 'no value to blur')
  blur = pick(rng, blurs)
  turn = base.turns[blur.turn]
  lead = pick(rng, _LEADS)
  supply = blur.supply
  if lead == 'Oh, ' and supply.startswith('The '):
    supply = 'the ' + supply[4:]
  elif lead == 'Oh, ':
    lead = ''
  turns = (
      *base.turns[: blur.turn],
      Turn(blur.text, ()),
      Turn(lead + supply, turn.ground_truth),
      *base.turns[blur.turn + 1 :],
  )
  return dataclasses.replace(base, category=category, turns=turns)


def _is_missing(blur: Blur, base: Task, execution: Execution) -> bool:
  """Whether the value cannot be found anywhere before it is supplied."""
  calls = sum(len(t.ground_truth) for t in base.turns[: blur.turn])
  before = [t.user for t in base.turns[: blur.turn]] + [blur.text]
  values = blur.value if isinstance(blur.value, list) else [blur.value]
  for value in values:
    pattern = re.compile(rf'(?<!\w){re.escape(shown(value))}(?!\w)')
    if any(map(pattern.search, (*before, *execution.results[:calls]))):
      return False
  return True
