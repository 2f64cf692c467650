"""The shape of the decoder from a Hugging Face folder's config.json.

What the decoder does not do must not be lost on the way: an option that would
change the logits and is not known here is an error that names it.
"""

from collections.abc import Mapping
import json
import pathlib
import reprlib
from typing import Any

from rods_jax.device import model
from rods_jax.device import rope
from rods_jax.errors import UserError

# Architecture -> what its code does without an entry in config.json.
FAMILIES: dict[str, dict[str, bool]] = {
    'LlamaForCausalLM': {'qkv_bias': False, 'qk_norm': False},
    'Qwen2ForCausalLM': {'qkv_bias': True, 'qk_norm': False},
    'Qwen3ForCausalLM': {'qkv_bias': False, 'qk_norm': True},
}

# Entries that have to be this, or null, or absent.
_FIXED: dict[str, Any] = {
    'hidden_act': 'silu',
    'attention_bias': False,  # would also be on the output projection
    'mlp_bias': False,
    'rope_interleaved': False,
    'partial_rotary_factor': 1.0,
    'quantization_config': None,
}

_COUNTS = {
    'vocab_size': 'vocab_size',
    'd_model': 'hidden_size',
    'num_layers': 'num_hidden_layers',
    'num_heads': 'num_attention_heads',
    'mlp_dim': 'intermediate_size',
}

_DEFAULT_THETA = 10_000.0  # of transformers, in all families


def read(folder: pathlib.Path) -> dict[str, Any]:
  """The entries of config.json.

  Raises:
    UserError: there is no such folder, or its config.json is missing or
      damaged.
  """
  file = folder / 'config.json'
  if not folder.is_dir():
    raise UserError(f'{folder} is no folder; give one with a model in it.')
  if not file.is_file():
    raise UserError(
        f'{folder} has no config.json; give a Hugging Face folder with '
        'config.json, tokenizer.json and *.safetensors.'
    )
  try:
    raw = json.loads(file.read_text(encoding='utf-8'))
  except (OSError, ValueError) as error:
    raise UserError(f'Cannot read {file}: {error}; copy it again.') from error
  if not isinstance(raw, dict):
    raise UserError(f'{file} holds no JSON object; copy it again.')
  return raw


def model_config(
    folder: pathlib.Path,
    dtype: str = 'float32',
    remat: str = 'none',
    scan_layers: bool = False,
) -> model.ModelConfig:
  """The shape of the decoder in a Hugging Face folder.

  Args:
    folder: with config.json and tokenizer.json.
    dtype: of activations; whatever the folder's tensors have.
    remat: as in ModelConfig.
    scan_layers: as in ModelConfig.

  Raises:
    UserError: a file is missing or damaged, or the architecture or one of its
      options is not supported; names it.
  """
  raw = read(folder)
  if not (folder / 'tokenizer.json').is_file():
    raise UserError(
        f'{folder} has no tokenizer.json; copy the tokenizer of the model '
        'there.'
    )
  try:
    return model.ModelConfig(
        **_shape(raw), **_rope(raw), dtype=dtype, remat=remat,
        scan_layers=scan_layers,
    )
  except (AttributeError, TypeError, ValueError) as error:
    raise UserError(f'{folder / "config.json"}: {error}') from error


def _shape(raw: Mapping[str, Any]) -> dict[str, Any]:
  """Fields of ModelConfig apart from those of the rotary positions."""
  family = FAMILIES[_architecture(raw)]
  for name, wanted in _FIXED.items():
    if raw.get(name) not in (None, wanted):
      raise _unsupported(name, raw[name], wanted)
  _check_windows(raw)
  counts = {ours: _count(raw, theirs) for ours, theirs in _COUNTS.items()}
  heads = counts['num_heads']
  return {
      **counts,
      **family,
      'num_kv_heads': _count(raw, 'num_key_value_heads', heads),
      'head_dim': _head_dim(raw, counts),
      'rms_eps': _number(raw, 'rms_norm_eps'),
      'tie_embeddings': _switch(raw, 'tie_word_embeddings'),
  }


def _architecture(raw: Mapping[str, Any]) -> str:
  names = raw.get('architectures')
  if isinstance(names, list) and len(names) == 1 and names[0] in FAMILIES:
    return names[0]
  raise _unsupported('architectures', names, ' or '.join(FAMILIES))


def _head_dim(raw: Mapping[str, Any], counts: Mapping[str, int]) -> int:
  """Written out, or the width shared among the heads."""
  if raw.get('head_dim') is not None or _architecture(raw).startswith('Qwen3'):
    return _count(raw, 'head_dim')  # Qwen3 would not share the width
  width, heads = counts['d_model'], counts['num_heads']
  if width % heads:
    raise ValueError(
        f'hidden_size {width} is no multiple of num_attention_heads, {heads}.'
    )
  return width // heads


def _check_windows(raw: Mapping[str, Any]) -> None:
  """Refuses attention that sees a part of the context only."""
  kinds = raw.get('layer_types')
  if kinds is not None:
    if not kinds or any(kind != 'full_attention' for kind in kinds):
      raise _unsupported('layer_types', kinds, 'full_attention throughout')
  elif raw.get('use_sliding_window') and raw.get('sliding_window', True):
    first = raw.get('max_window_layers')  # layers from it on have the window
    if type(first) is not int or first < _count(raw, 'num_hidden_layers'):
      raise _unsupported('use_sliding_window', True, False)


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
  """rope_theta and rope_scaling, as written before or since transformers 5."""
  entries = raw.get('rope_scaling') or raw.get('rope_parameters') or {}
  if any(isinstance(value, dict) for value in entries.values()):
    raise _unsupported('rope_parameters', entries, 'the same for all layers')
  kind = entries.get('rope_type', entries.get('type', 'default'))
  if kind not in ('default', 'llama3'):
    raise _unsupported('rope_type', kind, 'default or llama3')
  share = entries.get('partial_rotary_factor')
  if share not in (None, 1.0):
    raise _unsupported('partial_rotary_factor', share, 1.0)
  theta = {'rope_theta': raw.get('rope_theta', _DEFAULT_THETA)} | entries
  fields = {'rope_theta': _number(theta, 'rope_theta')}
  if kind == 'default':
    return fields
  scaling = rope.Llama3Scaling(
      factor=_number(entries, 'factor'),
      low_freq_factor=_number(entries, 'low_freq_factor'),
      high_freq_factor=_number(entries, 'high_freq_factor'),
      original_positions=_count(entries, 'original_max_position_embeddings'),
  )
  return fields | {'rope_scaling': scaling}


def _unsupported(name: str, value: Any, wanted: Any) -> ValueError:
  shown = reprlib.repr(value)
  return ValueError(
      f'{name} is {shown}, which is not supported; it must be {wanted}.'
  )


def _count(
    raw: Mapping[str, Any], name: str, default: int | None = None
) -> int:
  value = raw.get(name, default)
  value = default if value is None else value
  if type(value) is not int or value < 1:
    raise ValueError(
        f'{name} is {value!r}; it must be a whole number of at least 1.'
    )
  return value


def _number(raw: Mapping[str, Any], name: str) -> float:
  value = raw.get(name)
  if type(value) not in (int, float) or not value > 0:
    raise ValueError(f'{name} is {value!r}; it must be a number above 0.')
  return float(value)


def _switch(raw: Mapping[str, Any], name: str) -> bool:
  value = raw.get(name, False)
  if type(value) is not bool:
    raise ValueError(f'{name} is {value!r}; it must be true or false.')
  return value
