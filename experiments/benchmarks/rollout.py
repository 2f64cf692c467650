"""Measures the rollout engine beside others on the same dialogues.

  python -m experiments.benchmarks.rollout [--json] [--scale=full]
      [--parts=engine,turns,cached,...] [--out=FILE]

16 tasks x 8 trajectories of 4 turns with tool results, in SmolLM2-135M's shape
with random weights; all sides have the same weights, prompts, lengths of
messages and cores, and sample greedily. Ratios count, not times; those of the
processors' time too where others use the machine (see workload.Clock). Parts,
each a few minutes on two quiet cores:

  engine       rods_jax: continuous batching.
  turns        transformers' generate on the whole chat at each turn.
  cached       transformers with one cache from turn to turn, in batches.
  synchronous  rods_jax against itself in batches, with a long-tailed mix.
  small        the embedded policy on BFCL: host share, compiled programs.
  floor        its decode step, over reading weights and cache once.
  overlap      slow tools, with and without rollout.overlap_tokens.
  tunix        google-tunix's sampler, in an environment of its own
               (requirements-tunix.txt beside this file).

turns and cached need tests/requirements.txt. With --out the result of a part is
written as soon as it is there.
"""

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
import json
import logging
import pathlib
import sys
from typing import Any

import jax

from experiments.benchmarks import ours
from experiments.benchmarks import workload
from rods_jax import errors
from rods_jax.device import model

PARTS = (
    'engine', 'turns', 'cached', 'synchronous', 'small', 'floor', 'overlap',
    'tunix',
)
_USUAL = 0.7  # deviation of the logarithm of a message's length
_LONG_TAILED = 1.0
_OVERLAP_TOKENS = 8
_TOOL_S = 0.05

Results = dict[str, Any]


class Benchmark:
  """The parts; what several need is made once."""

  def __init__(self, scale: workload.Scale, write: Callable[[Results], None]):
    self._scale, self._write = scale, write
    self._rows: dict[str, list[list[int]]] = {}
    self._torch = self._params = self._engine = None
    self.results: Results = {}

  def run(self, parts: Sequence[str]) -> Results:
    if {'turns', 'cached'} & set(parts):
      self._load_torch()
    if 'tunix' in parts:  # is it installed? Said before the others run
      import_module('experiments.benchmarks.tunix_baseline')
    for part in parts:
      logging.info('Part %s.', part)
      self.results[part] = getattr(self, f'part_{part}')()
      self._write(self.results | {'numbers': numbers(self.results)})
    return self.results

  def _load_torch(self) -> None:
    from experiments.benchmarks import transformers_baselines

    self._torch = transformers_baselines
    self._made, self._params = transformers_baselines.make(self._scale)

  def _ours(self):
    """The engine and its parameters, compiled for all lengths."""
    if self._engine is None:
      if self._params is None:
        self._params = model.create(self._scale.config, jax.random.key(0))[1]
      self._engine = ours.make_engine(self._scale)
      self._engine.reset(
          self._params, jax.random.key(0), temperature=1.0, greedy=True
      )
      rows = range(self._scale.extend_rows)
      for size in self._scale.chunks:  # full steps, cheapest in that length
        for row in rows:
          self._engine.start(row, row)
        self._engine.extend({row: [2] * (size + 1) for row in rows})
      self._engine.start(1, 1)
      self._engine.copy(0, [1], size)
      self._engine.decode({1: 1})
    return self._engine, self._params

  def _dialogues(self, deviation: float = _USUAL) -> workload.Dialogues:
    return workload.Dialogues(self._scale, deviation)

  def _play(self, **options) -> tuple[list, dict[str, float]]:
    engine, params = self._ours()
    before = engine.num_programs
    found, rows = ours.play(engine, params, **options)
    return rows, found | {
        'programs': engine.num_programs,
        'programs_after_warm_up': engine.num_programs - before,
    }

  def part_engine(self):
    self._rows['engine'], found = self._play(dialogues=self._dialogues())
    return found

  def _baseline(self, play) -> dict[str, float]:
    found, rows = play(self._made, self._dialogues())
    wanted = self._rows.get('engine')
    if wanted:  # the same weights and places give the same greedy tokens
      same = [one == other for one, other in zip(rows, wanted)]
      found['rows_equal_to_ours'] = sum(same) / len(same)
    return found

  def part_turns(self):
    return self._baseline(self._torch.turn_by_turn)

  def part_cached(self):
    return self._baseline(self._torch.cached)

  def part_synchronous(self):
    dialogues = self._dialogues(_LONG_TAILED)
    return {
        'continuous': self._play(dialogues=dialogues)[1],
        'synchronous': self._play(
            dialogues=dialogues, synchronous=True
        )[1],
    }

  def part_small(self):
    return ours.small_policy()

  def part_floor(self):
    return ours.decode_floor()

  def part_overlap(self):
    dialogues = self._dialogues()
    return {
        name: self._play(
            dialogues=dialogues, tool_s=_TOOL_S, overlap_tokens=tokens
        )[1]
        for name, tokens in (('waits', 0), ('overlaps', _OVERLAP_TOKENS))
    }

  def part_tunix(self):
    from experiments.benchmarks import tunix_baseline

    return tunix_baseline.measure(self._scale)


