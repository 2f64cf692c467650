"""How near the update comes to plain matrix products of the same shapes.

  python -m experiments.benchmarks.update [--repeats=7] [--json]

The update is that of configs/rods.py on the shipped policy, with a batch of
random rows as long as the main job's. Its work is counted as the matrix
products that it needs: forward, and for the backward pass two more of each, at
padded lengths and over the keys up to the end of each block of queries.
Softmax, norms, optimizer and the rest count nothing. Then each of these
products runs alone, float32 times float32, as often as the update has it.

Update and products take turns, so that both see the same machine. `wall` is of
the fastest turns; `cpu` counts processor seconds, which other programs on the
machine disturb less.
"""

import argparse
import collections
from collections.abc import Iterator
import json
import math
import time
from typing import Any, Callable

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from configs import rods
from rods_jax import build
from rods_jax import rng
from rods_jax import run as run_lib
from rods_jax import types
from rods_jax import weights
from rods_jax.device import layers
from rods_jax.device import model
from rods_jax.device import update
from rods_jax.host import packing

LENGTHS = (200, 500)  # of a row, evenly spread
SAMPLED = 0.15  # share of a row's tokens
Product = tuple[int, int, int, int]  # batch, m, k, n: [b, m, k] times [b, k, n]


def trajectory(random: np.random.Generator, vocab_size: int, score: int):
  """A row with a progress of score / 4."""
  size = int(random.integers(*LENGTHS))
  mask = random.random(size) < SAMPLED
  mask[0], mask[-1] = False, True
  return types.Trajectory(
      task_id='t', sample=0,
      tokens=random.integers(0, vocab_size, size).astype(np.int32),
      loss_mask=mask,
      logprobs=np.where(mask, -2.0, 0.0).astype(np.float32),
      turn_scores=tuple(
          types.TurnScore(k < score, True, '' if k < score else 'wrong')
          for k in range(4)
      ),
      status=types.Status.DONE, policy_version=0, num_rounds=1, num_calls=1,
      num_tool_errors=0, num_parse_errors=0,
  )


def make_batch(config: ml_collections.ConfigDict, vocab_size: int):
  """A minibatch without a flat group."""
  random = rng.host(0, 'benchmark')
  grpo, size = config.grpo, config.rollout.group_size
  groups = [
      [trajectory(random, vocab_size, k % 5) for k in range(size)]
      for _ in range(grpo.minibatch_groups)
  ]
  return packing.pack(
      groups, range(len(groups)), buckets=tuple(grpo.length_buckets),
      microbatch_rows=grpo.microbatch_rows, group_size=size,
      num_groups=grpo.minibatch_groups,
  )


def forward_products(
    c: model.ModelConfig, rows: int, length: int, targets: int
) -> Iterator[Product]:
  """Of one microbatch."""
  tokens, heads = rows * length, c.num_heads * c.head_dim
  if c.previous_token:
    yield 1, tokens, c.d_model, c.d_model
  for _ in range(c.num_layers):
    yield 1, tokens, c.d_model, heads
    yield 1, tokens, c.d_model, c.num_kv_heads * c.head_dim
    yield 1, tokens, c.d_model, c.num_kv_heads * c.head_dim
    yield from _attention(c, rows, length)
    yield 1, tokens, heads, c.d_model
    yield 1, tokens, c.d_model, c.mlp_dim
    yield 1, tokens, c.d_model, c.mlp_dim
    yield 1, tokens, c.mlp_dim, c.d_model
  yield 1, rows * targets, c.d_model, c.vocab_size


