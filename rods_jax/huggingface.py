"""The policy's parameters from a Hugging Face folder, and back into one.

Each parameter of the decoder is one tensor of the folder with its axes joined
and in another order. The table below says how, and serves both directions.
Loading reads, for each device, the part of each tensor that the device keeps;
export holds one tensor at a time. So neither needs the model on the host.

Shapes are of device/model.py: V vocab, D model, H heads, K kv heads,
P head_dim, F mlp.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import re
import shutil
from typing import Any

from flax import nnx
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
import safetensors

from rods_jax import huggingface_config
from rods_jax.device import lora
from rods_jax.device import model
from rods_jax.device import stacking
from rods_jax.errors import UserError

# For each axis of the folder's tensor the axes of ours that it joins.
Groups = tuple[tuple[int, ...], ...]
_SAME_VECTOR: Groups = ((0,),)
_SAME: Groups = ((0,), (1,))
_TRANSPOSED: Groups = ((1,), (0,))
_BIAS: Groups = ((0, 1),)  # [H P] <- H P
_INTO_HEADS: Groups = ((1, 2), (0,))  # [H P, D] <- D H P
_OUT_OF_HEADS: Groups = ((2,), (0, 1))  # [D, H P] <- H P D

_EMBEDDING = 'model.embed_tokens.weight'
_HEAD = 'lm_head.weight'
_TOP: dict[str, tuple[str, Groups]] = {
    'embedding': (_EMBEDDING, _SAME),
    'final_norm': ('model.norm.weight', _SAME_VECTOR),
    'head': (_HEAD, _TRANSPOSED),
}

# Below model.layers.N.
_LAYER: dict[str, tuple[str, Groups]] = {
    'attention_norm': ('input_layernorm.weight', _SAME_VECTOR),
    'attention.q': ('self_attn.q_proj.weight', _INTO_HEADS),
    'attention.k': ('self_attn.k_proj.weight', _INTO_HEADS),
    'attention.v': ('self_attn.v_proj.weight', _INTO_HEADS),
    'attention.o': ('self_attn.o_proj.weight', _OUT_OF_HEADS),
    'attention.q_bias': ('self_attn.q_proj.bias', _BIAS),
    'attention.k_bias': ('self_attn.k_proj.bias', _BIAS),
    'attention.v_bias': ('self_attn.v_proj.bias', _BIAS),
    'attention.q_norm': ('self_attn.q_norm.weight', _SAME_VECTOR),
    'attention.k_norm': ('self_attn.k_norm.weight', _SAME_VECTOR),
    'mlp_norm': ('post_attention_layernorm.weight', _SAME_VECTOR),
    'mlp.gate': ('mlp.gate_proj.weight', _TRANSPOSED),
    'mlp.up': ('mlp.up_proj.weight', _TRANSPOSED),
    'mlp.down': ('mlp.down_proj.weight', _TRANSPOSED),
}

# Name in a safetensors file -> in config.json and numpy.
_DTYPES = {'F32': 'float32', 'BF16': 'bfloat16', 'F16': 'float16'}
_DERIVED = re.compile(r'.*\.rotary_emb\.inv_freq')  # in old Llama folders
_ROWS = 8192  # compared at a time

_COPIED = (
    'tokenizer.json', 'tokenizer_config.json', 'tokenizer.model', 'vocab.json',
    'merges.txt', 'special_tokens_map.json', 'added_tokens.json',
    'chat_template.jinja', 'generation_config.json',
)


@dataclasses.dataclass(frozen=True)
class _Tensor:
  """How one parameter stands in the folder.

  Attributes:
    name: in the folder.
    groups: see Groups.
    shape: of the parameter.
  """

  name: str
  groups: Groups
  shape: tuple[int, ...]

  @property
  def order(self) -> tuple[int, ...]:
    """The parameter's axes in the order of the folder."""
    return tuple(axis for group in self.groups for axis in group)

  @property
  def folder_shape(self) -> list[int]:
    return [math.prod(self.shape[a] for a in group) for group in self.groups]

  def read(self, source: Any, index: Sequence[slice]) -> np.ndarray:
    """The part `index` of the parameter: float32, and nothing else is read.

    Of joined axes only the first may be cut.
    """
    bounds = [s.indices(n)[:2] for s, n in zip(index, self.shape)]
    cut = []
    for first, *rest in self.groups:
      step = math.prod(self.shape[axis] for axis in rest)
      cut.append(slice(*(step * bound for bound in bounds[first])))
    sizes = [bounds[axis][1] - bounds[axis][0] for axis in self.order]
    part = np.asarray(source[tuple(cut)], np.float32).reshape(sizes)
    return np.ascontiguousarray(part.transpose(np.argsort(self.order)))

  def write(self, value: np.ndarray) -> np.ndarray:
    """The whole parameter as the folder has it."""
    joined = value.transpose(self.order).reshape(self.folder_shape)
    return np.ascontiguousarray(joined)


