"""One trajectory's live world: offers tools, runs calls, scores turns.

Protocol: the policy's message is a list of calls (`execute`), something that
is no list of calls (`parse_error`), or nothing, which ends the turn
(`end_turn`). All turns are played; a failed one does not end the episode.
A call past its time limit breaks the world: the episode must be abandoned.
"""

import collections
import copy
import dataclasses
from typing import Any, Sequence

from rods_jax.host import bfcl, rewards, simulators, task_cache, tool_calls
from rods_jax.types import Call, Task, TurnScore

public_state = simulators.public_state

_REPLAY_TIMEOUT_S = 5.0  # per call; a usual one takes 30 microseconds


@dataclasses.dataclass(frozen=True)
class Limits:
  """Bounds of an episode.

  Attributes:
    max_rounds: messages with calls or parse errors in a turn; the message
      after them must end the turn or it is closed with score 0.
    call_timeout_s: seconds per tool call.
    max_result_chars: characters of a result that the policy sees. Scoring
      uses the whole result.
  """

  max_rounds: int = 5
  call_timeout_s: float = 1.0
  max_result_chars: int = 20_000


@dataclasses.dataclass(frozen=True)
class ToolResult:
  """What the policy gets for one call.

  Attributes:
    text: the result, cut visibly at Limits.max_result_chars.
    ok: False for an error of any kind.
    timeout: True where the world broke; abandon the episode.
  """

  text: str
  ok: bool
  timeout: bool = False


@dataclasses.dataclass(frozen=True)
class GroundTruth:
  """The ground truth, executed in a fresh world. Shared: do not change it.

  Attributes:
    results: per turn, the result of each call.
    states: per turn, class -> public attributes after it.
    ok_errors: call texts whose result is an error; "right" on both sides
      of a comparison and yet no ground truth to learn from.
    withheld: call texts of tools that are not on offer in their turn.
  """

  results: tuple[tuple[str, ...], ...]
  states: tuple[dict[str, dict[str, Any]], ...]
  ok_errors: tuple[str, ...]
  withheld: tuple[str, ...]


def offered(task: Task) -> tuple[frozenset[str], ...]:
  """Per turn, the tools that may be called."""
  names = {name for cls in task.classes for name in bfcl.tool_names(cls)}
  names -= set(task.excluded)
  out = []
  for turn in reversed(task.turns):
    out.append(frozenset(names))
    names -= set(turn.new_tools)
  return tuple(reversed(out))


def replay(task: Task) -> GroundTruth:
  """The executed ground truth of a task; cached by content.

  Raises:
    ParseError: a ground-truth text is not one call of literals.
  """
  return _truths.get(task, _replay)


_truths: task_cache.TaskCache[GroundTruth] = task_cache.TaskCache(2048)


def _replay(task: Task) -> tuple[GroundTruth, bool]:
  """The ground truth, and whether no call timed out.

  A machine that stood still is no reason to keep a wrong one.
  """
  world = _world(task)
  offers = offered(task)
  results, states, errors, withheld = [], [], [], []
  for turn, offer in zip(task.turns, offers):
    texts = []
    for text in turn.ground_truth:
      call = tool_calls.parse_ground_truth(text)
      outcome = world.call(call, _REPLAY_TIMEOUT_S)
      texts.append(outcome.text)
      if not outcome.ok:
        errors.append(text)
      if call.name not in offer:
        withheld.append(text)
    results.append(tuple(texts))
    states.append(_snapshot(world, states[-1] if states else {}))
  truth = GroundTruth(
      tuple(results), tuple(states), tuple(errors), tuple(withheld)
  )
  return truth, not world.broken


