"""Makes a corpus of composed tasks from the training scenarios, and measures.

  python -m experiments.synthesize --n=1000 [--json] [--out=DIR] [--rng_seed=0]

The seeds are the training tasks, one after the other and again from the first;
held-out scenarios are no seeds. Task number i comes from a random stream of its
own, so the same command gives the same corpus. With --out the tasks are written
to DIR/tasks.jsonl, a line each and at once, the numbers to DIR/report.json.

With --language=openai a language model plans, words and judges: name its server
with --base_url and --model, and its key, if it has one, in the environment
variable OPENAI_API_KEY. All fields of synthesis.llm in configs/rods.py are
flags here. Answers are kept in the folder --cache: the same command, run again,
makes the same corpus, asks for nothing and costs nothing.
"""

import argparse
import collections
import functools
import hashlib
import json
import pathlib
import re
import resource
import time
from typing import Any, Iterator

import networkx as nx

from configs import rods
from rods_jax import errors
from rods_jax import rng as rng_lib
from rods_jax import settings
from rods_jax import terminal
from rods_jax.host import bfcl
from rods_jax.host.synthesis import pipeline, profile, quality, trace
from rods_jax.host.synthesis.compose import batch, stages
from rods_jax.host.synthesis.llm import client
from rods_jax.host.synthesis.llm.records import LlmConfig
from rods_jax.host.synthesis.records import Report
from rods_jax.types import CATEGORIES, Task

NUM_TRAIN_SCENARIOS = 100
SPLIT_SEED = 0
ATTEMPTS = 3


def keys(task: Task) -> tuple[bytes, ...]:
  """Hashes of the content, of the words without numbers, of the calls."""
  words = ' '.join(turn.user for turn in task.turns).lower()
  words = re.sub(r'\d+', '0', words)
  calls = json.dumps(quality.call_sequence(task))
  return tuple(
      hashlib.blake2b(f'{kind}:{text}'.encode(), digest_size=12).digest()
      for kind, text in (
          ('content', task.content_hash()), ('words', words), ('calls', calls)
      )
  )  # pyformat: disable


def seeds() -> list[Task]:
  """The training tasks; faulty ones too, as only their structure is used."""
  train, _ = bfcl.split(
      bfcl.load_tasks(), 'scenario', NUM_TRAIN_SCENARIOS, SPLIT_SEED
  )
  return list(train.values())


def corpus(
    chosen: list[Task],
    n: int,
    rng_seed: int,
    report: Report,
    llm: LlmConfig | None = None,
) -> Iterator[Task]:
  """Up to n tasks, each as soon as it is made; a seed may fail."""
  wanted = (
      batch.Wanted(
          chosen[number % len(chosen)],
          functools.partial(rng_lib.host, rng_seed, 'corpus', number),
      )
      for number in range(n)
  )
  return batch.compose_all(
      wanted,
      lambda task: not pipeline.is_heldout(task),
      keys,
      ATTEMPTS,
      report,
      llm=llm,
  )


def structure(tasks: list[Task], chosen: list[Task]) -> dict[str, float]:
  """Shares of tasks whose profile is their seed's, measured anew."""
  by_id = {seed.task_id: seed for seed in chosen}
  equal = collections.Counter()
  for task in tasks:
    ours, theirs = _measured(task), _measured(by_id[task.parent])
    equal['topology'] += nx.is_isomorphic(ours.graph, theirs.graph)
    equal['depth'] += ours.depth == theirs.depth
    equal['calls per turn'] += ours.calls == theirs.calls
    equal['turns'] += ours.num_turns == theirs.num_turns
    equal['category'] += ours.category == theirs.category
  return {name: count / max(1, len(tasks)) for name, count in equal.items()}


def _measured(task: Task) -> profile.Profile:
  """The profile; on a busy machine a call may time out, so three tries."""
  for _ in range(3):
    executed = trace.run(task)
    if executed.finished:
      break
  return profile.measure(executed)


