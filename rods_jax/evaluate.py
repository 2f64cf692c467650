"""Evaluation through the training rollout path, greedy unless configured.

Accuracy is BFCL's (every turn right); progress is R_P of the method. Both per
category, with the number of tasks.
"""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import itertools
import json
import pathlib
from typing import Any

import ml_collections
import numpy as np

from rods_jax import build
from rods_jax import engines as engines_lib
from rods_jax import exchange
from rods_jax import pretrained
from rods_jax import rng
from rods_jax import run
from rods_jax import terminal
from rods_jax import types
from rods_jax import workdir as workdir_lib
from rods_jax.host import env_pool
from rods_jax.host import rollout
from rods_jax.host import side_by_side

Results = dict[str, dict[str, 'Score']]  # split -> category or 'all' -> score


@dataclasses.dataclass(frozen=True)
class Score:
  """Mean accuracy and progress, in [0, 1], over num_tasks tasks."""

  accuracy: float
  progress: float
  num_tasks: int


def play(
    config: ml_collections.ConfigDict,
    policy: build.Policy,
    engines: engines_lib.Engines,
    params: Any,
    tasks: Sequence[types.Task],
    environments: env_pool.Environments = env_pool.InProcess(),
) -> list[types.Trajectory]:
  """One trajectory of each task."""
  key = rng.device(config.rng_seed, 'evaluate')
  if config.eval.temperature:
    engines.reset(
        params,
        key,
        temperature=config.eval.temperature,
        top_k=config.rollout.top_k,
        top_p=config.rollout.top_p,
    )
  else:
    engines.reset(params, key, temperature=1.0, greedy=True)
  jobs = [rollout.Job(task, 0, uid) for uid, task in enumerate(tasks)]
  own = side_by_side.rollout(
      jobs[exchange.share(len(jobs))],
      engines.each,
      policy.fmt,
      build.build_budgets(config),
      environments=environments,
  ).trajectories
  engines.release()
  return exchange.gather_trajectories(own, tasks, 1, engines.capacity)


def score(
    tasks: Sequence[types.Task], trajectories: Sequence[types.Trajectory]
) -> dict[str, Score]:
  """Scores per category and over all; a category without tasks is absent."""
  by_category: dict[str, list[types.Trajectory]] = {}
  for task, trajectory in zip(tasks, trajectories, strict=True):
    by_category.setdefault(task.category, []).append(trajectory)
  by_category = {
      name: by_category[name]
      for name in types.CATEGORIES
      if name in by_category
  }
  if trajectories:
    by_category['all'] = list(trajectories)
  return {
      name: Score(
          accuracy=float(np.mean([t.correct for t in rows])),
          progress=float(np.mean([t.progress for t in rows])),
          num_tasks=len(rows),
      )
      for name, rows in by_category.items()
  }


def evaluate_tasks(
    config: ml_collections.ConfigDict,
    policy: build.Policy,
    params: Any,
    splits: Mapping[str, Sequence[types.Task]],
    engines: engines_lib.Engines | None = None,
    environments: env_pool.Environments | None = None,
) -> Results:
  """Scores of every split; makes engines and environments that lack."""
  engines = engines or build.build_engines(config, policy)
  with contextlib.ExitStack() as stack:
    if environments is None:
      environments = build.build_environments(config)
      stack.callback(environments.close)
    # All at once: slots that one split no longer fills play the next.
    every = [task for tasks in splits.values() for task in tasks]
    played = iter(play(config, policy, engines, params, every, environments))
  return {
      split: score(tasks, list(itertools.islice(played, len(tasks))))
      for split, tasks in splits.items()
  }


def metrics(results: Results) -> dict[str, float]:
  """The totals as metrics: eval/<split>_progress and _accuracy."""
  return {
      f'eval/{split}_{name}': getattr(scores['all'], name)
      for split, scores in results.items()
      if 'all' in scores
      for name in ('progress', 'accuracy')
  }


def write(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    step: int,
    results: Results,
) -> None:
  """Writes eval.json; temperature 0 is greedy, and cuts nothing."""
  data = {
      'step': step,
      'temperature': config.eval.temperature,
      'top_k': config.rollout.top_k,
      'top_p': config.rollout.top_p,
      'splits': {
          split: {name: dataclasses.asdict(s) for name, s in scores.items()}
          for split, scores in results.items()
      },
  }
  path = workdir / 'eval.json'
  partial = path.with_suffix('.partial')
  with workdir_lib.writable(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
    partial.write_text(json.dumps(data, indent=2) + '\n')
    partial.replace(path)


def table(results: Results) -> str:
  """The results as an aligned text table."""
  rows: list[Sequence[Any]] = [
      ('tasks', 'category', 'number', 'progress', 'accuracy')
  ]
  for split, scores in results.items():
    for name, s in scores.items():
      rows.append((
          split, name, s.num_tasks, f'{s.progress:.3f}', f'{s.accuracy:.3f}'
      ))
  return terminal.summary_table(rows)


def evaluate_run(
    config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> int:
  """--mode=evaluate: the newest checkpoint, or the initial policy."""
  config = pretrained.resolve(config)
  run.begin(config, workdir, 'evaluate', may_differ='eval')
  policy = build.build_policy(config)
  step, params = run.latest_params(config, policy, workdir)
  tasks = build.build_tasks(config, policy.fmt)
  results = evaluate_tasks(
      config, policy, params, build.evaluation_tasks(config, tasks, policy.fmt)
  )
  if exchange.is_first():
    write(config, workdir, step, results)
    print(table(results))
  return 0
