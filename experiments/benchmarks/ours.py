"""rods_jax in the rollout benchmark: the dialogues of workload.py, and BFCL."""

import contextlib
import dataclasses
import threading
import time
from typing import Any

import jax
import numpy as np

from configs import rods
from experiments.benchmarks import workload
from rods_jax import build
from rods_jax import engine as engine_lib
from rods_jax import engines as engines_lib
from rods_jax import rng
from rods_jax import sharding
from rods_jax import weights
from rods_jax.device import model
from rods_jax.host import rollout
from rods_jax.host import side_by_side


def make_engine(scale: workload.Scale) -> engine_lib.Engine:
  """No token ends a message: the lengths do."""
  c = scale.config
  return engine_lib.Engine(
      model.definition(c), sharding.make_mesh(-1, 1, 1), c,
      num_slots=scale.slots, cache_buckets=scale.buckets,
      extend_buckets=scale.chunks, extend_rows=scale.extend_rows,
      max_new=scale.most, end_id=c.vocab_size, pad_id=0,
  )


def play(
    engine: engine_lib.Engine,
    params: Any,
    dialogues: workload.Dialogues,
    *,
    synchronous: bool = False,
    tool_s: float = 0.0,
    overlap_tokens: int = 0,
) -> tuple[dict[str, float], list[list[int]]]:
  """All dialogues, greedily: what was measured, and each row's tokens.

  Args:
    engine: of make_engine.
    params: of the policy.
    dialogues: what is played.
    synchronous: the batch waits: for the longest message, and for its longest
      trajectory before the next batch starts.
    tool_s: seconds that each tool call takes.
    overlap_tokens: of rollout.Budgets.
  """
  engine.reset(params, jax.random.key(0), temperature=1.0, greedy=True)
  jobs = dialogues.jobs()
  size = engine.num_slots if synchronous else len(jobs)
  budgets = dataclasses.replace(
      dialogues.budgets, overlap_tokens=overlap_tokens,
      **({'refill_below': 0.0} if synchronous else {}),
  )
  planned = workload.Planned(engine, dialogues, jobs[-1].uid)
  rows, host_s = [], 0.0
  clock = workload.Clock()
  for first in range(0, len(jobs), size):
    result = rollout.rollout(
        jobs[first : first + size], planned, workload.Format(dialogues),
        budgets,
        environments=workload.Environments(dialogues, first, tool_s),
    )
    rows += [t.tokens.tolist() for t in result.trajectories]
    host_s += result.host_s
  found = clock.measured(planned.sampled)
  return found | {
      'steps': planned.steps,
      'utilization': planned.sampled / (planned.steps * engine.num_slots),
      'utilization_with_queue': (
          planned.busy_sampled / max(1, planned.busy_steps * engine.num_slots)
      ),
      'host_share': host_s / found['seconds'],
  }, rows


def small_policy(num_batches: int = 3) -> dict[str, float]:
  """The embedded policy on BFCL, as configs/rods.py trains it."""
  config = rods.get_config()
  policy = build.build_policy(config)
  params = weights.initial_params(config, policy)
  engines = build.build_engines(config, policy)
  seeds = build.build_tasks(config, policy.fmt).seeds
  r = config.rollout
  total_s = generate_s = host_s = sampled = 0.0
  first = 0
  for batch in range(1 + num_batches):  # the first compiles
    begin = batch * r.groups_per_batch % len(seeds)
    tasks = seeds[begin : begin + r.groups_per_batch]
    key = rng.device(config.rng_seed, 'sample', batch)
    engines.reset(params, key, temperature=r.temperature)
    result = side_by_side.rollout(
        [
            rollout.Job(task, i, k * r.group_size + i)
            for k, task in enumerate(tasks)
            for i in range(r.group_size)
        ],
        engines.each, policy.fmt, build.build_budgets(config),
    )
    if batch:
      total_s += result.total_s
      generate_s += result.generate_s
      host_s += result.host_s
      sampled += result.sampled_tokens
    else:
      first = engines.num_programs
  return {
      'tokens_per_s': sampled / total_s,
      'host_share': host_s / total_s,
      'idle_share': 1 - generate_s / total_s,  # no engine at work
      'programs': engines.num_programs,
      'programs_after_first_batch': engines.num_programs - first,
  }