def summary(
    tasks: list[Task], chosen: list[Task], n: int, report: Report, cpu: float
) -> dict[str, Any]:
  """All numbers of a run; cpu in seconds of the process."""
  used = [chosen[i % len(chosen)] for i in range(n)]
  made = {task.parent for task in tasks}
  names = {
      tuple(c.partition('(')[0] for t in task.turns for c in t.ground_truth)
      for task in tasks
  }
  return {
      'wanted': n,
      'accepted': len(tasks),
      'per second and core': len(tasks) / cpu if cpu else 0.0,
      'accepted within 3 attempts': len(tasks) / n,
      'accepted attempts': report.accepted / max(1, report.attempts),
      'equal to the seed': structure(tasks, chosen),
      'distinct call-name sequences': len(names),
      'duplicates': len(tasks) - len({task.content_hash() for task in tasks}),
      'seeds with a task': {c: _share(used, made, c) for c in CATEGORIES},
      'seeds without': sorted({s.task_id for s in used} - made),
      'rejected': report.rejected,
      'reasons': dict(sorted(report.reasons.items(), key=lambda kv: -kv[1])),
      'peak memory, MB': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                         / 1024,
      **({'language model': report.llm} if report.llm else {}),
  }  # pyformat: disable


def _share(used: list[Task], made: set[str], category: str) -> str:
  """How many of a category's seeds have a task: 'a of b'."""
  ids = {seed.task_id for seed in used if seed.category == category}
  return f'{len(ids & made)} of {len(ids)}'


def _written(tasks: Iterator[Task], folder: pathlib.Path) -> Iterator[Task]:
  """The same tasks, each in the file before the next one is made."""
  folder.mkdir(parents=True)
  with open(folder / 'tasks.jsonl', 'w', encoding='utf-8') as file:
    for task in tasks:
      file.write(json.dumps(task.to_json()) + '\n')
      file.flush()
      yield task


def llm_flags(parser: argparse.ArgumentParser) -> None:
  """A flag for the language, and one for each field of synthesis.llm."""
  parser.add_argument(
      '--language', default='programmatic', help="or 'openai'"
  )
  group = parser.add_argument_group('the server of --language=openai')
  for name, value in rods.get_config().synthesis.llm.items():
    kind = _switch if isinstance(value, bool) else type(value)
    group.add_argument(
        f'--{name}', type=kind, default=value, help=f'default: {value!r}'
    )


def _switch(text: str) -> bool:
  if text not in ('True', 'False'):
    raise argparse.ArgumentTypeError(f'True or False, not {text!r}')
  return text == 'True'


def llm_of(args: argparse.Namespace) -> LlmConfig | None:
  """The server that the flags name; None for programmatic synthesis.

  Raises:
    UserError: a flag is out of its range, or the package openai is missing.
  """
  config = rods.get_config()
  synthesis = config.synthesis
  synthesis.update(planner='compose', language=args.language)
  synthesis.llm.update({name: getattr(args, name) for name in synthesis.llm})
  settings.validate(config)
  if synthesis.language == 'programmatic':
    return None
  client.require()
  return LlmConfig(**synthesis.llm.to_dict())


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  llm_flags(parser)
  parser.add_argument('--n', type=int, default=1000, help='tasks to try')
  parser.add_argument('--rng_seed', type=int, default=0)
  parser.add_argument('--out', type=pathlib.Path, help='a new folder')
  parser.add_argument('--category', choices=CATEGORIES, help='of the seeds')
  parser.add_argument('--json', action='store_true')
  args = parser.parse_args()
  if args.n < 1:
    parser.error(f'--n must be at least 1, not {args.n}.')
  if args.out and args.out.exists():
    parser.error(f'--out={args.out} exists; name a new folder.')
  try:
    llm = llm_of(args)
  except errors.UserError as error:
    parser.error(str(error))
  chosen = [s for s in seeds() if args.category in (None, s.category)]
  for seed in chosen:
    stages.brief_of(seed)  # Reading the seeds is no part of the rate.
  report = Report()
  start = time.process_time()
  made = corpus(chosen, args.n, args.rng_seed, report, llm)
  tasks = list(_written(made, args.out) if args.out else made)
  cpu = time.process_time() - start
  found = summary(tasks, chosen, args.n, report, cpu)
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
