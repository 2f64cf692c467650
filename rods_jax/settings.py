"""Checks a resolved configuration before anything is built from it.

ml_collections already refuses unknown fields and wrong types; here stand the
ranges and the combinations. Each message names the field and what it may be.
"""

from collections.abc import Callable
import math
import re
from typing import Any

import ml_collections

from rods_jax import types
from rods_jax.errors import UserError

Rule = tuple[str, Callable[[Any], bool]]

_POSITIVE = ('a number above 0', lambda v: 0 < v < math.inf)
_COUNT = ('a whole number of at least 1', lambda v: v >= 1)
_SEED = ('a whole number from 0 to 2**32 - 1', lambda v: 0 <= v < 2**32)
_NOT_NEGATIVE = ('a number of at least 0', lambda v: 0 <= v < math.inf)
_SHARE = ('a number from 0 to 1', lambda v: 0 <= v <= 1)
_INSIDE = ('a number above 0 and below 1', lambda v: 0 < v < 1)
_AXIS = (
    'a whole number of at least 1, or -1 for what is left',
    lambda v: v >= 1 or v == -1,
)
_NAME = ('a name or path', bool)
_SWITCH = ('True or False', lambda v: isinstance(v, bool))
_LORA_TARGETS = ('q', 'k', 'v', 'o', 'gate', 'up', 'down')
_INCREASING = (
    'increasing whole numbers above 0',
    lambda v: len(v) > 0
    and all(type(n) is int for n in v)
    and v[0] > 0
    and list(v) == sorted(set(v)),
)


def _one_of(*names: str) -> Rule:
  return 'one of ' + ', '.join(map(repr, names)), lambda v: v in names


