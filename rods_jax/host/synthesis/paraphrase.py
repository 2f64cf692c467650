"""Light paraphrase of the user, outside of anything an argument uses."""

import dataclasses
import re

import numpy as np

from rods_jax.host import tool_calls
from rods_jax.host.synthesis import pools
from rods_jax.host.synthesis.reading import scalars
from rods_jax.types import Task

CHANCE = 0.5  # per phrase that could be put another way
FRAME_CHANCE = 0.15  # of an opener or a closer, per turn
_PHRASE = re.compile(
    r'(?<!\w)(?:'
    + '|'.join(
        map(re.escape, sorted(pools.PARAPHRASES, key=len, reverse=True))
    )
    + r')(?!\w)'
)
NEW_TOOLS_TEXT = (
    'I have updated some more functions you can choose from. What about now?'
)


def vary(task: Task, rng: np.random.Generator) -> Task:
  """The task with some phrases put another way; ground truths unchanged."""
  kept = _argument_texts(task)
  turns = []
  for turn in task.turns:
    if turn.user == NEW_TOOLS_TEXT or not turn.user:
      turns.append(turn)
      continue
    turns.append(dataclasses.replace(turn, user=_vary(turn.user, kept, rng)))
  return dataclasses.replace(task, turns=tuple(turns))


def _argument_texts(task: Task) -> list[str]:
  return [
      value
      for turn in task.turns
      for text in turn.ground_truth
      for _, value in scalars(
          [(c.args, c.kwargs) for c in tool_calls.parse(text)]
      )
      if isinstance(value, str) and ' ' in value
  ]


def _vary(text: str, kept: list[str], rng: np.random.Generator) -> str:
  spans = [
      (start, start + len(value))
      for value in kept
      if (start := text.find(value)) >= 0
  ]

  def put(match: re.Match) -> str:
    inside = any(a < match.end() and match.start() < b for a, b in spans)
    if inside or rng.random() >= CHANCE:
      return match.group()
    group = pools.PARAPHRASES[match.group()]
    return group[int(rng.integers(len(group)))]

  text = _PHRASE.sub(put, text)
  draw = rng.random()
  if draw < FRAME_CHANCE and text[:1].isupper():
    opener = pools.OPENERS[int(rng.integers(len(pools.OPENERS)))]
    if opener.rstrip()[-1] in '.!':
      text = opener + text
  elif draw > 1 - FRAME_CHANCE and text[-1:] in '.?!':
    text += pools.CLOSERS[int(rng.integers(len(pools.CLOSERS)))]
  return text
