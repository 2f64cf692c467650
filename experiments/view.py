"""Writes one self-contained page to browse the trajectories of a run.

  python -m experiments.view WORKDIR [--out=FILE] [--steps=FIRST-LAST]

The page reads trajectories.jsonl: the first group of each rollout batch. It
filters by task, category, status, reward and step; shows of each turn its
score, why it failed, calls and results; and of each token its text,
log-probability and whether the policy sampled it. It asks for nothing from
outside itself: one script runs, known by its hash, and every text of a policy
or a simulator reaches the page as data that only ever becomes a text node.
"""

import argparse
import base64
import hashlib
import json
import logging
import os
import pathlib
import re
import sys
from typing import Any, Mapping, Sequence

import jinja2
import markupsafe

from experiments import view_data
from rods_jax import errors
from rods_jax import metrics
from rods_jax import report_dialogue

FILE_NAME = 'trajectories.html'
_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FOLDERS = (_ROOT / 'experiments' / 'assets', _ROOT / 'rods_jax' / 'assets')


def write_page(
    workdir: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    steps: tuple[int, int] | None = None,
) -> tuple[pathlib.Path, view_data.Page]:
  """Makes the page of what the working directory holds by now.

  Args:
    workdir: folder of a run.
    out: the page; the default is trajectories.html in the folder.
    steps: first and last step to show; all without it.

  Returns:
    The path, which is replaced in one step, and what the page shows.

  Raises:
    errors.UserError: there is no trajectory to show.
  """
  workdir = pathlib.Path(workdir)
  source = workdir / 'trajectories.jsonl'
  if not source.exists():
    raise errors.UserError(
        f'{source} does not exist; name the working directory of a run.'
    )
  lines, num_bad = metrics.read_jsonl(source)
  page = view_data.make_page(lines, num_bad, steps)
  if not page.index:
    raise errors.UserError(
        f'{source} holds no trajectory'
        + (f' of the steps {steps[0]} to {steps[1]}.' if steps else ' yet.')
    )
  path = pathlib.Path(out) if out else workdir / FILE_NAME
  temporary = path.with_name(path.name + '.tmp')
  temporary.write_text(_render(workdir.resolve().name, page), 'utf-8')
  os.replace(temporary, path)
  return path, page


def _render(name: str, page: view_data.Page) -> str:
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(_FOLDERS),
      autoescape=True,
      undefined=jinja2.StrictUndefined,
      trim_blocks=True,
      lstrip_blocks=True,
  )
  script = (_FOLDERS[0] / 'view.js').read_text('utf-8')
  digest = hashlib.sha256(script.encode()).digest()
  text = environment.get_template('view.html.j2').render(
      name=report_dialogue.printable(name),
      notes=page.notes,
      index=embedded({
          'rows': page.index,
          'ids': page.token_ids,
          'texts': page.token_texts,
      }),
      details=[embedded(detail) for detail in page.details],
      script=markupsafe.Markup(script),
      script_hash='sha256-' + base64.b64encode(digest).decode(),
  )
  return report_dialogue.without_surrogates(text)


def embedded(data: Mapping[str, Any]) -> markupsafe.Markup:
  """JSON that no text in it can leave: ASCII without any '<'."""
  text = json.dumps(data, separators=(',', ':'), allow_nan=False)
  return markupsafe.Markup(text.replace('<', '\\u003c'))


def _steps(text: str) -> tuple[int, int]:
  match = re.fullmatch(r'(\d+)(?:-(\d+))?', text)
  if not match:
    raise argparse.ArgumentTypeError(
        f'{text!r} is no range of steps such as 10-20.'
    )
  return int(match[1]), int(match[2] or match[1])


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      prog='python -m experiments.view', description=__doc__.splitlines()[0]
  )
  parser.add_argument('workdir', help='working directory of a run')
  parser.add_argument('--out', help=f'default: {FILE_NAME} in the directory')
  parser.add_argument('--steps', type=_steps, help='such as 10-20, or 10')
  arguments = parser.parse_args(argv)
  logging.basicConfig(level=logging.INFO, format='%(message)s')
  try:
    path, page = write_page(arguments.workdir, arguments.out, arguments.steps)
  except (errors.UserError, OSError) as error:
    logging.error('Error: %s', error)
    return 1
  logging.info(
      'Wrote %s: %d trajectories, %.1f MB',
      path, len(page.index), path.stat().st_size / 1e6,
  )  # pyformat: disable
  return 0


if __name__ == '__main__':
  sys.exit(main())