_RULES: dict[str, Rule] = {
    'rng_seed': _SEED,
    'data.categories': (
        f'some of {", ".join(types.CATEGORIES)}, each once',
        lambda v: v
        and set(v) <= set(types.CATEGORIES)
        and len(set(v)) == len(v),
    ),
    'data.split': _one_of('scenario', 'random'),
    'data.num_train_scenarios': (
        'a whole number from 1 to 199',
        lambda v: 1 <= v <= 199,
    ),
    'data.num_seed_tasks': _NOT_NEGATIVE,
    'data.max_task_tokens': _COUNT,
    'data.max_message_tokens': _COUNT,
    'data.split_seed': _SEED,
    'model.d_model': _COUNT,
    'model.num_layers': _COUNT,
    'model.num_heads': _COUNT,
    'model.num_kv_heads': _COUNT,
    'model.head_dim': (
        'an even whole number of at least 2',
        lambda v: v >= 2 and v % 2 == 0,
    ),
    'model.mlp_dim': _COUNT,
    'model.rope_theta': _POSITIVE,
    'model.rms_eps': _POSITIVE,
    'model.tie_embeddings': _SWITCH,
    'model.qkv_bias': _SWITCH,
    'model.qk_norm': _SWITCH,
    'model.previous_token': _SWITCH,
    'model.dtype': _one_of('float32', 'bfloat16'),
    'model.remat': _one_of('none', 'dots', 'attention', 'full'),
    'model.scan_layers': _SWITCH,
    'model.lora_rank': _NOT_NEGATIVE,
    'model.lora_alpha': _POSITIVE,
    'model.lora_targets': (
        f'some of {", ".join(_LORA_TARGETS)}, each once',
        lambda v: v
        and set(v) <= set(_LORA_TARGETS)
        and len(set(v)) == len(v),
    ),
    'model.init_from': _NAME,
    'mesh.data': _AXIS,
    'mesh.fsdp': _AXIS,
    'mesh.tensor': _AXIS,
    'rollout.group_size': (
        'at least 2: one trajectory has no baseline',
        lambda v: v >= 2,
    ),
    'rollout.groups_per_batch': _COUNT,
    'rollout.temperature': _POSITIVE,
    'rollout.top_k': _NOT_NEGATIVE,
    'rollout.top_p': ('above 0 and at most 1', lambda v: 0 < v <= 1),
    'rollout.num_slots': _COUNT,
    'rollout.num_engines': _NOT_NEGATIVE,
    'rollout.cache_buckets': _INCREASING,
    'rollout.extend_buckets': _INCREASING,
    'rollout.extend_rows': _COUNT,
    'rollout.refill_below': ('from 0 to below 1', lambda v: 0 <= v < 1),
    'rollout.overlap_tokens': _NOT_NEGATIVE,
    'rollout.max_message_tokens': _COUNT,
    'rollout.thinking': _SWITCH,
    'rollout.max_rounds': _COUNT,
    'rollout.max_result_tokens': _COUNT,
    'rollout.call_timeout_s': _POSITIVE,
    'rollout.max_result_chars': _COUNT,
    'rollout.env_workers': _NOT_NEGATIVE,
    'grpo.learning_rate': _POSITIVE,
    'grpo.warmup_steps': _NOT_NEGATIVE,
    'grpo.minibatch_groups': _COUNT,
    'grpo.clip_low': _INSIDE,
    'grpo.clip_high': _POSITIVE,
    'grpo.dual_clip': (
        'a number above 1, or 0 for none',
        lambda v: v == 0 or 1 < v < math.inf,
    ),
    'grpo.kl_coef': _NOT_NEGATIVE,
    'grpo.entropy_coef': _NOT_NEGATIVE,
    'grpo.aggregation': _one_of('token_mean', 'sequence_mean'),
    'grpo.normalize_advantage': _SWITCH,
    'grpo.skip_flat_groups': _SWITCH,
    'grpo.mask_overlong': _SWITCH,
    'grpo.grad_clip': _POSITIVE,
    'grpo.weight_decay': _NOT_NEGATIVE,
    'grpo.microbatch_rows': _COUNT,
    'grpo.length_buckets': _INCREASING,
    'grpo.logprob_chunk': (
        'a whole number of at least 0',
        lambda v: v >= 0,
    ),
    'grpo.max_nonfinite': _COUNT,
    'boundary.hard_below': _INSIDE,
    'boundary.mastered_above': _INSIDE,
    'pool.max_generated': _NOT_NEGATIVE,
    'pool.inject_fraction': _SHARE,
    'pool.retire_above': _SHARE,
    'pool.retire_below': _SHARE,
    'pool.retire_human': _SWITCH,
    'pool.cooldown_epochs': _NOT_NEGATIVE,
    'synthesis.enabled': _SWITCH,
    'synthesis.attempts': _COUNT,
    'synthesis.timeout_s': _POSITIVE,
    'synthesis.max_profile_distance': _SHARE,
    'synthesis.planner': _one_of('exchange', 'compose'),
    'synthesis.max_class_distance': _SHARE,
    'synthesis.min_cross_turn': _SHARE,
    'synthesis.min_novelty': _SHARE,
    'synthesis.language': _one_of('programmatic', 'openai'),
    'synthesis.llm.base_url': (
        'an address such as http://localhost:8000/v1, without a password',
        lambda v: re.fullmatch(r'https?://[^\s@?#]+', v),
    ),
    'synthesis.llm.model': _NAME,
    'synthesis.llm.temperature': _NOT_NEGATIVE,
    'synthesis.llm.top_p': (
        'a number above 0, at most 1', lambda v: 0 < v <= 1
    ),
    'synthesis.llm.max_tokens': _COUNT,
    'synthesis.llm.json_mode': _SWITCH,
    'synthesis.llm.concurrency': _COUNT,
    'synthesis.llm.timeout_s': _POSITIVE,
    'synthesis.llm.max_retries': _NOT_NEGATIVE,
    'synthesis.llm.backoff_s': _NOT_NEGATIVE,
    'synthesis.llm.prompt_price': _NOT_NEGATIVE,
    'synthesis.llm.completion_price': _NOT_NEGATIVE,
    'synthesis.llm.cache': (
        "a folder, or '' for none", lambda v: isinstance(v, str)
    ),
    'train.num_epochs': _COUNT,
    'train.checkpoint_every_epochs': _COUNT,
    'train.keep_checkpoints': _COUNT,
    'eval.num_variants': _NOT_NEGATIVE,
    'eval.num_heldout': _NOT_NEGATIVE,
    'eval.before': _SWITCH,
    'eval.temperature': _NOT_NEGATIVE,
}

# Of configs that have this section only.
_WARM_START_RULES: dict[str, Rule] = {
    'warm_start.vocab_size': _COUNT,
    'warm_start.num_steps': _COUNT,
    'warm_start.rows_per_step': _COUNT,
    'warm_start.learning_rate': _POSITIVE,
    'warm_start.warmup_steps': _NOT_NEGATIVE,
    'warm_start.microbatch_rows': _COUNT,
    'warm_start.tokenizer_variants': _COUNT,
    'warm_start.second_share': _SHARE,
    'warm_start.rename_share': _SHARE,
    'warm_start.early_stop_share': _SHARE,
    'warm_start.log_every': _COUNT,
    'warm_start.output': _NAME,
}


