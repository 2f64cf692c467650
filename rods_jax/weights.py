"""Parameters on disk: the shipped policy, and where a run starts from."""

from collections.abc import Mapping
import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import safetensors
import safetensors.flax

from rods_jax import build
from rods_jax import checkpoint
from rods_jax import errors
from rods_jax import huggingface
from rods_jax import pretrained
from rods_jax import rng
from rods_jax import sharding
from rods_jax.device import lora
from rods_jax.device import model
from rods_jax.device import stacking

EMBEDDED = build.ASSETS / 'policy.safetensors'


def names(params: Any) -> list[str]:
  """One dotted name per leaf, in the order of jax.tree.leaves."""
  flat, _ = jax.tree_util.tree_flatten_with_path(params)
  return [
      jax.tree_util.keystr(path, simple=True, separator='.').removesuffix(
          '.value'
      )
      for path, _ in flat
  ]


def save(path: pathlib.Path, params: Any, metadata: Mapping[str, str]) -> None:
  """Writes bfloat16 tensors, half the size of float32."""
  params = stacking.unstack(params)  # layers are apart in every file
  leaves = [jnp.asarray(x, jnp.bfloat16) for x in jax.tree.leaves(params)]
  tensors = dict(zip(names(params), leaves, strict=True))
  partial = path.with_suffix('.partial')
  safetensors.flax.save_file(tensors, str(partial), dict(metadata))
  partial.replace(path)  # an interrupted save leaves the old file


def load(path: pathlib.Path, abstract: Any) -> Any:
  """Float32 parameters in the structure of `abstract`.

  Raises:
    UserError: the file is unreadable, or a tensor is missing, unknown or of
      another shape; names it.
  """
  try:
    tensors = safetensors.flax.load_file(str(path))
  except (OSError, safetensors.SafetensorError) as error:
    raise errors.UserError(
        f'Cannot read the policy in {path}: {error}'
    ) from error
  apart = jax.eval_shape(stacking.unstack, abstract)
  wanted = dict(zip(names(apart), jax.tree.leaves(apart), strict=True))
  for name in sorted(wanted.keys() ^ tensors.keys()):
    where = 'lacks' if name in wanted else 'has an unknown'
    raise errors.UserError(
        f'{path} {where} tensor {name}: it was made with another '
        'config.model; use that one or config.model.init_from=random.'
    )
  for name, leaf in wanted.items():
    if tensors[name].shape != leaf.shape:
      raise errors.UserError(
          f'{path} has {name} of shape {tensors[name].shape}, but '
          f'config.model asks for {leaf.shape}.'
      )
  leaves = [tensors[name].astype(jnp.float32) for name in wanted]
  params = jax.tree.unflatten(jax.tree.structure(apart), leaves)
  return stacking.stack(params) if stacking.is_stacked(abstract) else params


def origin(
    config: ml_collections.ConfigDict, policy: build.Policy
) -> dict[str, str]:
  """What a policy is tied to: its tokenizer, its split and its shape.

  One entry, since the file would keep several in no fixed order.
  """
  data = config.data
  shape = dataclasses.asdict(policy.config)
  for name in ('dtype', 'remat', 'scan_layers', 'lora_rank', 'lora_alpha',
               'lora_targets'):
    del shape[name]  # another run may choose others
  if shape['rope_scaling'] is None:
    del shape['rope_scaling']  # files from before it was there lack it
  found = {
      'tokenizer': policy.tokenizer.digest,
      'data.split': data.split,
      'data.num_train_scenarios': data.num_train_scenarios,
      'data.split_seed': data.split_seed,
      'model': shape,
  }
  return {'origin': json.dumps(found, sort_keys=True)}


def _check_origin(path: pathlib.Path, wanted: Mapping[str, str]) -> None:
  """A policy of another split has trained on what is held out here."""
  with safetensors.safe_open(str(path), 'numpy') as file:
    text = (file.metadata() or {}).get('origin', '{}')
  found, wanted = json.loads(text), json.loads(wanted['origin'])
  for name, value in wanted.items():
    if found.get(name, value) != value:
      raise errors.UserError(
          f'{path} was made with another {name}: {found[name]}, here {value}. '
          'Use that one, make a policy with configs/warm_start.py, or start '
          'from config.model.init_from=random.'
      )


