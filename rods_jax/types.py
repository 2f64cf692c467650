"""Records that cross the layers of the project. Frozen, numpy only.

A `Task` is what the environment plays: an initial configuration, user turns,
the tools on offer and the ground-truth calls of each turn. A `Trajectory` is
one attempt of the policy at a task: one append-only row of tokens, with the
loss mask and the sampler's log-probabilities written as each token is written.

Shapes use one alphabet: B rows, G trajectories of a group, T tokens.
"""

import dataclasses
import enum
import hashlib
import json
from typing import Any, Mapping

import numpy as np

CATEGORIES = ('base', 'miss_func', 'miss_param', 'long_context')


class Status(enum.IntEnum):
  """How a trajectory ended. Every trajectory has exactly one."""

  DONE = 0  # all turns played, each ended by the policy itself
  MAX_ROUNDS = 1  # all turns played, at least one closed by the round budget
  MAX_TOKENS = 2  # the token budget of the trajectory ran out
  ENV_TIMEOUT = 3  # a tool call ran past its time limit


@dataclasses.dataclass(frozen=True)
class Turn:
  """One user turn.

  Attributes:
    user: what the user says; empty where only new tools arrive.
    ground_truth: call texts in BFCL's form, such as "cd(folder='a')"; empty
      where the right answer is to call nothing.
    new_tools: names that come on offer at the start of this turn.
  """

  user: str
  ground_truth: tuple[str, ...]
  new_tools: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Task:
  """One multi-turn task.

  Attributes:
    task_id: unique name: 'multi_turn_base_0' or 'syn_<content hash>'.
    category: one of CATEGORIES.
    scenario: BFCL index, 0 to 199: the unit that splits must not cut.
    classes: simulator classes, in BFCL's order.
    initial_config: class name -> JSON-like configuration. Never mutated.
    turns: the user turns.
    excluded: tools of those classes that are never on offer.
    parent: task_id of the seed that a generated task was made from, or None.
  """

  task_id: str
  category: str
  scenario: int
  classes: tuple[str, ...]
  initial_config: Mapping[str, Any]
  turns: tuple[Turn, ...]
  excluded: tuple[str, ...] = ()
  parent: str | None = None

  @property
  def origin(self) -> str:
    return 'human' if self.parent is None else 'generated'

  def content_hash(self) -> str:
    """16 hex digits over what is played; not over task_id and parent."""
    data = dataclasses.asdict(self)
    del data['task_id'], data['parent']
    text = json.dumps(data, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, data: Mapping[str, Any]) -> 'Task':
    """Inverse of to_json, also after a round trip through JSON text."""
    turns = tuple(
        Turn(
            user=turn['user'],
            ground_truth=tuple(turn['ground_truth']),
            new_tools=tuple(turn['new_tools']),
        )
        for turn in data['turns']
    )
    fields = dict(data)
    fields.update(
        turns=turns,
        classes=tuple(data['classes']),
        excluded=tuple(data['excluded']),
    )
    return cls(**fields)


@dataclasses.dataclass(frozen=True)
class Call:
  """A parsed tool call: literal arguments only."""

  name: str
  args: tuple[Any, ...] = ()
  kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TurnScore:
  """The verdict on one turn.

  Attributes:
    state_ok: public simulator state equals the ground truth's.
    response_ok: every ground-truth result of the turn was seen so far.
    reason: empty when the turn is right, else one short line that says why
      not (state difference, missing result, no call, call where none is due,
      closed by the round budget, never reached).
  """

  state_ok: bool
  response_ok: bool
  reason: str = ''

  @property
  def score(self) -> int:
    return int(not self.reason)


@dataclasses.dataclass(frozen=True)
class Event:
  """One message of a trajectory, for reading: role and text."""

  turn: int
  role: str  # 'system' | 'user' | 'assistant' | 'tool'
  text: str


@dataclasses.dataclass(frozen=True)
class Trajectory:
  """One attempt at a task.

  Attributes:
    task_id: the task played.
    sample: 0 to G-1 within its group.
    tokens: int32 [T], the whole row.
    loss_mask: bool [T], True where the policy sampled the token.
    logprobs: float32 [T], the sampler's log-probability at its temperature
      where loss_mask is True, 0 elsewhere.
    turn_scores: one for each turn of the task, also those never reached.
    status: how it ended.
    policy_version: the optimizer step whose parameters sampled it.
    num_rounds: assistant messages.
    num_calls: calls that were executed without error.
    num_tool_errors: calls that failed in the simulator or were not on offer.
    num_parse_errors: messages that were not a list of calls.
    events: the dialogue in text.
  """

  task_id: str
  sample: int
  tokens: np.ndarray
  loss_mask: np.ndarray
  logprobs: np.ndarray
  turn_scores: tuple[TurnScore, ...]
  status: Status
  policy_version: int
  num_rounds: int
  num_calls: int
  num_tool_errors: int
  num_parse_errors: int
  events: tuple[Event, ...] = ()

  @property
  def progress(self) -> float:
    """R_P of method RODS: mean turn score over all turns of the task."""
    return sum(s.score for s in self.turn_scores) / len(self.turn_scores)

  @property
  def correct(self) -> bool:
    """BFCL accuracy: all turns right."""
    return all(s.score for s in self.turn_scores)


@dataclasses.dataclass(frozen=True)
class SeedStats:
  """Reward statistics of one task over one epoch, as the device reduced them.

  Attributes:
    count: trajectories with a reward.
    total: sum of their progress rewards.
    square: sum of the squares.
  """

  count: int
  total: float
  square: float

  @property
  def mean(self) -> float | None:
    return self.total / self.count if self.count else None

  @property
  def variance(self) -> float | None:
    """Population variance; None without a trajectory."""
    if not self.count:
      return None
    return max(0.0, self.square / self.count - self.mean**2)