def fields(config: ml_collections.ConfigDict, prefix: str = '') -> dict:
  """Dotted path -> value of every field, sections opened."""
  found = {}
  for name, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      found |= fields(value, f'{prefix}{name}.')
    else:
      found[prefix + name] = value
  return found


def validate(config: ml_collections.ConfigDict) -> None:
  """Raises UserError for the first field that is no good: see _RULES."""
  rules = dict(_RULES)
  if 'warm_start' in config:
    rules |= _WARM_START_RULES
  values = fields(config)
  for path in sorted(rules.keys() ^ values.keys()):
    what = 'lacks' if path in rules else 'has an unknown'
    raise UserError(f'The config {what} field {path}; see configs/rods.py.')
  for path, (wanted, holds) in rules.items():
    value = values[path]
    try:
      valid = holds(value)
    except TypeError:  # such as a text among numbers
      valid = False
    if not valid:
      raise UserError(f'config.{path} is {value!r}; it must be {wanted}.')
  _check_combinations(config)


def check_training(config: ml_collections.ConfigDict) -> None:
  """Raises UserError for what only an evaluation may do.

  The ratio compares the sampler's log-probabilities with those of parameters
  that have moved on. Of a cut distribution they are comparable only over the
  tokens that the sampler had kept, which differ at each place of each row.
  """
  r = config.rollout
  for name, whole in (('top_k', 0), ('top_p', 1.0)):
    if r[name] != whole:
      raise UserError(
          f'config.rollout.{name} is {r[name]}; training samples from the whole '
          f'distribution, or its ratios are wrong: set it to {whole}. It is '
          'for --mode=evaluate.'
      )


def _check_combinations(config: ml_collections.ConfigDict) -> None:
  boundary, pool, rollout = config.boundary, config.pool, config.rollout
  if not boundary.hard_below < boundary.mastered_above:
    raise UserError(
        f'config.boundary.hard_below is {boundary.hard_below} and '
        f'mastered_above is {boundary.mastered_above}; the first must be '
        'below the second.'
    )
  if not pool.retire_below < pool.retire_above:
    raise UserError(
        f'config.pool.retire_below is {pool.retire_below} and retire_above '
        f'is {pool.retire_above}; the first must be below the second.'
    )
  if not config.eval.temperature and (rollout.top_k or rollout.top_p < 1):
    raise UserError(
        f'config.rollout.top_k is {rollout.top_k} and top_p is '
        f'{rollout.top_p}, but config.eval.temperature is 0: greedy. Set it '
        'above 0, or top_k to 0 and top_p to 1.'
    )
  synthesis = config.synthesis
  if synthesis.language == 'openai' and synthesis.planner != 'compose':
    raise UserError(
        "config.synthesis.language is 'openai', so config.synthesis.planner "
        f"must be 'compose', not {synthesis.planner!r}."
    )
  if 'warm_start' in config and config.model.lora_rank:
    raise UserError(
        f'config.model.lora_rank is {config.model.lora_rank}; a warm start '
        'trains all parameters, so it must be 0.'
    )
  if config.model.num_heads % config.model.num_kv_heads:
    raise UserError(
        f'config.model.num_heads is {config.model.num_heads}; it must be a '
        f'multiple of num_kv_heads, {config.model.num_kv_heads}.'
    )
  if rollout.groups_per_batch % config.grpo.minibatch_groups:
    raise UserError(
        f'config.rollout.groups_per_batch is {rollout.groups_per_batch}; it '
        'must be a multiple of config.grpo.minibatch_groups, '
        f'{config.grpo.minibatch_groups}.'
    )
  if config.grpo.length_buckets[-1] != rollout.cache_buckets[-1]:
    raise UserError(
        'The last of config.grpo.length_buckets must be the last of '
        'config.rollout.cache_buckets, the longest trajectory: '
        f'{rollout.cache_buckets[-1]}, not {config.grpo.length_buckets[-1]}.'
    )
  if config.data.max_task_tokens > rollout.cache_buckets[-1]:
    raise UserError(
        f'config.data.max_task_tokens is {config.data.max_task_tokens}; it '
        'must not be above the last of config.rollout.cache_buckets, '
        f'{rollout.cache_buckets[-1]}.'
    )
  if rollout.max_message_tokens >= rollout.cache_buckets[-1]:
    raise UserError(
        f'config.rollout.max_message_tokens is {rollout.max_message_tokens}; '
        'it must be below the last of config.rollout.cache_buckets, '
        f'{rollout.cache_buckets[-1]}.'
    )
