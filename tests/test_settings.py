"""Configuration checks: a rule for each field, a clear line for each fault."""

import ml_collections
import pytest

from configs import rods
from configs import warm_start
from rods_jax import errors
from rods_jax import settings


def changed(path, value, config=None):
  config = rods.get_config() if config is None else config
  section, _, name = path.rpartition('.')
  with config.unlocked(), config.ignore_type():
    (config[section] if section else config)[name] = value
  return config


def refusal(config):
  with pytest.raises(errors.UserError) as caught:
    settings.validate(config)
  message = str(caught.value)
  assert '\n' not in message and len(message) < 250
  return message


@pytest.mark.parametrize('variant', sorted(rods.VARIANTS))
def test_shipped_configs_are_valid(variant):
  settings.validate(rods.get_config(variant))


def test_warm_start_is_valid():
  settings.validate(warm_start.get_config())


# One value that is out of range for each field that has a range.
BAD = {
    'rng_seed': -1,
    'data.categories': ('base', 'base'),
    'data.split': 'chance',
    'data.num_train_scenarios': 200,
    'data.num_seed_tasks': -1,
    'data.max_task_tokens': 0,
    'data.max_message_tokens': 0,
    'data.split_seed': -1,
    'model.d_model': 0,
    'model.num_layers': 0,
    'model.num_heads': 0,
    'model.num_kv_heads': 0,
    'model.head_dim': 3,
    'model.mlp_dim': 0,
    'model.rope_theta': 0.0,
    'model.rms_eps': 0.0,
    'model.dtype': 'float16',
    'model.remat': 'some',
    'model.lora_rank': -1,
    'model.lora_alpha': 0.0,
    'model.lora_targets': ('q', 'head'),
    'model.init_from': '',
    'mesh.data': 0,
    'mesh.fsdp': -2,
    'mesh.tensor': 0,
    'rollout.group_size': 1,
    'rollout.groups_per_batch': 0,
    'rollout.temperature': 0.0,
    'rollout.top_k': -1,
    'rollout.top_p': 0.0,
    'rollout.num_slots': 0,
    'rollout.num_engines': -1,
    'rollout.cache_buckets': (256, 128, 1024),
    'rollout.extend_buckets': (),
    'rollout.extend_rows': 0,
    'rollout.refill_below': 1.0,
    'rollout.overlap_tokens': -1,
    'rollout.max_message_tokens': 0,
    'rollout.thinking': 1,
    'rollout.max_rounds': 0,
    'rollout.max_result_tokens': 0,
    'rollout.call_timeout_s': 0.0,
    'rollout.max_result_chars': 0,
    'rollout.env_workers': -1,
    'grpo.learning_rate': -1e-4,
    'grpo.warmup_steps': -1,
    'grpo.minibatch_groups': 0,
    'grpo.clip_low': 1.0,
    'grpo.clip_high': 0.0,
    'grpo.dual_clip': 1.0,
    'grpo.kl_coef': -0.1,
    'grpo.entropy_coef': -0.1,
    'grpo.aggregation': 'mean',
    'grpo.grad_clip': 0.0,
    'grpo.weight_decay': -0.1,
    'grpo.microbatch_rows': 0,
    'grpo.length_buckets': (1024, 1024),
    'grpo.logprob_chunk': -1,
    'grpo.max_nonfinite': 0,
    'boundary.hard_below': 0.0,
    'boundary.mastered_above': 1.0,
    'pool.max_generated': -1,
    'pool.inject_fraction': 1.5,
    'pool.retire_above': 1.1,
    'pool.retire_below': -0.1,
    'pool.cooldown_epochs': -1,
    'synthesis.attempts': 0,
    'synthesis.timeout_s': 0.0,
    'synthesis.max_profile_distance': 1.5,
    'synthesis.planner': 'llm',
    'synthesis.max_class_distance': -0.1,
    'synthesis.min_cross_turn': 1.5,
    'synthesis.min_novelty': float('inf'),
    'synthesis.language': 'latin',
    'synthesis.llm.base_url': 'http://me:secret@localhost/v1',
    'synthesis.llm.model': '',
    'synthesis.llm.temperature': -0.1,
    'synthesis.llm.top_p': 0.0,
    'synthesis.llm.max_tokens': 0,
    'synthesis.llm.json_mode': 1,
    'synthesis.llm.concurrency': 0,
    'synthesis.llm.timeout_s': 0.0,
    'synthesis.llm.max_retries': -1,
    'synthesis.llm.backoff_s': -1.0,
    'synthesis.llm.prompt_price': -1.0,
    'synthesis.llm.completion_price': -1.0,
    'synthesis.llm.cache': None,
    'train.num_epochs': 0,
    'train.checkpoint_every_epochs': 0,
    'train.keep_checkpoints': 0,
    'eval.num_variants': -1,
    'eval.num_heldout': -1,
    'eval.temperature': -0.1,
    'warm_start.vocab_size': 0,
    'warm_start.second_share': -0.5,
    'warm_start.rename_share': 1.5,
    'warm_start.early_stop_share': 1.01,
    'warm_start.num_steps': 0,
    'warm_start.rows_per_step': 0,
    'warm_start.learning_rate': 0.0,
    'warm_start.warmup_steps': -1,
    'warm_start.microbatch_rows': 0,
    'warm_start.tokenizer_variants': 0,
    'warm_start.log_every': 0,
    'warm_start.output': '',
}