def _tensors(
    params: Iterable[tuple[tuple[Any, ...], nnx.Variable]],
) -> Iterator[tuple[list[_Tensor], nnx.Variable]]:
  """Each parameter of the decoder with its place in the folder.

  A parameter of stacked layers stands there as one tensor for each layer.
  """
  for path, variable in params:
    shape = tuple(variable.get_value().shape)
    if stacking.is_stacked_path(path):
      name, groups = _LAYER['.'.join(path[1:])]
      made = [
          _Tensor(f'model.layers.{layer}.{name}', groups, shape[1:])
          for layer in range(shape[0])
      ]
      yield made, variable
      continue
    if path[0] == 'blocks':
      name, groups = _LAYER['.'.join(path[2:])]
      name = f'model.layers.{path[1]}.{name}'
    elif path[0] == 'previous':
      raise UserError(
          'A Hugging Face folder has no place for the parameter `previous`: '
          'config.model.previous_token must be False.'
      )
    else:
      name, groups = _TOP[path[0]]
    yield [_Tensor(name, groups, shape)], variable


def _read(
    tensors: Sequence[_Tensor],
    sources: Mapping[str, Any],
    stacked: bool,
    index: Sequence[slice],
) -> np.ndarray:
  """The part `index` of one parameter."""
  if not stacked:
    return tensors[0].read(sources[tensors[0].name], index)
  wanted = tensors[index[0]]
  return np.stack([t.read(sources[t.name], index[1:]) for t in wanted])


def load(folder: pathlib.Path, abstract: Any) -> Any:
  """Float32 parameters in the structure and layout of `abstract`.

  Args:
    folder: with model.safetensors, or its parts and their index.
    abstract: of sharding.abstract_params, for the folder's model_config.

  Raises:
    UserError: a file is missing or damaged, or a tensor is missing, unknown,
      of another shape or of a dtype that is no plain float; names it.
  """
  tensors = list(_tensors(nnx.to_flat_state(abstract)))
  loaded = []
  with contextlib.ExitStack() as stack:
    sources = _open(folder, stack)
    _check(folder, [t for made, _ in tensors for t in made], sources)
    for made, variable in tensors:
      value = variable.get_value()
      stacked = value.ndim > len(made[0].shape)
      read = functools.partial(_read, made, sources, stacked)
      array = jax.make_array_from_callback(value.shape, value.sharding, read)
      loaded.append(variable.replace(array))
  paths = [path for path, _ in nnx.to_flat_state(abstract)]
  return nnx.from_flat_state(zip(paths, loaded, strict=True))


def _open(
    folder: pathlib.Path, stack: contextlib.ExitStack
) -> dict[str, Any]:
  """Name -> tensor, not yet read, of all files of the folder."""
  sources = {}
  for file in _files(folder):
    try:
      opened = stack.enter_context(safetensors.safe_open(str(file), 'numpy'))
      sources |= {name: opened.get_slice(name) for name in opened.keys()}
    except (OSError, safetensors.SafetensorError) as error:
      raise UserError(
          f'Cannot read {file}: {error}. Copy it there again, as a whole.'
      ) from error
  return sources


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  single = folder / 'model.safetensors'
  if single.is_file():
    return [single]
  index = folder / 'model.safetensors.index.json'
  if not index.is_file():
    raise UserError(
        f'{folder} has neither model.safetensors nor {index.name}; other '
        'formats of weights have to be converted first.'
    )
  try:
    parts = set(json.loads(index.read_text())['weight_map'].values())
    return [folder / part for part in sorted(parts)]
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise UserError(
        f'Cannot read {index}: {error!r}; copy it there again.'
    ) from error


def _check(
    folder: pathlib.Path,
    tensors: Sequence[_Tensor],
    sources: Mapping[str, Any],
) -> None:
  """Compares names, shapes and dtypes, before any tensor is read."""
  wanted = {tensor.name: tensor for tensor in tensors}
  found = {name for name in sources if not _DERIVED.fullmatch(name)}
  tied_head = _HEAD in found and _HEAD not in wanted
  if tied_head:
    found.remove(_HEAD)  # some folders hold a tied head all the same
  for name in sorted(wanted.keys() ^ found):
    where = 'lacks' if name in wanted else 'has an unknown'
    raise UserError(
        f'{folder} {where} tensor {name}: it is not of the model that its '
        'config.json describes.'
    )
  for name, tensor in wanted.items():
    shape, dtype = sources[name].get_shape(), sources[name].get_dtype()
    if shape != tensor.folder_shape:
      raise UserError(
          f'{folder} has {name} of shape {shape}, but its config.json asks '
          f'for {tensor.folder_shape}.'
      )
    if dtype not in _DTYPES:
      raise UserError(
          f'{folder} has {name} in {dtype}; convert it to one of '
          f'{", ".join(_DTYPES)}.'
      )
  if tied_head and not _equal(sources[_HEAD], sources[_EMBEDDING]):
    raise UserError(
        f'{folder} has {_HEAD} apart from {_EMBEDDING}, but its config.json '
        'says tie_word_embeddings; set that to false.'
    )


