"""google-tunix's sampler in the rollout benchmark, beside rods_jax.

Its Qwen3 in the sizes of the scale, with the same weights on both sides. The
sampler takes texts and keeps no cache between calls, so each turn feeds the
whole chat of a batch again; a batch waits for its longest message. Everything
is played once before, so that no side's compiling counts.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from experiments.benchmarks import ours
from experiments.benchmarks import workload
from rods_jax import errors
from rods_jax.device import model

try:
  from flax import nnx
  from tunix.generate import sampler as sampler_lib
  from tunix.models.qwen3 import model as qwen3
except ImportError as error:
  raise errors.UserError(
      f'The part tunix needs google-tunix ({error}); see '
      'experiments/benchmarks/requirements-tunix.txt.'
  ) from error

_STEP = 8  # lengths of calls are rounded up, so that few programs are compiled


class _Numbers:
  """A tokenizer of ids written as numbers."""

  def encode(self, text: str, **kwargs) -> list[int]:
    return [int(word) for word in text.split()]

  def decode(self, ids: Sequence[int], **kwargs) -> str:
    return ' '.join(map(str, ids))

  def bos_id(self) -> int:
    return 0  # none

  def eos_id(self) -> int:
    return 1

  def pad_id(self) -> int:
    return 0


def measure(scale: workload.Scale) -> dict[str, Any]:
  """Both sides on the same dialogues; tunix on a batch of them."""
  # tunix 0.1.7 rotates with this base, whatever its config says.
  config = dataclasses.replace(scale.config, qk_norm=True, rope_theta=1e6)
  scale = dataclasses.replace(scale, config=config)
  params = model.create(config, jax.random.key(0))[1]
  dialogues = workload.Dialogues(scale, 0.7)
  engine = ours.make_engine(scale)
  for _ in range(2):  # the first compiles
    found, rows = ours.play(engine, params, dialogues)
  engine.release()
  sampler = _sampler(config, params, _power_of_two(scale.buckets[-1]))
  for _ in range(2):
    theirs, played = _play(sampler, dialogues)
  same = [one == other for one, other in zip(played, rows)]
  return {
      'ours': found,
      'tunix': theirs | {'rows_equal_to_ours': sum(same) / len(same)},
  }


def _sampler(
    config: model.ModelConfig, params: Any, cache_size: int
) -> sampler_lib.Sampler:
  made = qwen3.Qwen3(
      qwen3.ModelConfig(
          num_layers=config.num_layers, vocab_size=config.vocab_size,
          embed_dim=config.d_model, hidden_dim=config.mlp_dim,
          num_heads=config.num_heads, head_dim=config.head_dim,
          num_kv_heads=config.num_kv_heads, norm_eps=config.rms_eps,
          rope_theta=int(config.rope_theta), use_tied_embedding=True,
      ),
      rngs=nnx.Rngs(0),
  )
  _put(made.embedder.input_embedding, params.embedding)
  _put(made.final_norm.w, params.final_norm)
  for index, layer in enumerate(made.layers):
    block = params.blocks[index]
    _put(layer.input_layernorm.w, block.attention_norm)
    _put(layer.post_attention_layernorm.w, block.mlp_norm)
    for name in ('q_proj', 'k_proj', 'v_proj', 'o_proj', 'q_norm', 'k_norm'):
      own = name.removesuffix('_proj')
      _put(getattr(layer.attn, name).w, block.attention[own])
    for name in ('gate', 'up', 'down'):
      _put(getattr(layer.mlp, f'{name}_proj').kernel, block.mlp[name])
  return sampler_lib.Sampler(
      made, _Numbers(),
      sampler_lib.CacheConfig(
          cache_size=2 * cache_size, num_layers=config.num_layers,
          num_kv_heads=config.num_kv_heads, head_dim=config.head_dim,
      ),
  )


def _put(theirs: nnx.Param, own: nnx.Param) -> None:
  if theirs.value.shape != own.value.shape:
    raise ValueError(f'{theirs.value.shape} is not {own.value.shape}.')
  theirs.value = own.value


def _play(
    sampler: sampler_lib.Sampler, dialogues: workload.Dialogues
) -> tuple[dict[str, float], list[list[int]]]:
  scale = dialogues.scale
  uids = range(min(scale.slots, scale.total))
  rows: list[list[int]] = [[] for _ in uids]
  clock = workload.Clock()
  for message in range(scale.messages):
    lengths = dialogues.lengths[: len(uids), message]
    for uid in uids:
      rows[uid] += dialogues.piece(uid, message)
    longest = max(map(len, rows))
    out = sampler(
        [' '.join(map(str, row)) for row in rows],
        max_generation_steps=-(-int(lengths.max()) // _STEP) * _STEP,
        max_prompt_length=_power_of_two(longest),
        eos_tokens=[scale.config.vocab_size],  # no token: lengths end messages
    )
    for uid, tokens in zip(uids, out.tokens):
      rows[uid] += np.asarray(tokens)[: lengths[uid]].tolist()
  return clock.measured(dialogues.lengths[: len(uids)].sum()), rows


def _power_of_two(n: int) -> int:
  return 1 << (n - 1).bit_length()