def decode_floor(steps: int = 60, rounds: int = 10) -> dict[str, float]:
  """A decode step of the embedded policy, over reading what it needs once.

  All slots of configs/rods.py hold rows of 200 to 400 tokens, as the main job's
  trajectories are long. Engines that share the slots work side by side; the
  weights count once. The floor is that of memory: what fits into a processor's
  last cache can be read faster.
  """
  config = rods.get_config()
  policy = build.build_policy(config)
  params = weights.initial_params(config, policy)
  engines = build.build_engines(config, policy)
  random = np.random.default_rng(0)
  lengths = random.integers(200, 400, config.rollout.num_slots)
  timed = [
      _timed_decode(engines, params, lengths, steps)
      for _ in range(1 + rounds)
  ][1:]  # the first compiles
  c = policy.config
  weight_bytes = sum(x.nbytes for x in jax.tree.leaves(params))
  per_token = 2 * c.num_layers * c.num_kv_heads * c.head_dim * 4
  used = int(lengths.sum() + len(lengths) * steps / 2) * per_token
  bandwidth = memory_bandwidth()
  floor_s = (weight_bytes + used) / bandwidth
  step_s = min(wall_s for wall_s, _ in timed)
  return {
      'slots': len(lengths),
      'engines': len(engines.each),
      'step_ms': 1e3 * step_s,
      'cpu_ms': 1e3 * min(cpu_s for _, cpu_s in timed),
      'floor_ms': 1e3 * floor_s,
      'bandwidth_gb_s': bandwidth / 1e9,
      'step_over_floor': step_s / floor_s,
  }


def _timed_decode(
    engines: engines_lib.Engines, params: Any, lengths: np.ndarray, steps: int
) -> tuple[float, float]:
  """Seconds of a step in which every row gains a token: wall, processors'."""
  random = np.random.default_rng(1)
  engines.reset(params, jax.random.key(1), temperature=1.0)
  shares = np.array_split(lengths, len(engines.each))
  with contextlib.ExitStack() as stack:
    workers = [
        stack.enter_context(contextlib.closing(side_by_side.Worker(engine)))
        for engine in engines.each
    ]
    return _timed_step(workers, shares, random, steps)


def _timed_step(workers, shares, random, steps: int) -> tuple[float, float]:
  """The same of workers whose slots are filled with rows of these lengths."""
  for worker, share in zip(workers, shares):
    for slot, length in enumerate(share):
      worker.start(slot, slot)
      worker.extend({slot: random.integers(8, 2000, length)})
    worker.begin_decode({0: 1}, 0)()
  start, cpu = time.perf_counter(), time.process_time()
  waits = [
      worker.begin_decode(dict.fromkeys(range(len(share)), steps), 0)
      for worker, share in zip(workers, shares)
  ]
  done = max(len(part.tokens) for wait in waits for part in wait().values())
  wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
  return wall_s / done, cpu_s / done


def memory_bandwidth(size: int = 1 << 25, rounds: int = 30) -> float:
  """Bytes a second that two threads read, the best of all rounds."""
  parts = [np.ones(size, np.float32) for _ in range(2)]

  def read(part):
    for begin in range(0, size, 1 << 16):  # pieces, so that little is written
      part[begin : begin + (1 << 16)].max()

  best = float('inf')
  for _ in range(rounds):
    threads = [threading.Thread(target=read, args=(part,)) for part in parts]
    start = time.perf_counter()
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    best = min(best, time.perf_counter() - start)
  return sum(part.nbytes for part in parts) / best