def abstract_params(policy: build.Policy) -> Any:
  """Shapes, dtypes and shardings of the parameters, adapters left out."""
  return sharding.abstract_params(policy.config.base, policy.mesh)


def abstract_trained(policy: build.Policy) -> Any:
  """The same of what is trained: the adapters, or all parameters."""
  if not policy.config.lora_rank:
    return abstract_params(policy)
  return lora.split(sharding.abstract_params(policy.config, policy.mesh))[0]


def initial_adapters(
    config: ml_collections.ConfigDict, policy: build.Policy
) -> Any:
  """Adapters that add nothing yet, laid out on the mesh."""
  make = lambda key: lora.split(model.create(policy.config, key)[1])[0]
  places = jax.tree.map(lambda x: x.sharding, abstract_trained(policy))
  key = rng.device(config.rng_seed, 'adapters')
  return jax.jit(make, out_shardings=places)(key)


@jax.jit
def _sum_of_bits(x: jax.Array) -> jax.Array:
  """uint32 [], in which each bit counts by its place."""
  bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
  place = jnp.zeros(x.shape, jnp.uint32)
  for axis in range(x.ndim):
    index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    place = place * jnp.uint32(1_000_003) + index
  return jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32)


def digest(params: Any) -> str:
  """Of the bits of all parameters; the same however they are laid out."""
  totals = jax.device_get(jax.tree.map(_sum_of_bits, params))
  entries = zip(names(params), map(int, jax.tree.leaves(totals)), strict=True)
  return hashlib.sha256(json.dumps(list(entries)).encode()).hexdigest()


def _check_run(path: pathlib.Path, config: ml_collections.ConfigDict) -> None:
  """Refuses a run whose checkpoints hold other arrays than are asked for."""
  for folder in (path, *path.parents[:2]):  # the run's, from any of its folders
    try:
      saved = json.loads((folder / 'config.json').read_text())['model']
    except (OSError, ValueError, KeyError, TypeError):
      continue
    stacked = bool(saved.get('scan_layers'))
    source = saved.get('init_from')
    if isinstance(source, str) and pretrained.is_huggingface(source):
      problem = (
          f'began from the Hugging Face folder {source}, whose tokenizer and '
          'chat format its checkpoints do not hold; export its policy '
          'with --mode=export and start from the new folder'
      )
    elif saved.get('lora_rank'):
      problem = 'trained adapters; its checkpoints hold no whole policy'
    elif stacked != config.model.scan_layers:
      problem = f'has scan_layers={stacked}; set --config.model.scan_layers too'
    else:
      return
    raise errors.UserError(
        f'config.model.init_from: the run {folder} {problem}.'
    )


def initial_params(
    config: ml_collections.ConfigDict, policy: build.Policy
) -> Any:
  """Parameters as config.model.init_from says, laid out on the mesh.

  Adapters are left out: see initial_adapters.

  It is 'embedded', 'random', a .safetensors file, or a folder: one of Hugging
  Face, a run's, that of its checkpoints, or one checkpoint.
  """
  source = config.model.init_from
  abstract = abstract_params(policy)
  if source == 'random':
    key = rng.device(config.rng_seed, 'init')
    params = model.create(policy.config.base, key)[1]
  elif source == 'embedded' or source.endswith('.safetensors'):
    path = EMBEDDED if source == 'embedded' else pathlib.Path(source)
    params = load(path, abstract)
    _check_origin(path, origin(config, policy))
  elif folder := pretrained.folder(config):
    return huggingface.load(folder, abstract)
  else:
    path = pathlib.Path(source)
    _check_run(path, config)
    if (path / 'checkpoints').is_dir():
      path /= 'checkpoints'
    with errors.as_user_error(checkpoint.CheckpointError):
      return checkpoint.load_params(path, abstract)
  return sharding.put(params, jax.tree.map(lambda a: a.sharding, abstract))
