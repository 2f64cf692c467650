"""Builds the parts of a run from its configuration.

Training, evaluation and the warm start share these, so that they see the same
split, the same prompts and the same rollout path.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools
import pathlib
from typing import Any

from flax import nnx
import jax
import ml_collections

from rods_jax import engine as engine_lib
from rods_jax import engines as engines_lib
from rods_jax import errors
from rods_jax import pretrained
from rods_jax import rng
from rods_jax import settings
from rods_jax import sharding
from rods_jax import types
from rods_jax.device import model
from rods_jax.host import bfcl
from rods_jax.host import chat_format
from rods_jax.host import demonstrate
from rods_jax.host import env
from rods_jax.host import env_pool
from rods_jax.host import rollout
from rods_jax.host import tokenizer as tokenizer_lib
from rods_jax.host.synthesis import pipeline

ASSETS = pathlib.Path(__file__).parent / 'assets'


@dataclasses.dataclass(frozen=True)
class Tasks:
  """The tasks of a run.

  Attributes:
    train: human tasks of the training scenarios.
    heldout: human tasks of the held-out scenarios; only ever evaluated.
    seeds: the training tasks that the pool starts from.
  """

  train: Mapping[str, types.Task]
  heldout: Mapping[str, types.Task]
  seeds: Sequence[types.Task]


def build_tasks(
    config: ml_collections.ConfigDict,
    fmt: chat_format.ChatFormat | None = None,
) -> Tasks:
  """Loads and splits BFCL; tasks with known faults are left out of both.

  Args:
    config: the run's.
    fmt: with it, seeds are only tasks that `fits` finds short enough.
  """
  data = config.data
  with errors.as_user_error(bfcl.BfclError):
    tasks = bfcl.load_tasks(tuple(data.categories))
  sound = {
      name: task for name, task in tasks.items() if not bfcl.fault_of(task)
  }
  train, heldout = bfcl.split(
      sound, data.split, data.num_train_scenarios, data.split_seed
  )
  return Tasks(train, heldout, _seed_tasks(train, config, fmt))


def fits(
    task: types.Task,
    fmt: chat_format.ChatFormat,
    config: ml_collections.ConfigDict,
) -> bool:
  """Whether the ground-truth dialogue is short enough for this policy."""
  shown = demonstrate.demonstrate(task, fmt)
  return (
      len(shown.tokens) <= config.data.max_task_tokens
      and shown.longest_message <= config.data.max_message_tokens
  )


def _seed_tasks(train, config, fmt) -> list[types.Task]:
  """Scenario by scenario, each in all its categories, until it's enough."""
  data = config.data
  scenarios = sorted({task.scenario for task in train.values()})
  rng.host(data.split_seed, 'seed_tasks').shuffle(scenarios)
  rank = {scenario: i for i, scenario in enumerate(scenarios)}
  wanted = data.num_seed_tasks or len(train)
  seeds = []
  for task in sorted(
      train.values(), key=lambda t: (rank[t.scenario], t.task_id)
  ):
    if len(seeds) < wanted and (fmt is None or fits(task, fmt, config)):
      seeds.append(task)
  if len(seeds) < data.num_seed_tasks or not seeds:
    raise errors.UserError(
        f'config.data.num_seed_tasks is {data.num_seed_tasks}, but the '
        f'training scenarios have {len(seeds)} within '
        'config.data.max_task_tokens and max_message_tokens; 0 takes all.'
    )
  return seeds


