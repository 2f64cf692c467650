"""What the page of experiments/view.py shows, from trajectories.jsonl.

A log may be of an older version, or have lost its last line: what is missing
becomes None, and what cannot be read is counted in a note.
"""

import dataclasses
from typing import Any, Mapping, Sequence

from rods_jax import report_data
from rods_jax import report_dialogue

_MAX_EVENT_CHARS = 5_000
_ROLES = ('system', 'user', 'assistant', 'tool')


@dataclasses.dataclass
class Page:
  """What the page holds.

  Attributes:
    index: per trajectory what the list and the filters need.
    details: per trajectory the rest, which is read when it is opened.
    token_ids, token_texts: the distinct tokens; rows are indices of them.
    notes: one line for each thing that is missing.
  """

  index: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  details: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  token_ids: list[int] = dataclasses.field(default_factory=list)
  token_texts: list[str] = dataclasses.field(default_factory=list)
  notes: list[str] = dataclasses.field(default_factory=list)


def make_page(
    lines: Sequence[Mapping[str, Any]],
    num_bad: int = 0,
    steps: tuple[int, int] | None = None,
) -> Page:
  """The page of the lines of trajectories.jsonl.

  Args:
    lines: in the order of the file.
    num_bad: lines that were no JSON.
    steps: first and last step to show.
  """
  page, vocabulary = Page(), {}
  num_without = 0
  first: Mapping[str, Any] = {}
  for line in lines:
    if not _is_readable(line):
      num_bad += 1
      continue
    if 'ground_truth' in line:
      first = line
    if steps and not steps[0] <= line['step'] <= steps[1]:
      continue
    of_group = first if _same_group(first, line) else {}
    tokens = _tokens(line, of_group)
    num_without += tokens is None
    page.index.append(_summary(line, tokens))
    page.details.append(_detail(line, of_group, tokens, vocabulary))
  for token_id, text in vocabulary:
    page.token_ids.append(token_id)
    page.token_texts.append(report_dialogue.printable(text))
  if num_bad:
    page.notes.append(f'{num_bad} lines could not be read.')
  if num_without:
    page.notes.append(f'{num_without} trajectories have no tokens in the log.')
  return page


def _is_readable(line: Mapping[str, Any]) -> bool:
  scores, events = line.get('turn_scores'), line.get('events')
  return (
      isinstance(scores, list)
      and isinstance(events, list)
      and all(isinstance(item, dict) for item in [*scores, *events])
      and all(type(line.get(key)) is int for key in ('step', 'sample'))
      and isinstance(line.get('task_id'), str)
      and report_data.number(line, 'progress') is not None
  )


def _same_group(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
  keys = ('step', 'task_id')
  return [one.get(key) for key in keys] == [other.get(key) for key in keys]


def _tokens(
    line: Mapping[str, Any], first: Mapping[str, Any]
) -> list[tuple[int, str]] | None:
  """(id, text) of the whole row; None where the log does not hang together."""
  try:
    shared = line['shared']
    ids = first.get('tokens', [])[:shared] + line['tokens']
    texts = first.get('texts', [])[:shared] + line['texts']
    whole = (
        len(ids) == len(texts) == sum(line['runs'])
        and sum(line['runs'][1::2]) == len(line['logprobs'])
    )
    return [(int(i), str(t)) for i, t in zip(ids, texts)] if whole else None
  except (KeyError, TypeError, ValueError):
    return None


def _summary(line, tokens) -> dict[str, Any]:
  return {
      'step': line['step'],
      'epoch': report_data.number(line, 'epoch'),
      'task': report_dialogue.printable(line['task_id']),
      'category': report_dialogue.printable(str(line.get('category'))),
      'sample': line['sample'],
      'reward': line['progress'],
      'status': report_dialogue.printable(str(line.get('status'))),
      'right': sum(bool(s.get('score')) for s in line['turn_scores']),
      'turns': len(line['turn_scores']),
      'tokens': None if tokens is None else len(tokens),
      'sampled': None if tokens is None else len(line['logprobs']),
  }


def _detail(line, first, tokens, vocabulary) -> dict[str, Any]:
  """The rest of a trajectory; new tokens enter the vocabulary."""
  events = [_event(event) for event in line['events']]
  detail = {'turns': _turns(line, first), 'events': events}
  if tokens is None:
    return detail
  row = [vocabulary.setdefault(t, len(vocabulary)) for t in tokens]
  messages = [e for e in events if e['role'] == 'assistant']
  spans = _spans(line['runs'])
  if len(messages) == len(spans):
    for message, span in zip(messages, spans):
      message['span'] = span
  return detail | {
      'row': row, 'runs': line['runs'], 'logprobs': line['logprobs']
  }


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
  text, role = str(event.get('text') or ''), event.get('role')
  return {
      'turn': report_data.number(event, 'turn') or 0,
      'role': role if role in _ROLES else 'other',
      'text': report_dialogue.printable(text[:_MAX_EVENT_CHARS]),
      'cut': max(0, len(text) - _MAX_EVENT_CHARS),
  }


def _turns(line, first) -> list[dict[str, Any]]:
  """Per turn the verdict and the calls that were due."""
  truth = first.get('ground_truth')
  truth = truth if isinstance(truth, list) else []
  turns = []
  for i, score in enumerate(line['turn_scores']):
    due = truth[i] if i < len(truth) and isinstance(truth[i], list) else None
    turns.append({
        'right': bool(score.get('score')),
        'reason': report_dialogue.printable(str(score.get('reason') or '')),
        'state_ok': score.get('state_ok'),
        'response_ok': score.get('response_ok'),
        'due': due and [report_dialogue.printable(str(c)) for c in due],
    })
  return turns


def _spans(runs: Sequence[int]) -> list[tuple[int, int]]:
  """Begin and end of each sampled run: one for each message of the policy."""
  spans, position = [], 0
  for i, count in enumerate(runs):
    if i % 2 and count:
      spans.append((position, position + count))
    position += count
  return spans
