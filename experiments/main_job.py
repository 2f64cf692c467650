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
import time

CONFIG = 'configs/rods.py'


def run(seed: int, out: pathlib.Path, flags: list[str]) -> dict:
  """One run, or the result of an earlier one."""
  result_path = out / f'seed{seed}.json'
  if result_path.exists():
    return json.loads(result_path.read_text())
  workdir = out / f'seed{seed}'
  command = [
      sys.executable, 'main.py', f'--config={CONFIG}', f'--workdir={workdir}',
      f'--config.rng_seed={seed}', *flags,
  ]  # pyformat: disable
  env = os.environ | {'JAX_COMPILATION_CACHE_DIR': str(out / 'xla_cache')}
  begin = time.monotonic()
  with (out / f'seed{seed}.log').open('w') as log:
    child = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    first = _time_of_first_update(child, workdir, begin)
    child.wait()
  seconds = time.monotonic() - begin
  if child.returncode:
    raise SystemExit(f'{" ".join(command)} failed; see {out}/seed{seed}.log')
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
  workdir = out / 'second_start'
  subprocess.run(['rm', '-rf', str(workdir)], check=True)
  command = [
      sys.executable, 'main.py', f'--config={CONFIG}', f'--workdir={workdir}',
      f'--config.rng_seed={seed}', *flags,
  ]  # pyformat: disable
  env = os.environ | {'JAX_COMPILATION_CACHE_DIR': str(out / 'xla_cache')}
  begin = time.monotonic()
  child = subprocess.Popen(
      command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  )
  try:
    return _time_of_first_update(child, workdir, begin)
  finally:
    child.kill()
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
  lines = [
      'seed  minutes  first update  variants before -> after   gain  '
      'scenarios before -> after  variance ratio  injected retired  host'
  ]
  gains = []
  for r in results:
    before, after = r['heldout_variants_progress']
    old, new = r['heldout_scenarios_progress']
    gains.append(after - before)
    ratio = r['variance_boundary'] / max(r['variance_others'], 1e-9)
    lines.append(
        f'{r["seed"]:4d}  {r["seconds"] / 60:7.1f}  {r["first_update_s"]:10.0f} s'
        f'  {before:.3f} -> {after:.3f}           {after - before:+.3f}  '
        f'{old:.3f} -> {new:.3f}            {ratio:14.2f}  '
        f'{r["injected"]:8.0f} {r["retired"]:7.0f}  {r["host_share"]:.1%}'
    )
  spread = statistics.stdev(gains) if len(gains) > 1 else float('nan')
  lines.append(f'gain {statistics.fmean(gains):+.3f} (deviation {spread:.3f})')
  lines.append(f'peak memory {max(r["peak_gib_so_far"] for r in results):.2f} GiB')
  return '\n'.join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--seeds', default='0,1,2')
  parser.add_argument('--out', type=pathlib.Path, required=True)
  parser.add_argument('--json', action='store_true')
  args, flags = parser.parse_known_args()
  args.out.mkdir(parents=True, exist_ok=True)
  seeds = [int(s) for s in args.seeds.split(',')]
  results = [run(seed, args.out, flags) for seed in seeds]
  start = second_start(seeds[0], args.out, flags)
  if args.json:
    print(json.dumps({'runs': results, 'second_start_s': start}, indent=2))
  else:
    print(table(results))
    print(f'second start: first update after {start:.0f} s')


if __name__ == '__main__':
  main()
