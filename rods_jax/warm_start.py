"""Supervised warm start: makes the tokenizer and the policy that ship.

1. Variants of every training task are synthesized and executed.
2. The tokenizer learns its merges from their text.
3. Each step trains on fresh variants, shown as ground-truth dialogues.
4. The policy is written to config.warm_start.output, then evaluated.

Held-out scenarios give no text, no tokens and no gradient.
"""

from collections.abc import Iterator, Sequence
import functools
import pathlib
import time

import jax
import ml_collections
import numpy as np

from rods_jax import build
from rods_jax import errors
from rods_jax import evaluate
from rods_jax import pretrained
from rods_jax import rng
from rods_jax import terminal
from rods_jax import types
from rods_jax import weights
from rods_jax import workdir as workdir_lib
from rods_jax.device import update
from rods_jax.host import bfcl
from rods_jax.host import demonstrate
from rods_jax.host import packing
from rods_jax.host import renaming
from rods_jax.host import tokenizer as tokenizer_lib
from rods_jax.host.synthesis import pipeline
from rods_jax.metrics import MetricsWriter


def warm_start(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> int:
  """Runs all four stages; returns the exit status."""
  if folder := pretrained.folder(config):
    raise errors.UserError(
        f'config.model.init_from is the Hugging Face folder {folder}; a warm '
        "start makes a policy with a tokenizer of its own, so use 'random'."
    )
  output = pathlib.Path(config.warm_start.output)
  with workdir_lib.writable(output):
    output.mkdir(parents=True, exist_ok=True)
  workdir_lib.prepare(workdir, config)
  tasks = build.build_tasks(config)
  tokenizer = make_tokenizer(config, tasks.seeds)
  policy = build.build_policy(config, tokenizer)
  tasks = build.build_tasks(config, policy.fmt)
  with MetricsWriter(workdir) as writer:
    params = fit(config, policy, tasks.seeds, writer)
  tokenizer.save(output / 'tokenizer.json')
  weights.save(
      output / 'policy.safetensors', params, weights.origin(config, policy)
  )
  results = evaluate.evaluate_tasks(
      config, policy, params, build.evaluation_tasks(config, tasks, policy.fmt)
  )
  evaluate.write(config, workdir, config.warm_start.num_steps, results)
  print(evaluate.table(results))
  return 0


def variants(
    config: ml_collections.ConfigDict,
    seeds: Sequence[types.Task],
    name: str,
) -> Iterator[types.Task]:
  """Endless executed variants: each pass visits every seed once, shuffled.

  A share of them is varied once more: a variant never has a value of its seed,
  but its own variants may, so no value is left out. None of them is a held-out
  variant of any evaluation.
  """
  make = functools.partial(
      pipeline.make_variant,
      attempts=config.synthesis.attempts,
      max_profile_distance=config.synthesis.max_profile_distance,
  )
  for epoch in range(2**31):
    random = rng.host(config.rng_seed, name, epoch)
    for i in random.permutation(len(seeds)):
      made = make(seeds[i], random)
      if random.random() < config.warm_start.second_share:
        if isinstance(made, types.Task):
          made = make(made, random)
      if isinstance(made, types.Task):
        yield made


def make_tokenizer(
    config: ml_collections.ConfigDict, seeds: Sequence[types.Task]
) -> tokenizer_lib.Tokenizer:
  """A tokenizer from the text of variants, values as calls write them."""
  tools = sorted({t for c in bfcl.CLASSES for t in bfcl.tool_names(c)})
  parameters = sorted({p for t in tools for p in bfcl.parameters(t)})
  count = config.warm_start.tokenizer_variants * len(seeds)
  source = variants(config, seeds, 'tokenizer')
  texts: list[str] = []
  for _ in range(count):
    texts += demonstrate.texts(next(source))
  return tokenizer_lib.train(
      texts, tools, parameters, config.warm_start.vocab_size
  )


def fit(config, policy: build.Policy, seeds, writer: MetricsWriter):
  """Trains from random parameters; returns them."""
  warm = config.warm_start
  optimizer = update.make_optimizer(
      warm.learning_rate,
      warm.warmup_steps,
      config.grpo.grad_clip,
      config.grpo.weight_decay,
      decay_steps=warm.num_steps,
  )
  params = weights.initial_params(config, policy)
  state = update.init_state(params, optimizer, 1, policy.mesh)
  step_fn = update.make_supervised_fn(
      policy.graphdef,
      optimizer,
      chunk=config.grpo.logprob_chunk or None,
      state_shardings=jax.tree.map(lambda x: x.sharding, state),
      mesh=policy.mesh,
  )
  source = rows(config, policy, seeds)
  begin = time.monotonic()
  with terminal.ProgressBar(warm.num_steps, 1) as bar:
    for step in range(1, warm.num_steps + 1):
      batch = packing.pack_supervised(
          [next(source) for _ in range(warm.rows_per_step)],
          buckets=tuple(config.grpo.length_buckets),
          microbatch_rows=warm.microbatch_rows,
          pad_id=policy.tokenizer.pad_id,
      )
      state, metrics = step_fn(state, batch)
      bar.update(step, 0, None)
      if step % warm.log_every == 0 or step == warm.num_steps:
        metrics = {k: float(v) for k, v in jax.device_get(metrics).items()}
        writer.write(
            step, metrics | {'time/elapsed': time.monotonic() - begin}
        )
  return state.params


def rows(
    config, policy: build.Policy, seeds: Sequence[types.Task]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Demonstrations of variants: some stop early, some are renamed.

  Longer ones than the context are left out.
  """
  renamer = renaming.Renamer(policy.tokenizer)
  random = rng.host(config.rng_seed, 'rename')
  stops = rng.host(config.rng_seed, 'early_stop')
  for task in variants(config, seeds, 'warm_start'):
    shown = demonstrate.demonstrate(
        task, policy.fmt, stops, config.warm_start.early_stop_share
    )
    if len(shown.tokens) > config.rollout.cache_buckets[-1]:
      continue
    if random.random() < config.warm_start.rename_share:
      shown = renamer(shown, random)
    yield shown.tokens, shown.loss_mask