def _snapshot(
    world: simulators.World, last: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
  """Copies of the public state; what did not change is shared with `last`."""
  out = {}
  live = world.instances
  for name, instance in live.items():
    state = last.get(name)
    if state is None or rewards.state_difference(live, {name: state}):
      state = copy.deepcopy(public_state(instance))
    out[name] = state
  return out


def _world(task: Task) -> simulators.World:
  return simulators.World(
      task.classes, task.initial_config, task.category == 'long_context'
  )


class Episode:
  """One trajectory's live world.

  Attributes:
    task: the task played; never changed.
    turn: index of the current turn; the number of turns once done.
    scores: of the finished turns.
    num_calls: calls executed without error.
    num_tool_errors: calls that failed, were stopped, or were not on offer.
    num_parse_errors: messages that were no list of calls.
    num_rounds: messages of the policy: calls, parse errors, and the silent
      ones that end a turn.
    turn_rounds: messages with calls or parse errors in the current turn.
  """

  def __init__(self, task: Task, limits: Limits = Limits()):
    self.task = task
    self.limits = limits
    self.turn = 0
    self.scores: list[TurnScore] = []
    self.num_calls = 0
    self.num_tool_errors = 0
    self.num_parse_errors = 0
    self.num_rounds = 0
    self.turn_rounds = 0
    self._truth = replay(task)
    self._offers = offered(task)
    self._world = _world(task)
    # Only these results are remembered, so that a long trajectory stays small.
    self._expected = frozenset(r for turn in self._truth.results for r in turn)
    self._seen = collections.Counter()
    self._turn_calls = 0
    self._turn_executed = 0

  @property
  def done(self) -> bool:
    return self.turn == len(self.task.turns)

  @property
  def rounds_left(self) -> int:
    """Messages with calls that the current turn still allows; 0 or more."""
    return max(0, self.limits.max_rounds - self.turn_rounds)

  def on_offer(self) -> frozenset[str]:
    """Tools that can be called in the current turn."""
    self._check_live()
    return self._offers[self.turn]

  def execute(self, calls: Sequence[Call]) -> list[ToolResult]:
    """Runs the calls of one message in order; one result each.

    Whatever a call does is an error result, never an exception. A call not
    on offer is not run. After a call that timed out nothing runs any more.
    """
    self._check_live()
    self.num_rounds += 1
    self.turn_rounds += 1
    return [self._execute(call) for call in calls]

  def _execute(self, call: Call) -> ToolResult:
    self._turn_calls += 1
    if call.name not in self._offers[self.turn]:
      self.num_tool_errors += 1
      shown = call.name[:60]
      return ToolResult(f"Error: no tool '{shown}' is on offer now.", False)
    outcome = self._world.call(call, self.limits.call_timeout_s)
    if outcome.ok:
      self.num_calls += 1
    else:
      self.num_tool_errors += 1
    self._turn_executed += not outcome.timeout
    if outcome.text in self._expected:
      self._seen[outcome.text] += 1
    text = _cut(outcome.text, self.limits.max_result_chars)
    return ToolResult(text, outcome.ok, outcome.timeout)

  def parse_error(self, reason: str) -> None:
    """Counts a message that was no list of calls. It is not a call."""
    del reason  # The rollout shows it to the policy.
    self._check_live()
    self.num_rounds += 1
    self.turn_rounds += 1
    self.num_parse_errors += 1

  def end_turn(self, forced: bool = False) -> TurnScore:
    """Scores the current turn and goes to the next.

    Args:
      forced: closed by the round budget: the turn scores 0, and no message
        is counted.
    """
    self._check_live()
    if self._world.broken:
      score = TurnScore(False, False, rewards.TIMEOUT)
    else:
      score = rewards.score_turn(
          expected_results=self._truth.results[self.turn],
          expected_state=self._truth.states[self.turn],
          instances=self._world.instances,
          seen=self._seen,
          num_calls=self._turn_calls,
          num_executed=self._turn_executed,
          forced=forced,
      )
    self.num_rounds += not forced
    self.scores.append(score)
    self.turn += 1
    self.turn_rounds = self._turn_calls = self._turn_executed = 0
    return score

  def abandon(self, reason: str) -> None:
    """Every turn not yet scored scores 0 for this reason; then done."""
    reason = reason or rewards.NEVER_REACHED  # empty would mean right
    while not self.done:
      self.scores.append(TurnScore(False, False, reason))
      self.turn += 1

  def _check_live(self) -> None:
    if self.done:
      raise RuntimeError(f'{self.task.task_id}: the episode is over.')


def _cut(text: str, limit: int) -> str:
  if len(text) <= limit:
    return text
  return f'{text[:limit]}... ({len(text) - limit} more characters)'
