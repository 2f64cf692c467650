"""Makes a corpus of composed tasks from the training scenarios, and measures.

  python -m experiments.synthesize --n=1000 [--json] [--out=DIR] [--rng_seed=0]

The seeds are the training tasks, one after the other and again from the first;
held-out scenarios are no seeds. Task number i comes from a random stream of its
own, so the same command gives the same corpus. With --out the tasks are written
to DIR as host/synthesis/corpus.py says, the numbers to DIR/report.json. A
command that was stopped or killed goes on where it was when it is given again.
The gates' thresholds are those of configs/rods.py.

With --language=openai a language model plans, words and judges: name its server
with --base_url and --model, and its key, if it has one, in the environment
variable OPENAI_API_KEY. All fields of synthesis.llm in configs/rods.py are
flags here. Answers are kept in the folder --cache: the same command, run again,
makes the same corpus, asks for nothing and costs nothing.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import resource
import sys
import tempfile
import time
from typing import Any, Iterable, Iterator, NoReturn

import networkx as nx
import numpy as np
import tqdm

from configs import rods
from experiments import synthesize_llm
from rods_jax import errors
from rods_jax import rng as rng_lib
from rods_jax import terminal
from rods_jax.host import bfcl
from rods_jax.host.synthesis import corpus as corpus_lib
from rods_jax.host.synthesis import pipeline, profile, quality, trace
from rods_jax.host.synthesis.compose import batch, stages
from rods_jax.host.synthesis.compose.records import Gates
from rods_jax.host.synthesis.corpus import Attempted, Corpus
from rods_jax.host.synthesis.llm.records import Health, LlmConfig
from rods_jax.host.synthesis.records import Rejection, Report
from rods_jax.types import CATEGORIES, Task

NUM_TRAIN_SCENARIOS = 100
SPLIT_SEED = 0
ATTEMPTS = 3
SAMPLE = 1000  # tasks whose nearest other one is looked up


def seeds() -> list[Task]:
  """The training tasks; faulty ones too, as only their structure is used."""
  train, _ = bfcl.split(
      bfcl.load_tasks(), 'scenario', NUM_TRAIN_SCENARIOS, SPLIT_SEED
  )
  return list(train.values())


def corpus(
    chosen: list[Task], n: int, rng_seed: int, report: Report
) -> Iterator[Task]:
  """Up to n tasks, each as soon as it is made; a seed may fail."""
  for attempted in attempts(chosen, range(n), rng_seed, novelty(())):
    report.add(attempted.report)
    if attempted.task is not None:
      yield attempted.task


def novelty(
    made: Iterable[Task], gates: Gates = Gates()
) -> quality.Novelty:
  """What tasks must be unlike: human ones, held-out ones too, and `made`."""
  known = bfcl.load_tasks().values()
  return quality.Novelty(gates.min_novelty, itertools.chain(known, made))


def attempts(
    chosen: list[Task],
    numbers: Iterable[int],
    rng_seed: int,
    known: quality.Novelty,
    gates: Gates = Gates(),
    planner: str = 'compose',
    llm: LlmConfig | None = None,
    health: Health | None = None,
) -> Iterator[Attempted]:
  """What comes of task numbers, one after the other.

  Args:
    chosen: the seeds; number i has the i-th, and again from the first.
    numbers: rising.
    rng_seed: base of the numbers' random streams.
    known: what is known from smaller numbers; those accepted are added.
    gates: thresholds of composed tasks.
    planner: 'exchange' for variants, which only must not be the same.
    llm: the server of --language=openai.
    health: of that server; is kept up to date.
  """
  numbers, again = itertools.tee(numbers)
  wanted = (
      batch.Wanted(
          chosen[number % len(chosen)],
          functools.partial(rng_lib.host, rng_seed, 'corpus', number),
      )
      for number in again
  )
  if planner == 'exchange':
    made = exchanged(wanted, known)
  else:
    made = batch.compose_all(
        wanted, lambda task: not pipeline.is_heldout(task), known, ATTEMPTS,
        gates, llm, health,
    )  # pyformat: disable
  start = time.process_time()
  for number, (result, report) in zip(numbers, made):
    now = time.process_time()
    task = result if isinstance(result, Task) else None
    yield Attempted(number, task, report, now - start)
    start = time.process_time()


def exchanged(
    wanted: Iterable[batch.Wanted], known: quality.Novelty
) -> Iterator[tuple[Task | Rejection, Report]]:
  """As batch.compose_all, of variants that keep their seed's calls."""
  for one in wanted:
    report = Report()
    result = pipeline.make_variant(
        one.seed, one.rng(), ATTEMPTS, known.contents, report
    )
    if isinstance(result, Task):
      known.add(result)
    else:
      report.failed_seeds += 1
    yield result, report