@pytest.mark.parametrize('path', sorted(BAD))
def test_value_out_of_range_is_named(path):
  config = changed(path, BAD[path], warm_start.get_config())
  message = refusal(config)
  assert message.startswith(f'config.{path} is {BAD[path]!r}; it must be ')


def test_every_field_has_a_range_or_is_a_switch():
  """A new field without a rule would never be checked: add it to both."""
  values = settings.fields(warm_start.get_config())
  assert len(values) > 70
  without = {path for path in values if path not in BAD}
  assert {path for path in without if type(values[path]) is not bool} == set()
  assert BAD.keys() <= values.keys()


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
@pytest.mark.parametrize('path', ['grpo.learning_rate', 'grpo.kl_coef'])
def test_not_a_number_is_out_of_range(path, value):
  assert refusal(changed(path, value)).startswith(f'config.{path} is ')


@pytest.mark.parametrize(
    'value', [('a', 'b'), (1.5, 2), (True, 1024), (128, None), (0, 1024)]
)
def test_other_things_among_lengths(value):
  """A text among the numbers once ended in a traceback."""
  message = refusal(changed('rollout.cache_buckets', value))
  assert message == (
      f'config.rollout.cache_buckets is {value!r}; it must be increasing '
      'whole numbers above 0.'
  )


@pytest.mark.parametrize('value', [(), (3,), ('easy',)])
def test_other_things_among_categories(value):
  assert 'each once' in refusal(changed('data.categories', value))


def test_unknown_and_missing_fields():
  config = changed('grpo.learning_rat', 1.0)
  assert refusal(config) == (
      'The config has an unknown field grpo.learning_rat; see configs/rods.py.'
  )
  config = rods.get_config()
  with config.unlocked():
    del config.pool['cooldown_epochs']
  assert refusal(config) == (
      'The config lacks field pool.cooldown_epochs; see configs/rods.py.'
  )


# Combinations: each field alone is in its range.


@pytest.mark.parametrize(
    'changes, words',
    [
        (
            {'boundary.hard_below': 0.9},  # mastered_above is 0.85
            ('boundary.hard_below is 0.9', 'mastered_above is 0.85'),
        ),
        ({'boundary.hard_below': 0.85}, ('must be below',)),
        (
            {'pool.retire_below': 0.95},  # retire_above is 0.95
            ('pool.retire_below is 0.95', 'retire_above is 0.95'),
        ),
        ({'model.num_heads': 3, 'model.num_kv_heads': 2}, ('a multiple of',)),
        (
            {'rollout.groups_per_batch': 8, 'grpo.minibatch_groups': 3},
            ('groups_per_batch is 8', 'multiple', 'minibatch_groups, 3'),
        ),
        (
            {'synthesis.language': 'openai', 'synthesis.planner': 'exchange'},
            ("language is 'openai'", "must be 'compose', not 'exchange'"),
        ),
        ({'grpo.length_buckets': (128, 512)}, ('longest trajectory', '512')),
        (
            {'rollout.top_k': 5},  # eval.temperature is 0
            ('rollout.top_k is 5', 'eval.temperature is 0: greedy'),
        ),
        ({'rollout.top_p': 0.5}, ('top_p is 0.5', 'above 0')),
        (
            {'rollout.max_message_tokens': 1024},
            ('max_message_tokens is 1024', 'below'),
        ),
    ],
)
def test_fields_that_disagree(changes, words):
  config = rods.get_config()
  for path, value in changes.items():
    changed(path, value, config)
  message = refusal(config)
  for word in words:
    assert word in message, message


@pytest.mark.parametrize('path, value', [('top_k', 5), ('top_p', 0.9)])
def test_a_cut_distribution_is_for_evaluation_alone(path, value):
  """Its ratios would compare distributions over different tokens."""
  config = changed('eval.temperature', 0.6)
  settings.check_training(config)
  settings.validate(changed(f'rollout.{path}', value, config))
  with pytest.raises(errors.UserError) as caught:
    settings.check_training(config)
  message = str(caught.value)
  assert message.startswith(f'config.rollout.{path} is {value}; training ')
  assert '\n' not in message and len(message) < 250


def test_fields_opens_all_sections():
  config = ml_collections.ConfigDict({'a': 1, 'b': {'c': (2,), 'd': {'e': 3}}})
  assert settings.fields(config) == {'a': 1, 'b.c': (2,), 'b.d.e': 3}