def _attention(c: model.ModelConfig, rows: int, length: int):
  """Scores and sums of values; blocks as in device/layers.py."""
  block = max(layers.MIN_BLOCK, -(-length // layers.MAX_BLOCKS))
  group = c.num_heads // c.num_kv_heads
  for start in range(0, length, block):
    end = min(start + block, length)
    queries = group * (end - start)
    yield rows * c.num_kv_heads, queries, c.head_dim, end
    yield rows * c.num_kv_heads, queries, end, c.head_dim


def products(
    c: model.ModelConfig, batch: Any
) -> collections.Counter[Product]:
  """Of the whole update: how often each occurs."""
  found: collections.Counter[Product] = collections.Counter()
  for bucket, count in zip(batch.packed.buckets, batch.packed.counts):
    _, rows, length = bucket.tokens.shape
    for b, m, k, n in forward_products(
        c, rows, length, bucket.targets.shape[-1]
    ):
      found[b, m, k, n] += int(count)
      found[b, m, n, k] += int(count)  # the gradient of the left operand
      found[b, k, m, n] += int(count)  # and of the right one
  return found


def flops(counted: collections.Counter[Product]) -> float:
  return sum(2.0 * math.prod(p) * count for p, count in counted.items())


def plain(counted: collections.Counter[Product]) -> Callable[[], None]:
  """Runs all of them, each by itself."""
  multiply = jax.jit(jnp.matmul)
  random = np.random.default_rng(0)
  operands = {
      (b, m, k, n): (
          jnp.asarray(random.normal(size=(b, m, k)), jnp.float32),
          jnp.asarray(random.normal(size=(b, k, n)), jnp.float32),
      )
      for b, m, k, n in counted
  }
  operands = {  # a batch of one is no batch
      p: tuple(x[0] for x in pair) if p[0] == 1 else pair
      for p, pair in operands.items()
  }

  def run():
    for product, count in counted.items():
      for _ in range(count):
        multiply(*operands[product]).block_until_ready()

  return run


def make_step(config: ml_collections.ConfigDict, policy: build.Policy, batch):
  """Runs one update."""
  optimizer = run_lib.make_optimizer(config)
  state = update.init_state(
      weights.initial_params(config, policy), optimizer,
      config.grpo.minibatch_groups, policy.mesh,
  )
  step = run_lib.make_update(
      config, policy.graphdef, optimizer,
      jax.tree.map(lambda x: x.sharding, state), policy.mesh,
  )
  states = [state]

  def run():
    states[0], metrics = step(states[0], None, batch)
    jax.block_until_ready(metrics)

  return run


def measure(repeats: int) -> dict[str, Any]:
  """The numbers; see the module's docstring."""
  config = rods.get_config()
  policy = build.build_policy(config)
  batch = make_batch(config, policy.config.vocab_size)
  counted = products(policy.config, batch)
  parts = {
      'update': make_step(config, policy, batch), 'products': plain(counted)
  }
  seconds = {name: {'wall': [], 'cpu': []} for name in parts}
  for turn in range(repeats + 1):
    for name, run in parts.items():
      wall, cpu = time.perf_counter(), time.process_time()
      run()
      if turn:  # the first compiles
        seconds[name]['wall'].append(time.perf_counter() - wall)
        seconds[name]['cpu'].append(time.process_time() - cpu)
  work = flops(counted)
  found = {
      'rows': packing.num_rows(batch.packed),
      'microbatches': [int(n) for n in batch.packed.counts],
      'gflop': work / 1e9,
      'distinct_products': len(counted),
  }
  for clock in ('wall', 'cpu'):
    best = {name: min(taken[clock]) for name, taken in seconds.items()}
    for name, s in best.items():
      found[f'{name}_{clock}_s'] = s
      found[f'{name}_gflops_{clock}'] = work / 1e9 / s
    found[f'efficiency_{clock}'] = best['products'] / best['update']
  return found


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--repeats', type=int, default=7)
  parser.add_argument('--json', action='store_true')
  arguments = parser.parse_args()
  if arguments.repeats < 1:
    parser.error('--repeats must be at least 1.')
  found = measure(arguments.repeats)
  if arguments.json:
    print(json.dumps(found, indent=1))
    return
  for name, value in found.items():
    print(f'{name:24} {value:.3g}' if isinstance(value, float) else
          f'{name:24} {value}')


if __name__ == '__main__':
  main()