def fill(
    folder: Corpus,
    chosen: list[Task],
    args: argparse.Namespace,
    gates: Gates,
    llm: LlmConfig | None,
) -> None:
  """Makes what is missing of a corpus.

  Raises:
    UserError: the server does not answer; the numbers that this concerns are
      left for the next time.
  """
  known, n, health = novelty(folder.tasks(), gates), args.n, Health()
  made = attempts(
      chosen, range(folder.next_number, n), args.rng_seed, known, gates,
      args.planner, llm, health,
  )  # pyformat: disable
  with contextlib.closing(made), tqdm.tqdm(
      total=n, initial=folder.next_number, unit='task', dynamic_ncols=True,
      disable=not sys.stderr.isatty(),
  ) as bar:  # pyformat: disable
    for attempted in synthesize_llm.answered(made, health, llm):
      folder.add(attempted)
      bar.update()
      if bar.disable and not folder.next_number % corpus_lib.SHARD:
        print(
            f'{folder.next_number} of {n} task numbers; the last '
            f'{corpus_lib.SHARD} took {folder.times()[-1]:.1f} s of processor '
            'time.', file=sys.stderr, flush=True,
        )  # pyformat: disable


class Structure:
  """Shares of tasks whose profile is their seed's, measured anew."""

  def __init__(self, chosen: list[Task]):
    self._seeds = {s.task_id: profile.measure(trace.run(s)) for s in chosen}
    self._equal: collections.Counter[str] = collections.Counter()
    self._tasks = 0
    self.made: set[str] = set()
    self.names: set[tuple[str, ...]] = set()

  def add(self, task: Task) -> None:
    executed = trace.run(task)
    ours, theirs = profile.measure(executed), self._seeds[task.parent]
    self._tasks += 1
    self.made.add(task.parent)
    self.names.add(ours.tools)
    self._equal.update({
        'topology': nx.is_isomorphic(ours.graph, theirs.graph),
        'depth': ours.depth == theirs.depth,
        'calls per turn': ours.calls == theirs.calls,
        'turns': ours.num_turns == theirs.num_turns,
        'category': ours.category == theirs.category,
        'order of classes': ours.classes == theirs.classes,
        'turns that need an earlier one, or more':
            ours.turns_back >= theirs.turns_back,
        'of these at least half':
            ours.turns_back >= 0.5 * theirs.turns_back,
        'every argument has a source':
            not quality.unsourced(executed, discoverable=False),
    })  # pyformat: disable

  def shares(self) -> dict[str, float]:
    return {k: v / max(1, self._tasks) for k, v in self._equal.items()}


