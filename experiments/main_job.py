"""Runs the main job over several values of rng_seed and tabulates it.

  python -m experiments.main_job --seeds=0,1,2 --out=DIR [--json]

Each run is the user's own command in a process of its own; its numbers come
from its metrics.jsonl and pool.jsonl. A run that is complete is not repeated.
The first seed starts with an empty compilation cache, the others with a full
one, and a second start of the first seed is timed up to its first update.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from rods_jax import terminal

CONFIG = 'configs/rods.py'


def start(
    workdir: pathlib.Path, seed: int, out: pathlib.Path, flags: list[str], log
) -> subprocess.Popen:
  """Starts the user's own command, with the experiment's program cache."""
  return subprocess.Popen(
      [
          sys.executable, 'main.py', f'--config={CONFIG}',
          f'--workdir={workdir}', f'--config.rng_seed={seed}', *flags,
      ],
      env=os.environ | {'JAX_COMPILATION_CACHE_DIR': str(out / 'xla_cache')},
      stdout=log,
      stderr=log,
  )  # pyformat: disable


def run(seed: int, out: pathlib.Path, flags: list[str]) -> dict:
  """One run, or the result of an earlier one."""
  result_path = out / f'seed{seed}.json'
  if result_path.exists():
    return json.loads(result_path.read_text())
  workdir = out / f'seed{seed}'
  begin = time.monotonic()
  with (out / f'seed{seed}.log').open('w') as log:
    child = start(workdir, seed, out, flags, log)
    first = _time_of_first_update(child, workdir, begin)
    child.wait()
  seconds = time.monotonic() - begin
  if child.returncode:
    raise SystemExit(f'Seed {seed} failed; see {out}/seed{seed}.log.')
  peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
  result = {
      'seed': seed,
      'seconds': seconds,
      'first_update_s': first,
      'peak_gib_so_far': peak,
      **summarize(workdir),
  }
  result_path.write_text(json.dumps(result))
  return result


def second_start(seed: int, out: pathlib.Path, flags: list[str]) -> float:
  """Seconds to the first update of a fresh run with a full cache."""
  with tempfile.TemporaryDirectory() as folder:
    begin = time.monotonic()
    workdir = pathlib.Path(folder)
    child = start(workdir, seed, out, flags, subprocess.DEVNULL)
    try:
      return _time_of_first_update(child, workdir, begin)
    finally:
      child.terminate()
      child.wait()


def _time_of_first_update(child, workdir: pathlib.Path, begin: float) -> float:
  path = workdir / 'metrics.jsonl'
  while child.poll() is None:
    if path.exists() and '"step": 1,' in path.read_text():
      return time.monotonic() - begin
    time.sleep(0.2)
  return float('nan')


def summarize(workdir: pathlib.Path) -> dict:
  """The numbers of one finished run."""
  rows = _lines(workdir / 'metrics.jsonl')
  steps = [row for row in rows if row['step'] > 0]
  before, after = rows[0], rows[-1]
  closing = [row for row in steps if 'pool/size' in row]
  visits = [
      e for e in _lines(workdir / 'pool.jsonl') if e['event'] == 'visit'
  ]
  boundary = [e['variance'] for e in visits if e['zone'] == 'boundary']
  others = [e['variance'] for e in visits if e['zone'] != 'boundary']
  total = sum(row['time/total'] for row in steps)
  result = {
      'steps': len(steps),
      'variance_boundary': statistics.fmean(boundary),
      'variance_others': statistics.fmean(others),
      'injected': sum(row['pool/injected'] for row in closing),
      'retired': sum(row['pool/retired'] for row in closing),
      'largest_pool': max(row['pool/size'] for row in closing),
      'largest_generated': max(row['pool/generated'] for row in closing),
      'host_share': sum(row.get('time/host', 0) for row in steps) / total,
  }
  for split in ('heldout_variants', 'heldout_scenarios'):
    for name in ('progress', 'accuracy'):
      key = f'eval/{split}_{name}'
      result[f'{split}_{name}'] = [before[key], after[key]]
  return result


def _lines(path: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()]


def table(results: list[dict]) -> str:
  """One line per seed, then the mean and the deviation of what was gained."""
  rows = [(
      'seed', 'minutes', 'first update', 'variants', 'gain', 'scenarios',
      'variance ratio', 'injected', 'retired', 'largest pool', 'host',
  )]  # pyformat: disable
  gains = []
  for r in results:
    before, after = r['heldout_variants_progress']
    old, new = r['heldout_scenarios_progress']
    gains.append(after - before)
    ratio = r['variance_boundary'] / max(r['variance_others'], 1e-9)
    rows.append((
        r['seed'],
        f'{r["seconds"] / 60:.1f}',
        f'{r["first_update_s"]:.0f} s',
        f'{before:.3f} -> {after:.3f}',
        f'{after - before:+.3f}',
        f'{old:.3f} -> {new:.3f}',
        f'{ratio:.2f}',
        f'{r["injected"]:.0f}',
        f'{r["retired"]:.0f}',
        f'{r["largest_pool"]:.0f}',
        f'{r["host_share"]:.1%}',
    ))
  spread = statistics.stdev(gains) if len(gains) > 1 else float('nan')
  peak = max(r['peak_gib_so_far'] for r in results)
  return (
      f'{terminal.summary_table(rows)}\n'
      f'gain {statistics.fmean(gains):+.3f}, deviation {spread:.3f}; '
      f'peak memory {peak:.2f} GiB'
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--seeds', default='0,1,2')
  parser.add_argument('--out', type=pathlib.Path, required=True)
  parser.add_argument('--json', action='store_true')
  args, flags = parser.parse_known_args()
  args.out.mkdir(parents=True, exist_ok=True)
  seeds = [int(s) for s in args.seeds.split(',')]
  results = [run(seed, args.out, flags) for seed in seeds]
  restart = second_start(seeds[0], args.out, flags)
  if args.json:
    print(json.dumps({'runs': results, 'second_start_s': restart}, indent=2))
  else:
    print(table(results))
    print(f'second start: first update after {restart:.0f} s')


if __name__ == '__main__':
  main()
