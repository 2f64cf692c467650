"""Writes report.html: one self-contained page about a run.

  python -m rods_jax.report WORKDIR

The page asks for nothing from outside itself and holds no script; a content
policy forbids both, so that trajectory text, which a policy or a simulator
wrote, is inert even if an escape were missed. It reads the working directory
only, so that it can be made at any time, also of a run that was killed.
"""

import argparse
import json
import logging
import os
import pathlib
import sys
from typing import Any, Sequence

import jinja2

from rods_jax import errors
from rods_jax import report_data
from rods_jax import report_dialogue
from rods_jax import report_figures
from rods_jax import terminal

FILE_NAME = 'report.html'
_ASSETS = pathlib.Path(__file__).parent / 'assets'


def write_report(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Makes report.html of what the working directory holds by now.

  Returns:
    The path of the page, which replaces an older one in one step.

  Raises:
    errors.UserError: the directory does not exist.
  """
  run = report_data.load(workdir)
  path = pathlib.Path(workdir) / FILE_NAME
  temporary = path.with_name(FILE_NAME + '.tmp')
  temporary.write_text(_render(run), encoding='utf-8')
  os.replace(temporary, path)
  return path


def summary_rows(workdir: str | os.PathLike[str]) -> list[tuple[Any, ...]]:
  """Before and after, for terminal.summary_table; same numbers as the page."""
  run = report_data.load(workdir)
  decoding = report_data.decoding(run)
  rows = [(f'evaluation, {decoding}', 'before', 'after', 'change')]
  for row in _evaluation_table(run):
    name = f'{row["split"]}: {row["measure"]}'
    rows.append((name, row['before'], row['after'], row['change']))
  return rows


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      prog='python -m rods_jax.report', description='Writes report.html.'
  )
  parser.add_argument('workdir', help='working directory of a run')
  arguments = parser.parse_args(argv)
  logging.basicConfig(level=logging.INFO, format='%(message)s')
  try:
    path = write_report(arguments.workdir)
  except (errors.UserError, OSError) as error:
    logging.error('Error: %s', error)
    return 1
  logging.info('Wrote %s', path)
  return 0


def _render(run: report_data.Run) -> str:
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(_ASSETS),
      autoescape=True,
      undefined=jinja2.StrictUndefined,
      trim_blocks=True,
      lstrip_blocks=True,
  )
  environment.filters['number'] = _number_text
  environment.filters['signed'] = lambda v: f'{v:+.3f}'.replace('-', '−')
  environment.filters['percent'] = lambda v: f'{100 * v:.1f} %'
  environment.filters['seconds'] = terminal.format_seconds
  page = environment.get_template('report.html.j2').render(
      name=report_dialogue.printable(run.name),
      facts=_facts(run),
      notes=run.notes,
      tiles=_tiles(run),
      reward=report_figures.reward(run),
      evaluation=_evaluation_table(run),
      by_category=_category_table(run),
      partition=report_figures.partition(run),
      pool=report_figures.pool(run),
      changes=report_figures.changes(run),
      variance=report_figures.variance(run),
      cloud=report_figures.cloud(run),
      zones=report_figures.zone_bars(run),
      ratio=report_data.variance_ratio(run),
      stages=report_figures.stage_bars(run),
      phases=report_figures.phase_bars(run),
      endings=report_data.endings(run),
      rates=report_figures.rates(run),
      flat=report_figures.flat(run),
      dialogues=report_dialogue.choose(run),
      decoding=report_data.decoding(run),
      config_text=json.dumps(run.config, indent=2) if run.config else '',
  )
  return report_dialogue.without_surrogates(page)


def _number_text(value: float | None) -> str:
  return 'n/a' if value is None else f'{value:.3f}'


def _facts(run: report_data.Run) -> list[str]:
  facts = []
  if run.steps:
    facts.append(_steps_text(run))
  planned = report_data.planned_epochs(run)
  of = f' of {planned}' if planned else ''
  facts.append(f'{len(run.epochs)}{of} epochs')
  if 'rng_seed' in run.config:
    facts.append(f'rng_seed {run.config["rng_seed"]}')
  return facts


def _steps_text(run: report_data.Run) -> str:
  return f'{len(run.steps)} optimizer step{"s" * (len(run.steps) != 1)}'


def _tiles(run: report_data.Run) -> list[dict[str, Any]]:
  """The headline: each a label, a value, and a line below."""
  tiles = [_progress_tile(run, split) for split in report_data.SPLITS]
  tiles.append(_training_tile(run))
  ratio = report_data.variance_ratio(run)
  tiles.append({
      'label': 'Reward variance, boundary : others',
      'value': 'n/a' if ratio is None else f'{ratio:.2f} : 1',
      'below': 'variance inside a group, mean over groups',
      'change': None,
  })
  tiles.append(_pool_tile(run))
  times = report_data.numbers(run.steps, 'time/total')
  total = sum(t for t in times if t is not None)
  host = sum(
      t for t in report_data.numbers(run.steps, 'time/host') if t is not None
  )
  share = f'; host work {100 * host / total:.1f} %' if total else ''
  tiles.append({
      'label': 'Time in training steps',
      'value': terminal.format_seconds(total) if total else 'n/a',
      'below': f'{_steps_text(run)}{share}',
      'change': None,
  })
  return tiles


def _progress_tile(run: report_data.Run, split: str) -> dict[str, Any]:
  before, after = (
      report_data.number(row, f'eval/{split}_progress') if row else None
      for row in report_data.before_and_after(run)
  )
  change = None if None in (before, after) else after - before
  if before is None and after is None:
    value = 'n/a'
  else:
    value = f'{_number_text(before)} → {_number_text(after)}'
  return {
      'label': report_data.SPLITS[split],
      'value': value,
      'below': f'progress, {report_data.decoding(run)}, before → after',
      'change': change,
  }


def _training_tile(run: report_data.Run) -> dict[str, Any]:
  rewards = [r for r in run.steps if report_data.number(r, 'reward/mean')
             is not None]
  epochs = sorted({row['train/epoch'] for row in rewards})
  first, last = (
      report_data.mean(
          r['reward/mean'] for r in rewards if r['train/epoch'] == epoch
      )
      for epoch in (epochs[:1] + epochs[-1:] if epochs else (None, None))
  )
  if len(epochs) < 2:
    value, change = _number_text(first), None
  else:
    value, change = f'{first:.3f} → {last:.3f}', last - first
  return {
      'label': 'Training reward',
      'value': value,
      'below': 'mean progress, first → last epoch',
      'change': change,
  }


def _pool_tile(run: report_data.Run) -> dict[str, Any]:
  changes = report_data.pool_changes(run).values()
  injected, retired = sum(c[0] for c in changes), sum(c[1] for c in changes)
  kinds = [event.get('event') for event in run.pool_events]
  visited = kinds.index('visit') if 'visit' in kinds else len(kinds)
  first = kinds[:visited].count('added')
  return {
      'label': 'Active pool',
      'value': f'{first} → {first + injected - retired}' if kinds else 'n/a',
      'below': f'tasks; {injected} injected, {retired} retired',
      'change': None,
  }


def _evaluation_table(run: report_data.Run) -> list[dict[str, Any]]:
  before, after = report_data.before_and_after(run)
  table = []
  for split, text in report_data.SPLITS.items():
    for measure in ('progress', 'accuracy'):
      key = f'eval/{split}_{measure}'
      pair = [report_data.number(r, key) if r else None
              for r in (before, after)]
      change = None if None in pair else pair[1] - pair[0]
      if pair != [None, None]:
        table.append({
            'split': text, 'measure': measure, 'before': pair[0],
            'after': pair[1], 'change': change,
        })
  return table


def _category_table(run: report_data.Run) -> dict[str, Any] | None:
  """eval.json: one row for each split and category, 'all' last."""
  file = run.evaluation_file or {}
  splits = file.get('splits')
  rows = []
  for split, categories in splits.items() if isinstance(splits, dict) else ():
    if not isinstance(categories, dict):
      continue
    for category in sorted(categories, key=lambda name: name == 'all'):
      row = {
          key: report_data.number(categories[category], key)
          for key in ('progress', 'accuracy', 'num_tasks')
      }
      name = report_data.SPLITS.get(split, split)
      rows.append({'split': name, 'category': category, **row})
  return {'step': file.get('step'), 'rows': rows} if rows else None



if __name__ == '__main__':
  sys.exit(main())
