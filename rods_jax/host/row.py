"""A trajectory in the making: its tokens, and the episode that they live in.

A row is append-only: token, loss mask and log-probability are written together.
"""

from collections.abc import Sequence

import numpy as np

from rods_jax import types
from rods_jax.host import env


class Row:
  """One sample of a task, from its first token to its status."""

  def __init__(self, task: types.Task, sample: int, episode: env.Book):
    self.task, self.sample = task, sample
    self.episode = episode
    self.tokens: list[int] = []
    self.mask: list[bool] = []
    self.logprobs: list[float] = []
    self.message: list[int] = []  # sampled since the last assistant header
    self.ended = False  # its last token is the end token
    self.pending: list[int] = []  # tokens that the generator hasn't got yet
    self.events: list[types.Event] = []
    self.forced = False
    self.calls: list[types.Call] = []  # of the message that ended just now
    self.status: types.Status | None = None

  def append(self, ids: Sequence[int]) -> None:
    """Adds tokens that the policy did not sample."""
    self.tokens += ids
    self.mask += [False] * len(ids)
    self.logprobs += [0.0] * len(ids)
    self.pending += ids

  def append_sampled(self, tokens: np.ndarray, logprobs: np.ndarray) -> None:
    """Adds tokens that the policy sampled, which the generator has."""
    ids = tokens.tolist()
    self.tokens += ids
    self.mask += [True] * len(ids)
    self.logprobs += logprobs.tolist()
    self.message += ids

  def log(self, role: str, text: str) -> None:
    turn = min(self.episode.turn, len(self.task.turns) - 1)
    self.events.append(types.Event(turn=turn, role=role, text=text))

  def end_message(self, text: str) -> None:
    self.log('assistant', text)
    self.message.clear()

  def drop_pending(self) -> None:
    """Removes what the generator never got, so that no row is too long."""
    end = len(self.tokens) - len(self.pending)
    del self.tokens[end:], self.mask[end:], self.logprobs[end:]
    self.pending.clear()

  def trajectory(self, policy_version: int) -> types.Trajectory:
    e = self.episode
    return types.Trajectory(
        task_id=self.task.task_id,
        sample=self.sample,
        tokens=np.array(self.tokens, np.int32),
        loss_mask=np.array(self.mask, bool),
        logprobs=np.array(self.logprobs, np.float32),
        turn_scores=tuple(e.scores),
        status=self.status,
        policy_version=policy_version,
        num_rounds=sum(event.role == 'assistant' for event in self.events),
        num_calls=e.num_calls,
        num_tool_errors=e.num_tool_errors,
        num_parse_errors=e.num_parse_errors,
        events=tuple(self.events),
    )
