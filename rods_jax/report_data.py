"""Reads a working directory for the report, whatever state it is in.

A run may have been killed after one step, resumed, or never evaluated: what is
missing becomes None and a note, never a zero and never an exception.
"""

import collections
import dataclasses
import json
import math
import os
import pathlib
from typing import Any, Iterable, Mapping, Sequence

from rods_jax import errors
from rods_jax import metrics

ZONES = ('hard', 'boundary', 'mastered')
SPLITS = {
    'heldout_variants': 'Held-out variants of training scenarios',
    'heldout_scenarios': 'Held-out scenarios',
}
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Visit:
  """One task's group statistics in one epoch."""

  task_id: str
  epoch: int
  mean: float
  variance: float
  zone: str


@dataclasses.dataclass(frozen=True)
class Run:
  """What a working directory says.

  Attributes:
    name: the directory's name.
    config: the resolved configuration; empty if missing.
    steps: rows of optimizer steps, one a step, in order.
    epochs: the rows of `steps` that close an epoch, in order.
    evaluations: rows with evaluation results, one a step, in order.
    pool_events: objects of pool.jsonl.
    visits: the visits among them.
    trajectories: objects of trajectories.jsonl.
    evaluation_file: eval.json; None if missing.
    notes: one line for each thing that is missing or unreadable.
  """

  name: str
  config: Mapping[str, Any]
  steps: Sequence[Row]
  epochs: Sequence[Row]
  evaluations: Sequence[Row]
  pool_events: Sequence[Row]
  visits: Sequence[Visit]
  trajectories: Sequence[Row]
  evaluation_file: Mapping[str, Any] | None
  notes: Sequence[str]


def number(row: Any, key: str) -> float | int | None:
  """The finite number under `key` of a mapping, else None."""
  value = row.get(key) if isinstance(row, Mapping) else None
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return None
  return value if math.isfinite(value) else None


def numbers(rows: Iterable[Row], key: str) -> list[float | int | None]:
  return [number(row, key) for row in rows]


