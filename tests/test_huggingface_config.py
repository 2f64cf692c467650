"""config.json of published models, and one line for what is not supported."""

import json
import math
import pathlib
import re

import jax
import pytest

from rods_jax import errors
from rods_jax import huggingface_config
from rods_jax.device import model
from rods_jax.device import rope

# The entries that matter of published files, as they are written there.
PUBLISHED = {
    'Qwen2.5-0.5B': {
        'architectures': ['Qwen2ForCausalLM'],
        'attention_dropout': 0.0,
        'hidden_act': 'silu',
        'hidden_size': 896,
        'intermediate_size': 4864,
        'max_window_layers': 24,
        'num_attention_heads': 14,
        'num_hidden_layers': 24,
        'num_key_value_heads': 2,
        'rms_norm_eps': 1e-06,
        'rope_theta': 1000000.0,
        'sliding_window': 32768,
        'tie_word_embeddings': True,
        'torch_dtype': 'bfloat16',
        'use_sliding_window': False,
        'vocab_size': 151936,
    },
    'Qwen3-4B': {
        'architectures': ['Qwen3ForCausalLM'],
        'attention_bias': False,
        'head_dim': 128,
        'hidden_act': 'silu',
        'hidden_size': 2560,
        'intermediate_size': 9728,
        'max_window_layers': 36,
        'num_attention_heads': 32,
        'num_hidden_layers': 36,
        'num_key_value_heads': 8,
        'rms_norm_eps': 1e-06,
        'rope_scaling': None,
        'rope_theta': 1000000,
        'sliding_window': None,
        'tie_word_embeddings': True,
        'torch_dtype': 'bfloat16',
        'use_sliding_window': False,
        'vocab_size': 151936,
    },
    'Llama-3.2-1B': {
        'architectures': ['LlamaForCausalLM'],
        'attention_bias': False,
        'head_dim': 64,
        'hidden_act': 'silu',
        'hidden_size': 2048,
        'intermediate_size': 8192,
        'mlp_bias': False,
        'num_attention_heads': 32,
        'num_hidden_layers': 16,
        'num_key_value_heads': 8,
        'pretraining_tp': 1,
        'rms_norm_eps': 1e-05,
        'rope_scaling': {
            'factor': 32.0,
            'high_freq_factor': 4.0,
            'low_freq_factor': 1.0,
            'original_max_position_embeddings': 8192,
            'rope_type': 'llama3',
        },
        'rope_theta': 500000.0,
        'tie_word_embeddings': True,
        'torch_dtype': 'bfloat16',
        'vocab_size': 128256,
    },
    'SmolLM2-135M': {
        'architectures': ['LlamaForCausalLM'],
        'attention_bias': False,
        'hidden_act': 'silu',
        'hidden_size': 576,
        'intermediate_size': 1536,
        'mlp_bias': False,
        'num_attention_heads': 9,
        'num_hidden_layers': 30,
        'num_key_value_heads': 3,
        'rms_norm_eps': 1e-05,
        'rope_interleaved': False,
        'rope_scaling': None,
        'rope_theta': 100000,
        'tie_word_embeddings': True,
        'torch_dtype': 'bfloat16',
        'vocab_size': 49152,
    },
}


def write(folder: pathlib.Path, raw) -> pathlib.Path:
  (folder / 'config.json').write_text(json.dumps(raw))
  (folder / 'tokenizer.json').write_text('{}')
  return folder


def read(folder, name, **changes) -> model.ModelConfig:
  raw = {k: v for k, v in (PUBLISHED[name] | changes).items() if v != 'absent'}
  return huggingface_config.model_config(write(folder, raw))


def refusal(folder, name, **changes) -> str:
  with pytest.raises(errors.UserError) as error:
    read(folder, name, **changes)
  text = str(error.value)
  assert '\n' not in text and str(folder / 'config.json') in text
  return text


# The counts that the publishers give: each tensor once, a tied head not twice.
@pytest.mark.parametrize(
    'name, count',
    [
        ('Qwen2.5-0.5B', 494_032_768),
        ('Qwen3-4B', 4_022_468_096),
        ('Llama-3.2-1B', 1_235_814_400),
        ('SmolLM2-135M', 134_515_008),
    ],
)
def test_published_models_have_their_number_of_parameters(
    name, count, tmp_path
):
  config = read(tmp_path, name)
  shapes = jax.eval_shape(
      lambda key: model.create(config, key)[1], jax.random.key(0)
  )
  assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == count


def test_each_field_has_its_entry(tmp_path):
  """head_dim 128 is not 2560 / 32 = 80: the entry decides."""
  raw = PUBLISHED['Qwen3-4B']
  got = huggingface_config.model_config(
      write(tmp_path, raw), dtype='bfloat16', remat='full'
  )
  assert got == model.ModelConfig(
      vocab_size=151936, d_model=2560, num_layers=36, num_heads=32,
      num_kv_heads=8, head_dim=128, mlp_dim=9728, rope_theta=1e6,
      rope_scaling=None, rms_eps=1e-6, tie_embeddings=True, qkv_bias=False,
      qk_norm=True, previous_token=False, dtype='bfloat16', remat='full',
  )


