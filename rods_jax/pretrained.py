"""A run that starts from a Hugging Face folder, config.model.init_from.

The folder decides the shape of the decoder, the tokenizer and the chat format;
the config still decides how the decoder is computed (dtype, remat). `resolve`
writes the folder's shape into the config before anything reads it, so that the
mesh is checked against it and the run's config.json holds it.
"""

from collections.abc import Iterable
import dataclasses
import json
import pathlib

import ml_collections

from rods_jax import errors
from rods_jax import huggingface_config
from rods_jax.host import format_check
from rods_jax.host import native_formats

# Fields of config.model that the folder decides.
SHAPE = (
    'd_model', 'num_layers', 'num_heads', 'num_kv_heads', 'head_dim', 'mlp_dim',
    'rope_theta', 'rms_eps', 'tie_embeddings', 'qkv_bias', 'qk_norm',
    'previous_token',
)
_FILES = ('tokenizer.json', 'model.safetensors', 'model.safetensors.index.json')


def folder(config: ml_collections.ConfigDict) -> pathlib.Path | None:
  """The Hugging Face folder that the run starts from, or None."""
  source = config.model.init_from
  return pathlib.Path(source) if is_huggingface(source) else None


def is_huggingface(source: str) -> bool:
  """Whether a value of config.model.init_from is a Hugging Face folder.

  A run's folder has a config.json too, but one without architectures.
  """
  if source in ('embedded', 'random') or source.endswith('.safetensors'):
    return False
  path = pathlib.Path(source)
  if any((path / name).is_file() for name in _FILES):
    return True
  try:
    raw = json.loads((path / 'config.json').read_text(encoding='utf-8'))
  except (OSError, ValueError):
    return False
  return isinstance(raw, dict) and 'architectures' in raw


def check_given(
    config: ml_collections.ConfigDict, given: Iterable[str]
) -> None:
  """Refuses a shape, given by hand, that the folder does not have.

  Args:
    config: the run's.
    given: paths of the fields that the command line sets.

  Raises:
    UserError: names the field, and what the folder says.
  """
  path = folder(config)
  if path is None:
    return
  shape = huggingface_config.model_config(path)
  for name in SHAPE:
    value, found = config.model[name], getattr(shape, name)
    if f'model.{name}' in given and value != found:
      raise errors.UserError(
          f'config.model.{name} is {value!r}, but {path} decides it: '
          f'{found!r}. Leave it out.'
      )


def resolve(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """The config with the shape of the folder, if the run starts from one.

  Raises:
    UserError: the folder's config.json is missing, damaged or unsupported.
  """
  path = folder(config)
  if path is None:
    return config
  shape = huggingface_config.model_config(path)
  resolved = config.copy_and_resolve_references()
  with resolved.unlocked():
    resolved.model.update({name: getattr(shape, name) for name in SHAPE})
  return resolved


def model_config(config: ml_collections.ConfigDict, path: pathlib.Path):
  """ModelConfig of the folder, computed as the config says."""
  fields = config.model.to_dict()
  for name in ('init_from', *SHAPE):
    del fields[name]
  with errors.as_user_error(ValueError):
    return dataclasses.replace(huggingface_config.model_config(path), **fields)


def chat_format(
    config: ml_collections.ConfigDict, path: pathlib.Path, vocab_size: int
) -> native_formats.NativeFormat:
  """The folder's chat format, compared with its template.

  Args:
    config: the run's.
    path: the folder.
    vocab_size: rows of the decoder's embedding.

  Raises:
    UserError: a file is missing or damaged, the family is unknown, its
      template is another, or the tokenizer has more tokens than the decoder.
  """
  rollout = config.rollout
  fmt = native_formats.load(path, rollout.max_result_tokens, rollout.thinking)
  if fmt.tokenizer.vocab_size > vocab_size:
    raise errors.UserError(
        f'{path / "tokenizer.json"} has ids up to '
        f'{fmt.tokenizer.vocab_size - 1}, but vocab_size in its config.json '
        f'is {vocab_size}: they are not of the same model.'
    )
  format_check.check(fmt)
  return fmt