def _steps_ratio(found: Results) -> float | None:
  """How many steps fewer: what the machine has no part in."""
  if 'synchronous' not in found:
    return None
  both = found['synchronous']
  return both['synchronous']['steps'] / both['continuous']['steps']


def numbers(found: Results) -> dict[str, float]:
  """What the project wants to know, of the parts that were run."""

  def value(*path):
    inner = found
    for name in path[:-1]:
      inner = inner.get(name, {})
    return inner.get(path[-1])

  def ratio(one, other, kind='tokens_per_s'):
    one, other = value(*one, kind), value(*other, kind)
    return one / other if one and other else None

  def both(name, one, other):
    """On the wall, and by processors' time."""
    return {
        name: ratio(one, other),
        f'{name.split()[0]}, CPU time': ratio(one, other, 'tokens_per_cpu_s'),
    }

  engine = ('engine',)
  batches = ('synchronous', 'continuous'), ('synchronous', 'synchronous')
  made = {
      **both('over_turns (5)', engine, ('turns',)),
      **both('over_cached (2)', engine, ('cached',)),
      'over_synchronous (1.7)': ratio(*batches),
      'over_synchronous, steps': _steps_ratio(found),
      **both('over_tunix (1)', ('tunix', 'ours'), ('tunix', 'tunix')),
      'overlap over waiting': ratio(
          ('overlap', 'overlaps'), ('overlap', 'waits')
      ),
      'utilization (0.9)': value('engine', 'utilization'),
      'host_share (0.05)': value('engine', 'host_share'),
      'programs (12)': value('engine', 'programs'),
      'programs later (0)': value('engine', 'programs_after_warm_up'),
      # Of several engines the others go on while the host works.
      'small: waits_for_host (0.05)': value('small', 'idle_share'),
      'small: host_at_work': value('small', 'host_share'),
      'small: programs (12)': value('small', 'programs'),
      'small: programs later (0)': value('small', 'programs_after_first_batch'),
      'small: step_over_floor (2)': value('floor', 'step_over_floor'),
  }
  return {name: x for name, x in made.items() if x is not None}


def parse(argv: Sequence[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--scale', choices=workload.SCALES, default='full')
  parser.add_argument('--out', type=pathlib.Path)
  parser.add_argument(
      '--parts', default=','.join(p for p in PARTS if p != 'tunix'),
      help='of ' + ', '.join(PARTS),
  )
  options = parser.parse_args(argv)
  options.parts = options.parts.split(',')
  unknown = set(options.parts) - set(PARTS)
  if unknown:
    parser.error(f'there is no part {sorted(unknown)[0]!r}')
  try:
    if options.out:
      options.out.touch()
  except OSError as error:
    parser.error(f'--out={options.out}: {error.strerror}')
  return options


def main(argv: Sequence[str]) -> int:
  options = parse(argv)
  logging.basicConfig(
      level=logging.INFO, format='%(asctime)s %(message)s', force=True
  )

  def write(results: Results) -> None:
    text = json.dumps(results, indent=2)
    if options.out:
      options.out.write_text(text + '\n')
    logging.info('%s', json.dumps(results['numbers']))

  try:
    benchmark = Benchmark(workload.SCALES[options.scale], write)
    results = benchmark.run(options.parts)
  except errors.UserError as error:
    logging.error('Error: %s', error)
    return 1
  if options.json:
    print(json.dumps(results | {'numbers': numbers(results)}, indent=2))
  else:
    for name, value in numbers(results).items():
      print(f'{name:26}{value:.3g}')
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