def test_families_differ_where_their_code_does(tmp_path):
  got = {name: read(tmp_path, name) for name in PUBLISHED}
  options = {n: (c.qkv_bias, c.qk_norm, c.head_dim) for n, c in got.items()}
  assert options == {
      'Qwen2.5-0.5B': (True, False, 64),
      'Qwen3-4B': (False, True, 128),
      'Llama-3.2-1B': (False, False, 64),
      'SmolLM2-135M': (False, False, 64),
  }
  assert got['Llama-3.2-1B'].rope_scaling == rope.Llama3Scaling(
      32.0, 1.0, 4.0, 8192
  )
  assert read(
      tmp_path, 'Qwen2.5-0.5B', tie_word_embeddings='absent'
  ).tie_embeddings is False


def test_rope_is_read_as_written_before_and_since_transformers_5(tmp_path):
  old = PUBLISHED['Llama-3.2-1B']
  new = {k: v for k, v in old.items() if not k.startswith('rope_')}
  new['rope_parameters'] = old['rope_scaling'] | {
      'rope_theta': old['rope_theta']
  }
  configs = [
      huggingface_config.model_config(write(tmp_path, raw))
      for raw in (old, new)
  ]
  assert configs[0] == configs[1]
  assert configs[0].rope_theta == 500000.0


@pytest.mark.parametrize(
    'changes, words',
    [
        ({'architectures': ['MistralForCausalLM']}, ('MistralForCausalLM',)),
        ({'architectures': 'absent'}, ('architectures is None', 'Qwen3ForC')),
        ({'hidden_act': 'gelu'}, ("hidden_act is 'gelu'", 'silu')),
        ({'attention_bias': True}, ('attention_bias is True', 'False')),
        ({'mlp_bias': True}, ('mlp_bias is True',)),
        ({'quantization_config': {'bits': 4}}, ('quantization_config',)),
        ({'partial_rotary_factor': 0.5}, ('partial_rotary_factor is 0.5',)),
        ({'hidden_size': 'absent'}, ('hidden_size is None',)),
        ({'num_hidden_layers': 2.5}, ('num_hidden_layers is 2.5',)),
        ({'num_key_value_heads': 5}, ('multiple of',)),
        ({'rms_norm_eps': '1e-6'}, ("rms_norm_eps is '1e-6'",)),
        ({'rope_theta': -1}, ('rope_theta is -1',)),
        ({'tie_word_embeddings': 1}, ('tie_word_embeddings is 1',)),
        ({'head_dim': 'absent', 'num_attention_heads': 24},
         ('hidden_size 2048', 'num_attention_heads, 24')),
    ],
)
def test_what_is_not_supported_is_named(changes, words, tmp_path):
  text = refusal(tmp_path, 'Llama-3.2-1B', **changes)
  for word in words:
    assert word in text, text


def test_qwen3_must_give_its_head_dim(tmp_path):
  """Its code takes 128 where none is given, not the shared width."""
  assert 'head_dim is None' in refusal(tmp_path, 'Qwen3-4B', head_dim='absent')


@pytest.mark.parametrize(
    'scaling, words',
    [
        ({'rope_type': 'yarn', 'factor': 4.0}, "rope_type is 'yarn'"),
        ({'type': 'linear', 'factor': 2.0}, "rope_type is 'linear'"),
        ({'rope_type': 'llama3', 'factor': 8.0}, 'low_freq_factor is None'),
        ({'partial_rotary_factor': 0.5}, 'partial_rotary_factor is 0.5'),
        ({'full_attention': {'rope_theta': 1e4}}, 'rope_parameters is'),
        (['yarn'], 'values'),
    ],
)
def test_other_rotary_positions_are_named(scaling, words, tmp_path):
  text = refusal(tmp_path, 'Qwen3-4B', rope_scaling=scaling)
  assert words in text
  text = refusal(
      tmp_path, 'Qwen3-4B', rope_scaling='absent', rope_parameters=scaling
  )
  assert words in text


@pytest.mark.parametrize(
    'changes, in_use',
    [
        ({'use_sliding_window': True}, False),  # from layer 36 of 36 on
        ({'use_sliding_window': True, 'max_window_layers': 30}, False),
        ({'use_sliding_window': True, 'sliding_window': 4096}, False),
        (
            {'use_sliding_window': True, 'sliding_window': 4096,
             'max_window_layers': 30},
            True,
        ),
        ({'sliding_window': 4096, 'max_window_layers': 30}, False),
        ({'layer_types': ['full_attention'] * 36}, False),
        (
            {'layer_types': ['full_attention'] * 35 + ['sliding_attention']},
            True,
        ),
    ],
)
def test_only_a_sliding_window_in_use_is_refused(changes, in_use, tmp_path):
  """Qwen folders name a window, and an option that switches it off."""
  if in_use:
    assert re.search(
        'use_sliding_window|layer_types',
        refusal(tmp_path, 'Qwen3-4B', **changes),
    )
  else:
    read(tmp_path, 'Qwen3-4B', **changes)


def test_folders_that_are_none(tmp_path):
  def text(folder):
    with pytest.raises(errors.UserError) as error:
      huggingface_config.model_config(folder)
    assert '\n' not in str(error.value) and str(folder) in str(error.value)
    return str(error.value)

  assert 'is no folder' in text(tmp_path / 'nowhere')
  assert 'has no config.json' in text(tmp_path)
  write(tmp_path, PUBLISHED['Qwen3-4B'])
  (tmp_path / 'tokenizer.json').unlink()
  assert 'has no tokenizer.json' in text(tmp_path)
  for content in ('', '{"a": ', '[1]', '\ufffd'):
    (tmp_path / 'config.json').write_text(content)
    assert 'copy it again' in text(tmp_path)
