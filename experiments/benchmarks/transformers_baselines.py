"""transformers on PyTorch in the rollout benchmark, the usual way and the best.

Both are greedy and end each message at its length. Rendering and tokenizing,
which the usual way repeats at each turn, are left out, in its favour.
"""

from collections.abc import Sequence
import pathlib
import tempfile
from typing import Any

import jax
import torch
import transformers

from experiments.benchmarks import workload
from rods_jax import huggingface
from rods_jax.device import model

_PAD = 0


def make(scale: workload.Scale) -> tuple[torch.nn.Module, Any]:
  """A random model, and its parameters for rods_jax."""
  c = scale.config
  torch.manual_seed(0)
  made = transformers.LlamaForCausalLM(
      transformers.LlamaConfig(
          vocab_size=c.vocab_size, hidden_size=c.d_model,
          num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads,
          num_key_value_heads=c.num_kv_heads, head_dim=c.head_dim,
          intermediate_size=c.mlp_dim, rms_norm_eps=c.rms_eps,
          rope_parameters={'rope_type': 'default', 'rope_theta': c.rope_theta},
          tie_word_embeddings=True, max_position_embeddings=8192,
          bos_token_id=None, eos_token_id=None, pad_token_id=None,
      )
  ).eval()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    made.save_pretrained(folder)
    shapes = jax.eval_shape(lambda: model.create(c, jax.random.key(0))[1])
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
        shapes,
    )
    return made, huggingface.load(folder, abstract)


def turn_by_turn(
    made: torch.nn.Module, dialogues: workload.Dialogues
) -> tuple[dict[str, float], list[list[int]]]:
  """`generate` on the whole chat at each turn, one trajectory at a time.

  Of the first few trajectories only: a rate does not depend on their number.
  """
  rows, sampled = [], 0
  clock = workload.Clock()
  for uid in range(dialogues.scale.few):
    row = []
    for message, length in enumerate(dialogues.lengths[uid]):
      row += dialogues.piece(uid, message)
      out = _generate(made, torch.tensor([row]), int(length))
      row = out[0].tolist()
      sampled += int(length)
    rows.append(row)
  return clock.measured(sampled), rows


def cached(
    made: torch.nn.Module, dialogues: workload.Dialogues
) -> tuple[dict[str, float], list[list[int]]]:
  """Batches with one cache from turn to turn, a group's prompt shared.

  A batch waits for its longest message. What rows sampled behind their end,
  and padding on the left of pieces, is masked.
  """
  scale = dialogues.scale
  groups = max(1, scale.slots // scale.samples)
  rows, sampled = [], 0
  clock = workload.Clock()
  for first in range(0, scale.tasks, groups):
    uids = [
        task * scale.samples + sample
        for task in range(first, min(first + groups, scale.tasks))
        for sample in range(scale.samples)
    ]
    rows += _play_batch(made, dialogues, uids)
    sampled += int(dialogues.lengths[uids].sum())
  return clock.measured(sampled), rows


def _play_batch(made, dialogues, uids: Sequence[int]) -> list[list[int]]:
  samples = dialogues.scale.samples
  prompts = [dialogues.piece(uid, 0) for uid in uids[::samples]]
  ids, mask = _padded(prompts)
  cache = transformers.DynamicCache()
  with torch.inference_mode():
    made(  # all but the last token, which the first call feeds
        ids[:, :-1], attention_mask=mask[:, :-1], past_key_values=cache,
        position_ids=_positions(mask)[:, :-1], logits_to_keep=1,
    )
  cache.batch_repeat_interleave(samples)
  ids, mask = (x.repeat_interleave(samples, 0) for x in (ids, mask))
  for message in range(dialogues.scale.messages):
    if message:
      more, extra = _padded([dialogues.piece(uid, message) for uid in uids])
      ids, mask = torch.cat([ids, more], 1), torch.cat([mask, extra], 1)
    lengths = torch.tensor(dialogues.lengths[uids, message])
    before = ids.shape[1]
    ids = _generate(made, ids, lengths, mask, cache)
    new = torch.arange(ids.shape[1] - before) < lengths[:, None]
    mask = torch.cat([mask, new.long()], 1)
  return [row[kept > 0].tolist() for row, kept in zip(ids, mask)]


class _Lengths(transformers.StoppingCriteria):
  """Ends each row at its own length."""

  def __init__(self, before: int, lengths: torch.Tensor):
    self._ends = before + lengths

  def __call__(self, input_ids, scores, **kwargs):
    return input_ids.shape[1] >= self._ends


def _generate(made, ids, lengths, mask=None, cache=None) -> torch.Tensor:
  """The rows with what was sampled; padding behind a row's length."""
  lengths = torch.as_tensor(lengths).reshape(-1)
  with torch.inference_mode():
    return made.generate(
        ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask,
        max_new_tokens=int(lengths.max()),
        stopping_criteria=transformers.StoppingCriteriaList(
            [_Lengths(ids.shape[1], lengths)]
        ),
        do_sample=False, use_cache=True, pad_token_id=_PAD,
        **({} if cache is None else {'past_key_values': cache}),
    )


def _padded(pieces: Sequence[Sequence[int]]):
  """Ids and mask [B, T], padded on the left."""
  width = max(map(len, pieces))
  ids = [[_PAD] * (width - len(p)) + list(p) for p in pieces]
  mask = [[0] * (width - len(p)) + [1] * len(p) for p in pieces]
  return torch.tensor(ids), torch.tensor(mask)


def _positions(mask: torch.Tensor) -> torch.Tensor:
  return (mask.cumsum(1) - 1).clamp(min=0)
