"""Missing-function and missing-parameter forms of a task.

In both forms one turn cannot be answered as it stands, its ground truth is
empty, and the next turn brings what was missing: the withheld tool, or the
value that was blurred.
"""

import dataclasses
import re

import numpy as np

from rods_jax.host.synthesis.paraphrase import NEW_TOOLS_TEXT
from rods_jax.host.synthesis.records import Rejection
from rods_jax.types import Task, Turn

CATEGORIES = ('miss_func', 'miss_param')
STAGE = 'augment'


def base_form(task: Task) -> Task | Rejection:
  """The task with its empty turns merged into the turns that complete them."""
  turns: list[Turn] = []
  pending: Turn | None = None
  for turn in task.turns:
    if not turn.ground_truth:
      if pending is not None:
        return Rejection(STAGE, 'two empty turns in a row')
      pending = turn
      continue
    if pending is None:
      turns.append(turn)
      continue
    text = pending.user
    if turn.user != NEW_TOOLS_TEXT:
      text = f'{pending.user} {turn.user}'
    turns.append(Turn(text, turn.ground_truth))
    pending = None
  if pending is not None:
    return Rejection(STAGE, 'the last turn is empty')
  return dataclasses.replace(task, category='base', turns=tuple(turns))


def move(task: Task, rng: np.random.Generator) -> Task | Rejection:
  """The same dialogue with the empty turn somewhere else."""
  base = base_form(task)
  if isinstance(base, Rejection):
    return base
  if len(base.turns) != len(task.turns) - 1:
    return Rejection(STAGE, 'not exactly one empty turn')
  if task.category == 'miss_func':
    return miss_func(base, rng)
  return Rejection(STAGE, 'not supported yet')


def miss_func(base: Task, rng: np.random.Generator) -> Task | Rejection:
  """Withholds a tool in the first turn that needs it; it comes one turn later.

  Args:
    base: a task without empty turns.
    rng: chooses among the tools that no earlier turn needs.
  """
  options = []
  earlier: set[str] = set()
  for index, turn in enumerate(base.turns):
    names = {text.partition('(')[0] for text in turn.ground_truth}
    options += [(index, name) for name in sorted(names - earlier)]
    earlier |= names
  if not options:
    return Rejection(STAGE, 'no tool to withhold')
  index, name = options[int(rng.integers(len(options)))]
  old = base.turns[index]
  turns = (
      *base.turns[:index],
      Turn(old.user, ()),
      Turn(NEW_TOOLS_TEXT, old.ground_truth, (name,)),
      *base.turns[index + 1 :],
  )
  return dataclasses.replace(base, category='miss_func', turns=turns)