def summary(folder: Corpus, chosen: list[Task], n: int) -> dict[str, Any]:
  """All numbers of a corpus; reads it again, a task at a time."""
  peak = _peak_memory()  # without what the measurements below take
  used = [chosen[i % len(chosen)] for i in range(n)]
  structure, contents = Structure(chosen), set()
  known, sample = quality.Known(), []
  count = 0
  for task in folder.tasks():
    structure.add(task)
    contents.add(task.content_hash())
    known.add(task)
    if count % max(1, n // SAMPLE) == 0:
      sample.append(task)
    count += 1
  report, times = folder.report(), folder.times()
  cpu = sum(times)
  return {
      'wanted': n,
      'accepted': count,
      'per second and core': count / cpu if cpu else 0.0,
      'seconds of each 1000 numbers': times,
      'accepted within 3 attempts': count / n,
      'accepted attempts': report.accepted / max(1, report.attempts),
      'equal to the seed': structure.shares(),
      'distinct call-name sequences': len(structure.names),
      'duplicates': count - len(contents),
      'distance to the nearest other task': distances(sample, known),
      'seeds with a task': {
          c: _share(used, structure.made, c) for c in CATEGORIES
      },
      'seeds without': sorted({s.task_id for s in used} - structure.made),
      'rejected': report.rejected,
      'reasons': dict(sorted(report.reasons.items(), key=lambda kv: -kv[1])),
      'peak memory, MB': peak,
      **({'language model': report.llm} if report.llm else {}),
  }  # pyformat: disable


def distances(
    sample: list[Task], known: quality.Known
) -> dict[str, float | int]:
  """Quantiles over a sample of the distance to the nearest other known task."""
  found = [known.nearest(task) for task in sample]
  values = [1.0 if f is None else f.distance for f in found]
  if not values:
    return {}
  quantiles = zip(
      ('least', '1 %', '10 %', 'median'),
      np.quantile(values, (0, 0.01, 0.1, 0.5)).tolist(),
  )
  return {'tasks looked at': len(values), **dict(quantiles)}


def _peak_memory() -> float:
  """Of this process, in megabytes."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _share(used: list[Task], made: set[str], category: str) -> str:
  """How many of a category's seeds have a task: 'a of b'."""
  ids = {seed.task_id for seed in used if seed.category == category}
  return f'{len(ids & made)} of {len(ids)}'


def _code() -> str:
  """A hash of all code and tables that decide what is made."""
  package = pathlib.Path(pipeline.__file__).parents[2]
  digest = hashlib.sha256()
  for pattern in (
      'host/**/*.py', 'assets/compose/*.toml', 'assets/api_graph.json',
      'assets/llm/*.md', 'rng.py',
  ):
    for path in sorted(package.glob(pattern)):
      digest.update(path.read_bytes())
  return digest.hexdigest()[:12]


def _fail(error: errors.UserError) -> NoReturn:
  """One line, without the flags that parser.error would print."""
  print(f'error: {error}', file=sys.stderr)
  sys.exit(2)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  synthesize_llm.add_flags(parser)
  parser.add_argument('--n', type=int, default=1000, help='tasks to try')
  parser.add_argument('--rng_seed', type=int, default=0)
  parser.add_argument(
      '--out', type=pathlib.Path, help='a new folder, or one to continue'
  )
  parser.add_argument('--category', choices=CATEGORIES, help='of the seeds')
  parser.add_argument(
      '--planner', choices=('compose', 'exchange'), default='compose',
      help="'exchange': variants that keep their seed's calls; the gates on "
      'news are reported then, not applied',
  )  # pyformat: disable
  parser.add_argument('--json', action='store_true')
  args = parser.parse_args()
  if args.n < 1:
    parser.error(f'--n must be at least 1, not {args.n}.')
  try:
    llm = synthesize_llm.config_of(args)
  except errors.UserError as error:
    _fail(error)
  chosen = [s for s in seeds() if args.category in (None, s.category)]
  for seed in chosen:
    stages.brief_of(seed)  # Reading the seeds is no part of the rate.
  thresholds = rods.get_config().synthesis
  gates = Gates(**{
      field.name: thresholds[field.name] for field in dataclasses.fields(Gates)
  })  # pyformat: disable
  config = {
      'n': args.n, 'rng_seed': args.rng_seed, 'attempts': ATTEMPTS,
      'planner': args.planner, **dataclasses.asdict(gates),
      'language': args.language,
      **{name: llm and getattr(llm, name) for name in synthesize_llm.DECISIVE},
      'bfcl_eval': bfcl.VERSION, 'code': _code(),
  }  # pyformat: disable
  with tempfile.TemporaryDirectory() as scratch:
    out = args.out or pathlib.Path(scratch) / 'corpus'
    try:
      with Corpus(out, config, chosen) as folder:
        fill(folder, chosen, args, gates, llm)
        found = summary(folder, chosen, args.n)
    except errors.UserError as error:
      _fail(error)
  if args.out:
    (args.out / 'report.json').write_text(
        json.dumps(found, indent=2), encoding='utf-8'
    )
  if args.json:
    print(json.dumps(found, indent=2))
    return
  print(terminal.summary_table([(k, str(v)) for k, v in found.items()]))


if __name__ == '__main__':
  main()
