"""Tabulates the complexity profiles of all tasks, and those of variants.

  python -m experiments.profiles [--variants=2] [--rng_seed=0] [--json]

The first table describes the 800 tasks. With --variants it also makes that
many variants of every seed, without the gate on profiles, and counts those
that the gate would reject, by the worst part of the distance.
"""

import argparse
import collections
import json
import statistics
import time

from rods_jax import terminal
from rods_jax.host import bfcl
from rods_jax.host.synthesis import augment, flow, pipeline, profile
from rods_jax.types import CATEGORIES, Task


def describe(tasks: list[Task]) -> dict:
  """Mean and range of each number over the tasks, and shares of origins."""
  start = time.process_time()
  found = [profile.of(task) for task in tasks]
  seconds = time.process_time() - start
  numbers = {
      'turns': [p.num_turns for p in found],
      'calls': [len(p.tools) for p in found],
      'classes': [len(set(p.classes)) for p in found],
      'dependencies': [len(p.links) for p in found],
      'of these by value': [_edges(p, profile.VALUE) for p in found],
      'of these by state': [_edges(p, profile.STATE) for p in found],
      'across turns': [_across(p) for p in found],
      'depth': [p.depth for p in found],
      'fan-out': [p.fan_out for p in found],
      'arguments': [len(p.flows) for p in found],
      'arguments of earlier turns': [sum(p.references) for p in found],
  }
  kinds = collections.Counter(kind for p in found for _, _, kind in p.flows)
  return {
      'numbers': {
          name: (statistics.fmean(values), min(values), max(values))
          for name, values in numbers.items()
      },
      'origins': {k: kinds[k] / kinds.total() for k in flow.KINDS},
      'ms': 1e3 * seconds / len(tasks),
  }


def _edges(found: profile.Profile, kind: str) -> int:
  return sum(k == kind for _, _, k in found.edges)


def _across(found: profile.Profile) -> int:
  """Dependencies between calls of different turns."""
  turn = [i for i, count in enumerate(found.calls) for _ in range(count)]
  return sum(turn[i] != turn[j] for i, j in found.links)


def table(found: dict[str, dict]) -> str:
  """Markdown: a row for each number, a column for each category."""
  rows = [('mean (range) of a task', *found)]
  first = next(iter(found.values()))
  for name in first['numbers']:
    cells = [f['numbers'][name] for f in found.values()]
    rows.append((name, *(f'{m:.1f} ({a}-{b})' for m, a, b in cells)))
  for kind in first['origins']:
    shares = [f['origins'][kind] for f in found.values()]
    rows.append((f'arguments: {kind}', *(f'{share:.0%}' for share in shares)))
  rows.append(('ms for a profile', *(f'{f["ms"]:.1f}' for f in found.values())))
  lines = ['| ' + ' | '.join(row) + ' |' for row in rows]
  return '\n'.join([lines[0], '|---' * len(rows[0]) + '|', *lines[1:]])


def compare(seeds: list[Task], per_seed: int, rng_seed: int) -> dict:
  """Distances of variants from their seeds, the gate left open."""
  request = pipeline.Request(
      0, tuple(seeds), per_seed, rng_seed, max_profile_distance=1.0
  )
  variants, _ = pipeline.run_request(request)
  by_id = {seed.task_id: seed for seed in seeds}
  parts, rejected = collections.Counter(), collections.Counter()
  for variant in variants:
    seed = by_id[variant.parent]
    same = variant.category == seed.category
    shape = variant if same else augment.base_form(variant)
    found = profile.distance(profile.of(seed), profile.of(shape))
    if found.total > profile.MAX_DISTANCE:
      parts[found.worst] += 1
      rejected[seed.task_id] += 1
  return {
      'variants': len(variants),
      'rejected': rejected.total(),
      'parts': dict(parts),
      'seeds': dict(rejected),
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--variants', type=int, default=0, help='of each seed')
  parser.add_argument('--rng_seed', type=int, default=0)
  parser.add_argument('--json', action='store_true')
  args = parser.parse_args()
  tasks = bfcl.load_tasks()
  seeds = {
      c: [t for t in tasks.values() if t.category == c] for c in CATEGORIES
  }
  result = {'profiles': {c: describe(seeds[c]) for c in CATEGORIES}}
  if args.variants:
    result['variants'] = {
        c: compare(seeds[c], args.variants, args.rng_seed) for c in CATEGORIES
    }
  if args.json:
    print(json.dumps(result, indent=2))
    return
  print(table(result['profiles']))
  if args.variants:
    rows = [('category', 'variants', 'rejected', 'worst part', 'seeds')]
    for c, found in result['variants'].items():
      rows.append((
          c, found['variants'], found['rejected'], str(found['parts']),
          str(found['seeds']),
      ))  # pyformat: disable
    print(terminal.summary_table(rows))


if __name__ == '__main__':
  main()