def mean(values: Iterable[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return sum(known) / len(known) if known else None


def load(workdir: str | os.PathLike[str]) -> Run:
  """Reads every file the report uses.

  Raises:
    errors.UserError: the directory does not exist.
  """
  path = pathlib.Path(workdir)
  if not path.is_dir():
    raise errors.UserError(
        f'{path} is no directory: give the working directory of a run.'
    )
  notes: list[str] = []
  rows = _read_lines(path, 'metrics.jsonl', notes)
  events = _read_lines(path, 'pool.jsonl', notes)
  trajectories = _read_lines(path, 'trajectories.jsonl', notes)
  config = _read_object(path / 'config.json', notes) or {}
  evaluation = _read_object(path / 'eval.json', notes)
  steps = _last_per_step(
      r for r in rows if number(r, 'train/epoch') is not None
  )
  run = Run(
      name=path.resolve().name,
      config=config,
      steps=steps,
      epochs=[r for r in steps if number(r, 'boundary/boundary') is not None],
      evaluations=_last_per_step(
          r for r in rows if any(k.startswith('eval/') for k in r)
      ),
      pool_events=events,
      visits=_visits(events),
      trajectories=trajectories,
      evaluation_file=evaluation,
      notes=(),
  )
  return dataclasses.replace(run, notes=[*_progress_notes(run), *notes])


def _read_lines(
    path: pathlib.Path, name: str, notes: list[str]
) -> list[Row]:
  records, num_bad = metrics.read_jsonl(path / name)
  if not (path / name).exists():
    notes.append(f'{name} does not exist.')
  if num_bad:
    plural = 'line was' if num_bad == 1 else 'lines were'
    notes.append(f'{name}: {num_bad} unreadable {plural} left out.')
  return records


def _read_object(
    path: pathlib.Path, notes: list[str]
) -> dict[str, Any] | None:
  if not path.exists():
    how = ' Make it with --mode=evaluate.' if path.name == 'eval.json' else ''
    notes.append(f'{path.name} does not exist.{how}')
    return None
  try:
    value = json.loads(path.read_bytes())
  except (ValueError, RecursionError):
    value = None
  if not isinstance(value, dict):
    notes.append(f'{path.name} is not a JSON object and was left out.')
    return None
  return value


def _last_per_step(rows: Iterable[Row]) -> list[Row]:
  """One row a step: a later row of the same step replaces an earlier one."""
  by_step = {
      row['step']: row for row in rows if number(row, 'step') is not None
  }
  return [by_step[step] for step in sorted(by_step)]


def _visits(events: Iterable[Row]) -> list[Visit]:
  task_ids = {
      str(e.get('id')): str(e.get('task_id'))
      for e in events
      if e.get('event') == 'added'
  }
  visits = []
  for event in events:
    values = [number(event, key) for key in ('epoch', 'mean', 'variance')]
    known = event.get('event') == 'visit' and None not in values
    if known and event.get('zone') in ZONES:
      name = str(event.get('id'))
      task_id = task_ids.get(name, f'id {name}')
      visits.append(Visit(task_id, *values, event['zone']))
  return visits


def decoding(run: Run) -> str:
  """How evaluations choose tokens."""
  temperature = number(run.config.get('eval'), 'temperature')
  return f'temperature {temperature:g}' if temperature else 'greedy'


def planned_epochs(run: Run) -> int | None:
  return number(run.config.get('train'), 'num_epochs')


def _progress_notes(run: Run) -> list[str]:
  """What the run has not done yet."""
  if not run.steps:
    return ['No optimizer step has been recorded yet.']
  notes = []
  planned, done = planned_epochs(run), len(run.epochs)
  if planned and done < planned:
    notes.append(
        f'The run has closed {done} of {planned} epochs; the same command '
        'continues it.'
    )
  before, after = before_and_after(run)
  if before is None:
    notes.append('There is no evaluation from before the first update.')
  if after is None:
    notes.append('There is no evaluation from after training.')
  if not synthesis_stages(run):
    notes.append('No synthesis has been reported yet.')
  return notes


def before_and_after(run: Run) -> tuple[Row | None, Row | None]:
  """The evaluation rows at step 0 and at the latest later step."""
  before = next((r for r in run.evaluations if r['step'] == 0), None)
  later = [r for r in run.evaluations if r['step'] > 0]
  return before, later[-1] if later else None


def synthesis_stages(run: Run) -> list[tuple[str, int, int]]:
  """(stage, accepted, rejected) over the whole run, in the order logged."""
  sums: dict[str, collections.Counter[str]] = {}
  for row in run.epochs:
    for key in row:
      stage, _, what = key.removeprefix('synthesis/').rpartition('_')
      if key.startswith('synthesis/') and what in ('accepted', 'rejected'):
        counter = sums.setdefault(stage, collections.Counter())
        counter[what] += number(row, key) or 0
  return [
      (stage, counter['accepted'], counter['rejected'])
      for stage, counter in sums.items()
      if counter.total()
  ]


def pool_changes(run: Run) -> dict[float, tuple[int, int]]:
  """epoch -> (tasks injected, tasks retired) when that epoch was closed.

  The order of the log decides, not the epoch that an event names: tasks that
  are injected between two epochs name the later one, and retire some of the
  earlier one's to make room.
  """
  changes: dict[float, list[int]] = {}
  epoch = None
  for event in run.pool_events:
    kind = event.get('event')
    if kind == 'visit' and number(event, 'epoch') is not None:
      epoch = event['epoch']
      changes.setdefault(epoch, [0, 0])
    elif epoch is not None and kind == 'retired':
      changes[epoch][1] += 1
    elif epoch is not None and kind == 'added':
      changes[epoch][0] += 1
  return {epoch: tuple(pair) for epoch, pair in sorted(changes.items())}


def zone_variance(run: Run) -> dict[str, tuple[float, int]]:
  """zone -> (mean variance of a group, number of groups), over all visits.

  Without pool.jsonl the means come from the closing rows of the epochs.
  """
  sums = {zone: [0.0, 0] for zone in ZONES}
  for visit in run.visits:
    sums[visit.zone][0] += visit.variance
    sums[visit.zone][1] += 1
  if not run.visits:
    for row in run.epochs:
      for zone in ZONES:
        count = number(row, f'boundary/{zone}')
        variance = number(row, f'boundary/variance_{zone}')
        if count and variance is not None:
          sums[zone][0] += count * variance
          sums[zone][1] += int(count)
  return {zone: (s / n, n) for zone, (s, n) in sums.items() if n}


def variance_ratio(run: Run) -> float | None:
  """Mean variance of boundary groups over that of all other groups."""
  zones = zone_variance(run)
  others = [zones[z] for z in ('hard', 'mastered') if z in zones]
  num_others = sum(n for _, n in others)
  if 'boundary' not in zones or not num_others:
    return None
  mean_others = sum(v * n for v, n in others) / num_others
  return zones['boundary'][0] / mean_others if mean_others > 0 else None


def phase_seconds(run: Run) -> list[tuple[str, float]]:
  """(phase, seconds over all steps), longest first, the rest last."""
  sums: collections.Counter[str] = collections.Counter()
  for row in run.steps:
    for key in row:
      if key.startswith('time/') and key != 'time/host_share':
        sums[key.removeprefix('time/')] += number(row, key) or 0.0
  total = sums.pop('total', None)
  phases = sums.most_common()
  if total is not None and phases:
    phases.append(('rest', max(0.0, total - sum(sums.values()))))
  return phases


def endings(run: Run) -> list[tuple[str, float]]:
  """(status, share of all trajectories), most frequent first."""
  sums: collections.Counter[str] = collections.Counter()
  for row in run.steps:
    for key in row:
      if key.startswith('rollout/status_'):
        name = key.removeprefix('rollout/status_')
        sums[name] += number(row, key) or 0
  total = sums.total()
  return [(k, v / total) for k, v in sums.most_common() if v] if total else []