def evaluation_tasks(
    config: ml_collections.ConfigDict,
    tasks: Tasks,
    fmt: chat_format.ChatFormat,
) -> dict[str, list[types.Task]]:
  """The two evaluation sets: the same for every rng_seed.

  heldout_variants: variants of the pool's seed tasks that training never
  sees; heldout_scenarios: human tasks of scenarios that nothing is made from.
  Both hold only tasks that fit the budgets.
  """
  seeds = [seed for seed in tasks.seeds if pipeline.is_varied(seed)]
  wanted = config.eval.num_variants
  per_seed = -(-wanted // max(len(seeds), 1)) + 1  # some are too long
  made = pipeline.heldout_variants(seeds, per_seed, config.data.split_seed)
  variants = [v for v in made if fits(v, fmt, config)]
  random = rng.host(config.data.split_seed, 'heldout_tasks')
  heldout = sorted(tasks.heldout.values(), key=lambda t: t.task_id)
  order = (int(i) for i in random.permutation(len(heldout)))
  short = (i for i in order if fits(heldout[i], fmt, config))
  chosen = itertools.islice(short, config.eval.num_heldout)
  shuffled = [variants[i] for i in random.permutation(len(variants))]
  kept = {v.task_id for v in _spread(shuffled)[:wanted]}
  return {
      'heldout_variants': [v for v in variants if v.task_id in kept],
      'heldout_scenarios': [heldout[i] for i in sorted(chosen)],
  }


def _spread(variants: Sequence[types.Task]) -> list[types.Task]:
  """Every seed's first variant, then every second one, and so on."""
  seen = collections.Counter()
  rank = {}
  for variant in variants:
    rank[variant.task_id] = seen[variant.parent]
    seen[variant.parent] += 1
  return sorted(variants, key=lambda v: rank[v.task_id])


@dataclasses.dataclass(frozen=True)
class Policy:
  """The policy's static parts.

  Attributes:
    tokenizer: its tokenizer.
    fmt: its chat format.
    config: shape of the decoder.
    graphdef: static definition, for the functions of device/.
    mesh: the devices.
  """

  tokenizer: chat_format.Tokenizer
  fmt: chat_format.ChatFormat
  config: model.ModelConfig
  graphdef: nnx.GraphDef
  mesh: jax.sharding.Mesh


def build_mesh(config: ml_collections.ConfigDict) -> jax.sharding.Mesh:
  """The mesh; a UserError for what cannot be split over it."""
  with errors.as_user_error(ValueError):
    mesh = sharding.make_mesh(**config.mesh)
  shape = dict(mesh.shape)
  rows, tensor = shape['data'] * shape['fsdp'], shape['tensor']
  fields = settings.fields(config)
  for path, shards, axes in (
      ('grpo.microbatch_rows', rows, 'data * fsdp'),
      ('rollout.num_slots', rows, 'data * fsdp'),
      ('model.num_heads', tensor, 'tensor'),
      ('model.num_kv_heads', tensor, 'tensor'),
      ('model.mlp_dim', tensor, 'tensor'),
      ('model.d_model', shape['fsdp'], 'fsdp'),
  ):
    if fields[path] % shards:
      raise errors.UserError(
          f'config.{path} is {fields[path]}; the mesh needs a multiple of '
          f'{axes}, {shards}. Change it or config.mesh.'
      )
  return mesh


def build_policy(
    config: ml_collections.ConfigDict,
    tokenizer: tokenizer_lib.Tokenizer | None = None,
) -> Policy:
  """The policy without its parameters.

  Args:
    config: the run's.
    tokenizer: of a small policy that is being made.
  """
  config = pretrained.resolve(config)
  folder = None if tokenizer else pretrained.folder(config)
  if folder:
    model_config = pretrained.model_config(config, folder)
    fmt = pretrained.chat_format(config, folder, model_config.vocab_size)
  else:
    fmt = _compact_format(config, tokenizer or tokenizer_lib.Tokenizer.load())
    fields = config.model.to_dict()
    del fields['init_from']
    vocab_size = fmt.tokenizer.vocab_size
    model_config = model.ModelConfig(vocab_size=vocab_size, **fields)
  mesh = build_mesh(config)
  if model_config.vocab_size % mesh.shape['tensor']:
    raise errors.UserError(
        f'The vocabulary of {model_config.vocab_size} tokens cannot be cut in '
        f'{mesh.shape["tensor"]}; choose a config.mesh.tensor that divides it.'
    )
  return Policy(
      tokenizer=fmt.tokenizer,
      fmt=fmt,
      config=model_config,
      graphdef=model.definition(model_config),
      mesh=mesh,
  )


def _compact_format(
    config: ml_collections.ConfigDict, tokenizer: tokenizer_lib.Tokenizer
) -> chat_format.CompactFormat:
  if config.rollout.thinking:
    raise errors.UserError(
        'config.rollout.thinking is True, but the small policy does not think; '
        'config.model.init_from names no Hugging Face folder.'
    )
  return chat_format.CompactFormat(tokenizer, config.rollout.max_result_tokens)


def build_engines(
    config: ml_collections.ConfigDict, policy: Policy
) -> engines_lib.Engines:
  """The engines of this process, which share config.rollout.num_slots."""
  r = config.rollout
  with errors.as_user_error(ValueError):
    local = sharding.local_mesh(policy.mesh)
  slots = r.num_slots * local.size // policy.mesh.size
  number = num_engines(config, local, slots)
  return engines_lib.Engines(
      functools.partial(
          engine_lib.Engine,
          policy.graphdef,
          policy.mesh,
          policy.config,
          num_slots=slots // number,
          cache_buckets=tuple(r.cache_buckets),
          extend_buckets=tuple(r.extend_buckets),
          extend_rows=r.extend_rows,
          max_new=r.max_message_tokens,
          end_id=policy.fmt.end_ids,
          pad_id=policy.tokenizer.pad_id,
      ),
      number,
  )


def num_engines(
    config: ml_collections.ConfigDict, local: jax.sharding.Mesh, slots: int
) -> int:
  """config.rollout.num_engines, or what pays where it is 0.

  On a CPU two engines, if they can halve the slots, use both of two cores, as
  one does not. An accelerator would read the weights twice.

  Args:
    config: the run's.
    local: the devices of this process.
    slots: of this process.
  """
  wanted = config.rollout.num_engines
  if not wanted:
    cpu = local.devices.flat[0].platform == 'cpu'
    return 2 if cpu and local.size == 1 and slots % 2 == 0 else 1
  if wanted > 1 and local.size > 1:
    raise errors.UserError(
        f'config.rollout.num_engines is {wanted}, but this process has '
        f'{local.size} devices, which work as one engine: set it to 1 or 0.'
    )
  if slots % wanted:
    raise errors.UserError(
        f'config.rollout.num_slots gives this process {slots} slots; it must '
        f'be a multiple of config.rollout.num_engines, {wanted}.'
    )
  return wanted


def build_budgets(config: ml_collections.ConfigDict) -> rollout.Budgets:
  r = config.rollout
  return rollout.Budgets(
      max_message_tokens=r.max_message_tokens,
      limits=env.Limits(
          max_rounds=r.max_rounds,
          call_timeout_s=r.call_timeout_s,
          max_result_chars=r.max_result_chars,
      ),
      refill_below=r.refill_below,
      overlap_tokens=r.overlap_tokens,
  )


def build_environments(
    config: ml_collections.ConfigDict,
) -> env_pool.Environments:
  """Where episodes live; close it."""
  if not config.rollout.env_workers:
    return env_pool.InProcess()
  return env_pool.EnvPool(config.rollout.env_workers)


def language_model(
    config: ml_collections.ConfigDict,
) -> dict[str, Any] | None:
  """The server that synthesis asks; None where it is programmatic."""
  if config.synthesis.language == 'programmatic':
    return None
  return config.synthesis.llm.to_dict()
