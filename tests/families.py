"""Tiny models of each family, built by transformers with random parameters."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
import torch
import transformers

from rods_jax import huggingface
from rods_jax import huggingface_config
from rods_jax import sharding
from rods_jax.device import model

VOCAB = 96
_SHAPE = dict(
    vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
    max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
    pad_token_id=None,
)
# With 16 positions as the original context, rows of 40 reach well behind it.
LLAMA3_ROPE = {
    'rope_type': 'llama3', 'rope_theta': 500_000.0, 'factor': 8.0,
    'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
    'original_max_position_embeddings': 16,
}


def _rope(theta: float) -> dict[str, object]:
  return {'rope_type': 'default', 'rope_theta': theta}


# Family -> (configuration class, what it has of its own).
FAMILIES = {
    'qwen2': (
        transformers.Qwen2Config, dict(rope_parameters=_rope(1e6))
    ),
    'qwen3': (  # head_dim is not 32 / 4
        transformers.Qwen3Config, dict(head_dim=16, rope_parameters=_rope(1e6))
    ),
    'llama3': (
        transformers.LlamaConfig,
        dict(rope_parameters=LLAMA3_ROPE, rms_norm_eps=1e-5),
    ),
    'smollm2': (  # an odd number of heads on one kv head
        transformers.LlamaConfig,
        dict(
            hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
            rope_parameters=_rope(1e5), rms_norm_eps=1e-5,
        ),
    ),
}


def reference(family: str, tied: bool) -> torch.nn.Module:
  """A model whose every parameter matters; its logits are some units apart."""
  make, own = FAMILIES[family]
  config = make(**(_SHAPE | own), tie_word_embeddings=tied)
  torch.manual_seed(7)
  made = transformers.AutoModelForCausalLM.from_config(config).eval()
  with torch.no_grad():
    for name, value in made.named_parameters():
      if value.ndim == 2:
        value.normal_(0, 1.5 * value.shape[1] ** -0.5)
      else:  # of norms, and biases; transformers starts them at 1 and 0
        value.normal_(1.0 if 'norm' in name else 0.0, 0.3)
  return made


def save(
    made: torch.nn.Module, folder: pathlib.Path, **options
) -> pathlib.Path:
  """Saves a model with a tokenizer of one word per token."""
  made.save_pretrained(folder, **options)
  words = {f'w{i}': i for i in range(VOCAB)}
  core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, 'w0'))
  core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  transformers.PreTrainedTokenizerFast(
      tokenizer_object=core, eos_token='w2'
  ).save_pretrained(folder)
  return folder


def load(folder: pathlib.Path, mesh: jax.sharding.Mesh):
  """(configuration, parameters) of a folder."""
  config = huggingface_config.model_config(folder)
  abstract = sharding.abstract_params(config, mesh)
  return config, huggingface.load(folder, abstract)


def arrays(folder: pathlib.Path, mesh: jax.sharding.Mesh) -> list[np.ndarray]:
  """The parameters of a folder as they come onto a mesh."""
  return [np.asarray(x) for x in jax.tree.leaves(load(folder, mesh)[1])]


def graphdef(config: model.ModelConfig):
  return model.create(config, jax.random.key(0))[0]


def logits(config: model.ModelConfig, params, tokens, lengths) -> np.ndarray:
  """Logits [B T V] of right-padded rows on the training path."""
  definition = graphdef(config)

  @jax.jit
  def run(params, tokens, lengths):
    hidden = model.hidden(definition, params, tokens, lengths)
    return model.logits(definition, params, hidden)

  return np.asarray(run(params, jnp.asarray(tokens), jnp.asarray(lengths)))
