"""Ground-truth dialogues as token rows: what the warm start imitates.

The rows are built from the same pieces as rollouts, on a live environment, so
the policy later continues exactly the kind of row that it was trained on.
"""

from collections.abc import Sequence
import dataclasses
import re

import numpy as np

from rods_jax import types
from rods_jax.host import chat_format
from rods_jax.host import env
from rods_jax.host import tool_calls

_WORD = re.compile(r'[\w./-]+')


@dataclasses.dataclass(frozen=True)
class Demonstration:
  """tokens int32 [T] and loss_mask bool [T], True on assistant messages."""

  tokens: np.ndarray
  loss_mask: np.ndarray

  @property
  def longest_message(self) -> int:
    """Tokens of the longest assistant message."""
    edges = np.flatnonzero(np.diff(np.pad(self.loss_mask, 1).astype(int)))
    return int((edges[1::2] - edges[::2]).max())


def demonstrate(
    task: types.Task,
    fmt: chat_format.ChatFormat,
    random: np.random.Generator | None = None,
    early_stop_share: float = 0.0,
) -> Demonstration:
  """Plays the ground truth, or with chance only the beginning of it.

  Args:
    task: what is played.
    fmt: writes it as tokens.
    random: draws the turns that stop early; None: none does.
    early_stop_share: chance that a turn of several calls leaves out its last
      one. The dialogue ends there: what comes next would be built on it.

  Raises:
    ValueError: a turn that was played whole doesn't score 1.
  """
  episode = env.Episode(task)
  tokens: list[int] = []
  mask: list[bool] = []

  def append(ids: Sequence[int], sampled: bool = False) -> None:
    tokens.extend(ids)
    mask.extend([sampled] * len(ids))

  said = ''
  for t, turn in enumerate(task.turns):
    if t:
      append(fmt.turn(turn.user, turn.new_tools))
    else:
      append(fmt.prompt(episode.on_offer(), turn.user))
    said += turn.user + '\n'
    calls = [tool_calls.parse_ground_truth(c) for c in turn.ground_truth]
    early = (
        len(calls) > 1
        and random is not None
        and random.random() < early_stop_share
    )
    if early:
      calls.pop()
    while calls:
      texts, results = [], []
      while calls and not _needs(calls[0], texts, said):
        call = calls.pop(0)
        results.append((call, episode.execute([call])[0].text))
        texts.append(results[-1][1])
      append(fmt.calls([call for call, _ in results]), sampled=True)
      append(fmt.results(texts))
      said += '\n'.join(texts) + '\n'
    append(fmt.calls([]), sampled=True)
    if early:
      break
    score = episode.end_turn()
    if score.reason:
      raise ValueError(f'{task.task_id}, turn {t}: {score.reason}')
  return Demonstration(np.array(tokens, np.int32), np.array(mask, bool))


def _needs(call: types.Call, texts: Sequence[str], said: str) -> bool:
  """Whether an argument comes from results of the message being written.

  Such a call has to wait for the next message. A value counts as coming from
  a result if it stands there as a word and nobody said it before.
  """
  if not texts:
    return False
  new = {word for text in texts for word in _WORD.findall(text)}
  known = set(_WORD.findall(said))
  values = [*call.args, *call.kwargs.values()]
  words = {w for value in values for w in _WORD.findall(str(value))}
  return any(len(w) > 1 and w in new and w not in known for w in words)


def texts(task: types.Task) -> list[str]:
  """What a tokenizer should learn from: user text, values, tool results."""
  episode = env.Episode(task)
  found = []
  for turn in task.turns:
    found.append(turn.user)
    for text in turn.ground_truth:
      call = tool_calls.parse_ground_truth(text)
      values = [*call.args, *call.kwargs.values()]
      found += [f'{value!r},' for value in values] + [');']
      found.append(episode.execute([call])[0].text[:500])
    episode.end_turn()
  return found
