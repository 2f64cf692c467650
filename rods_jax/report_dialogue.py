"""Chooses the trajectories that report.html shows and cuts them for reading.

The texts come from a policy and from simulators: any characters, any length.
Here they get bounded and printable; the template escapes them.
"""

import dataclasses
import re
from typing import Any, Mapping, Sequence

from rods_jax import report_data

_MAX_EVENT_CHARS = 2_000
_MAX_DIALOGUE_CHARS = 60_000
_MAX_EVENTS = 200
_ROLES = {
    'system': 'System',
    'user': 'User',
    'assistant': 'Policy',
    'tool': 'Tool result',
}
# What to show: (outcome, zone of the task at that time).
_WANTED = (('right', 'mastered'), ('partly', 'boundary'), ('wrong', 'hard'))
# C0 and C1 controls but tab and newline, and marks that reorder text.
_UNPRINTABLE = re.compile(
    '[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]'
)


@dataclasses.dataclass(frozen=True)
class Message:
  role: str
  title: str
  text: str
  num_cut: int  # characters left out at the end


@dataclasses.dataclass(frozen=True)
class TurnView:
  """One user turn: its messages and its verdict, None if not scored."""

  number: int
  right: bool | None
  reason: str
  messages: Sequence[Message]


@dataclasses.dataclass(frozen=True)
class Dialogue:
  """One trajectory, ready to be rendered."""

  outcome: str  # 'right', 'partly' or 'wrong'
  heading: str
  facts: Sequence[str]
  system: Sequence[Message]
  turns: Sequence[TurnView]


def printable(text: str) -> str:
  """Control and direction marks become a visible replacement character."""
  return _UNPRINTABLE.sub('\N{REPLACEMENT CHARACTER}', text)


def without_surrogates(text: str) -> str:
  """Text that UTF-8 can hold; lone surrogates become '?'."""
  return text.encode('utf-8', 'replace').decode('utf-8')


def choose(run: report_data.Run) -> list[Dialogue]:
  """Three trajectories: right, partly right and wrong, one of each zone.

  Late steps win, so that the page shows what the policy does now. Where an
  outcome or a zone is missing, the nearest other trajectory takes its place.
  """
  zones = {(v.task_id, v.epoch): v.zone for v in run.visits}
  left = []
  for i, t in enumerate(filter(_is_readable, run.trajectories)):
    visit = str(t['task_id']), report_data.number(t, 'epoch')
    left.append((_outcome(t), zones.get(visit), i, t))
  chosen = []
  for wanted in _WANTED:
    if left:
      best = max(left, key=lambda item: _fit(item, wanted))
      left.remove(best)
      chosen.append(_dialogue(best[3], best[0], best[1]))
  return chosen


def _is_readable(trajectory: Mapping[str, Any]) -> bool:
  scores, events = (trajectory.get(k) for k in ('turn_scores', 'events'))
  return (
      isinstance(scores, list)
      and isinstance(events, list)
      and bool(scores and events)
      and all(isinstance(item, dict) for item in [*scores, *events])
      and 'task_id' in trajectory
  )


def _outcome(trajectory: Mapping[str, Any]) -> str:
  scores = [bool(s.get('score')) for s in trajectory['turn_scores']]
  if all(scores):
    return 'right'
  return 'partly' if any(scores) else 'wrong'


def _fit(
    item: tuple[str, str | None, int, Mapping[str, Any]],
    wanted: tuple[str, str],
) -> tuple[Any, ...]:
  """Sort key: outcome, zone, has a tool result, step, place in the file."""
  outcome, zone, index, trajectory = item
  has_result = any(e.get('role') == 'tool' for e in trajectory['events'])
  step = report_data.number(trajectory, 'step') or 0
  return outcome == wanted[0], zone == wanted[1], has_result, step, index


def _dialogue(
    trajectory: Mapping[str, Any], outcome: str, zone: str | None
) -> Dialogue:
  scores = trajectory['turn_scores']
  num_right = sum(bool(s.get('score')) for s in scores)
  facts = [f'task {trajectory["task_id"]}']
  if zone:
    facts.append(f'zone {zone}')
  for key in ('category', 'status', 'step', 'sample'):
    if trajectory.get(key) is not None:
      facts.append(f'{key} {trajectory[key]}')
  messages, num_left_out = _messages(trajectory['events'])
  if num_left_out:
    facts.append(f'{num_left_out} messages left out')
  return Dialogue(
      outcome=outcome,
      heading=(
          f'{num_right} of {len(scores)} '
          f'turn{"s" * (len(scores) != 1)} right'
      ),
      facts=[printable(str(fact)) for fact in facts],
      system=[m for _, m in messages if m.role == 'system'],
      turns=_turns(scores, messages),
  )


def _messages(
    events: Sequence[Mapping[str, Any]],
) -> tuple[list[tuple[int, Message]], int]:
  """(turn, message) pairs within the budget, and how many did not fit."""
  budget, messages = _MAX_DIALOGUE_CHARS, []
  for event in events[:_MAX_EVENTS]:
    text = str(event.get('text') or '')
    kept = text[: min(_MAX_EVENT_CHARS, budget)]
    if text and not kept:
      break
    budget -= len(kept)
    role = str(event.get('role'))
    message = Message(
        role=role if role in _ROLES else 'other',
        title=_ROLES.get(role, printable(role[:40])),
        text=printable(kept),
        num_cut=len(text) - len(kept),
    )
    messages.append((report_data.number(event, 'turn') or 0, message))
  return messages, len(events) - len(messages)


def _turns(
    scores: Sequence[Mapping[str, Any]],
    messages: Sequence[tuple[int, Message]],
) -> list[TurnView]:
  """Every scored turn, also those never reached, in order."""
  last = max([len(scores) - 1, *(turn for turn, _ in messages)])
  return [
      TurnView(
          number=i + 1,
          right=bool(scores[i].get('score')) if i < len(scores) else None,
          reason=(
              printable(str(scores[i].get('reason') or ''))[:300]
              if i < len(scores) else ''
          ),
          messages=[
              m for turn, m in messages if turn == i and m.role != 'system'
          ],
      )
      for i in range(min(last + 1, _MAX_EVENTS))
  ]