def _equal(one: Any, other: Any) -> bool:
  """Whether two matrices in files are the same, some rows at a time."""
  if one.get_shape() != other.get_shape():
    return False
  if one.get_dtype() != other.get_dtype():
    return False
  rows = one.get_shape()[0]
  parts = (slice(i, min(i + _ROWS, rows)) for i in range(0, rows, _ROWS))
  return all(np.array_equal(one[part], other[part]) for part in parts)


def export(
    path: pathlib.Path,
    params: Any,
    config: model.ModelConfig,
    source: pathlib.Path,
    dtype: str | None = None,
) -> None:
  """Writes a folder that transformers and vLLM load.

  It has the config.json and the tokenizer of the folder that the policy
  started from, and model.safetensors with the parameters. In a run of several
  processes all of them call it, and the first writes.

  Args:
    path: the new folder.
    params: of the policy; adapters are added to their matrices.
    config: shape of the decoder.
    source: the folder that it started from.
    dtype: float32, bfloat16 or float16; None for the one in config.json.

  Raises:
    UserError: the folder exists already, the source is of another shape, or
      there is no such dtype.
  """
  raw = huggingface_config.read(source)
  wanted = huggingface_config.model_config(
      source, config.dtype, config.remat, config.scan_layers
  )
  if wanted != config.base:
    raise UserError(f'{source} is of another model than the one to export.')
  dtype = dtype or raw.get('dtype') or raw.get('torch_dtype') or 'float32'
  if dtype not in _DTYPES.values():
    raise UserError(
        f'Cannot export {dtype}; use one of {", ".join(_DTYPES.values())}.'
    )
  if path.exists():
    raise UserError(f'{path} exists already; delete it or name a new folder.')
  multihost_utils.sync_global_devices('export')  # all have looked
  partial = path.with_name(f'{path.name}.partial')
  first = jax.process_index() == 0
  if first:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _copy(source, partial, raw, dtype)
  file = partial / 'model.safetensors' if first else None
  _write(file, params, config, dtype)
  if first:
    partial.rename(path)  # an interrupted export is never taken for a model


def _copy(
    source: pathlib.Path,
    folder: pathlib.Path,
    raw: Mapping[str, Any],
    dtype: str,
) -> None:
  """config.json with the dtype under each name that it has, and the rest."""
  named = {key: dtype for key in ('dtype', 'torch_dtype') if key in raw}
  raw = {**raw, **(named or {'dtype': dtype})}
  text = json.dumps(raw, indent=2) + '\n'
  (folder / 'config.json').write_text(text, encoding='utf-8')
  for name in _COPIED:
    if (source / name).is_file():
      shutil.copyfile(source / name, folder / name)


def _write(
    file: pathlib.Path | None,
    params: Any,
    config: model.ModelConfig,
    dtype: str,
) -> None:
  """Writes the safetensors format: length of the header, header, tensors.

  The library's own function wants all tensors in memory. Without a file it
  only takes part in gathering them.
  """
  codes = {name: code for code, name in _DTYPES.items()}
  header, end = {'__metadata__': {'format': 'pt'}}, 0
  base = nnx.to_flat_state(lora.split(params)[1])
  for tensor in (t for made, _ in _tensors(base) for t in made):
    start, size = end, jnp.dtype(dtype).itemsize
    end = start + size * math.prod(tensor.shape)
    header[tensor.name] = {
        'dtype': codes[dtype],
        'shape': tensor.folder_shape,
        'data_offsets': [start, end],
    }
  text = json.dumps(header).encode()
  text += b' ' * (-len(text) % 8)  # tensors start at a multiple of 8
  with file.open('wb') if file else contextlib.nullcontext() as out:
    if out:
      out.write(len(text).to_bytes(8, 'little') + text)
    for made, variable in _tensors(lora.merged(params, config)):
      value = variable.get_value()
      stacked = value.ndim > len(made[0].shape)
      for layer, tensor in enumerate(made):
        part = _gather((value[layer] if stacked else value).astype(dtype))
        if out:
          out.write(tensor.write(part).tobytes())


def _gather(array: jax.Array) -> np.ndarray:
  """The whole array on the host, also where others hold parts of it."""
  if array.is_fully_addressable or array.is_fully_replicated:
    return np.asarray(array)
  return np.asarray(multihost_utils.process_allgather(array, tiled=True))
