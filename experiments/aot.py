"""Compiles a run's programs for a TPU slice on a machine that has none.

  python -m experiments.aot --config=configs/rods.py:qwen3_4b \
      --topology=v5e:4x4 [--vocab_size=151936] \
      [--programs=update,decode] [--json] [--options=NAME=VALUE]

The update is that of device/update.py and the rollout programs are those of
rods_jax/programs.py, with the run's own shapes and shardings. XLA's compiler
for TPU (third_party/requirements-tpu.txt) says what memory each needs; flops
and collectives are read off the compiled program (hlo_costs.py), whose loops
XLA's own summary would count once.

Of memory, peak_gib is about what the compiler lays out in HBM, arguments
included. XLA's temporaries_gib, and so total_gib, count the gaps between
buffers twice; `fits` goes by that (experiments/README.md).

What is held against the program:
  update   6 N flops per token (4 N of a frozen base) and those of causal
           attention three times over, backward included, and a forward pass
           of the reference where there is one, over all tokens of one padded
           microbatch of each length.
  decode   one step at full caches: the weights, as cast for rollouts, and the
           cache, read once. Counted are bytes to and from HBM (hlo_bytes.py);
           XLA's own summary, beside it, adds on-chip memory to them.
"""

import dataclasses
import json
import os
import time
from typing import Any

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')

from absl import app
from absl import flags
import jax
from jax.experimental import topologies
import jax.numpy as jnp
from ml_collections import config_flags

from experiments import hlo_bytes
from experiments import hlo_costs
from rods_jax import batch as batch_lib
from rods_jax import engine as engine_lib
from rods_jax import pretrained
from rods_jax import run as run_lib
from rods_jax import settings
from rods_jax import sharding
from rods_jax.device import lora
from rods_jax.device import model
from rods_jax.device import update
from rods_jax.host import packing

GIB = 2**30
HBM_GB = {'v5e': 16, 'v5p': 95, 'v6e': 32}  # of the data sheets

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/rods.py:qwen3_4b')
_TOPOLOGY = flags.DEFINE_string('topology', 'v5e:4x4', 'v5e, v5p or v6e slice')
_VOCAB = flags.DEFINE_integer('vocab_size', 151_936, 'of the tokenizer')
_PROGRAMS = flags.DEFINE_list(
    'programs', ['update', 'decode', 'extend'], 'what to compile'
)
flags.register_validator(
    'programs', lambda names: set(names) <= {'update', 'decode', 'extend'},
    message='they are update, decode and extend',
)
_JSON = flags.DEFINE_bool('json', False, 'print JSON instead of a table')
_OPTIONS = flags.DEFINE_list(
    'options', [],
    "of XLA's compiler: name=value, such as xla_tpu_max_hbm_size_mib=7850",
)
flags.register_validator(
    'options', lambda options: all('=' in option for option in options),
    message='each must be NAME=VALUE',
)
_HLO = flags.DEFINE_string('hlo', '', 'folder for the compiled programs')


@dataclasses.dataclass(frozen=True)
class Setup:
  """What the programs are made from.

  Attributes:
    config: the run's.
    model: shape of the decoder.
    mesh: over the devices of a topology description.
  """

  config: Any
  model: model.ModelConfig
  mesh: jax.sharding.Mesh


def make_setup(config: Any, topology: str, vocab_size: int) -> Setup:
  """The setup for a slice such as v5e:4x4.

  Args:
    config: the run's; with the folder of Hugging Face that it starts from.
    topology: the slice.
    vocab_size: of the tokenizer, where no folder says it.
  """
  settings.validate(config)
  config = pretrained.resolve(config)
  if folder := pretrained.folder(config):
    shape = pretrained.model_config(config, folder)
  else:
    fields = config.model.to_dict()
    del fields['init_from']
    shape = model.ModelConfig(vocab_size=vocab_size, **fields)
  slice_ = topologies.get_topology_desc(topology, 'tpu')
  return Setup(
      config, shape,
      sharding.make_mesh(**config.mesh, devices=slice_.devices),
  )


def _struct(x, place) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)


def abstract_state(setup: Setup, optimizer) -> update.TrainState:
  """The state with the layout that update.init_state gives it."""
  params = sharding.abstract_params(setup.model, setup.mesh)
  if setup.model.lora_rank:
    params = lora.split(params)[0]
  num_slots = 400 + setup.config.pool.max_generated
  shapes = jax.eval_shape(
      lambda p: update.init_state(p, optimizer, num_slots), params
  )
  everywhere = sharding.replicated(setup.mesh)
  places = {x.shape: x.sharding for x in jax.tree.leaves(params)}
  # Moments are shaped like their parameters, and laid out like them.
  return jax.tree.map(
      lambda x: _struct(x, places.get(x.shape, everywhere)), shapes
  )


def abstract_batch(setup: Setup) -> batch_lib.Batch:
  """Shapes and layout of a minibatch: see packing.pack."""
  grpo, group = setup.config.grpo, setup.config.rollout.group_size
  rows, groups = grpo.microbatch_rows, grpo.minibatch_groups
  lengths = tuple(grpo.length_buckets)
  steps = -(-groups * group // rows)
  ints = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
  floats = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
  bools = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bool_)
  buckets = tuple(
      batch_lib.Bucket(
          ints(steps, rows, t), ints(steps, rows), ints(steps, rows, k),
          ints(steps, rows, k), floats(steps, rows, k), bools(steps, rows, k),
          ints(steps, rows),
      )
      for t, k in zip(lengths, packing.num_targets(lengths))
  )
  return batch_lib.Batch(
      batch_lib.Packed(buckets, ints(len(buckets))), floats(groups, group),
      floats(groups, group), bools(groups, group), ints(groups),
  )


def lower_update(setup: Setup) -> Any:
  """The lowered GRPO update."""
  optimizer = run_lib.make_optimizer(setup.config)
  state = abstract_state(setup, optimizer)
  step = run_lib.make_update(
      setup.config, model.definition(setup.model), optimizer,
      jax.tree.map(lambda x: x.sharding, state), setup.mesh,
      run_lib.make_base_graphdef(setup.model),
  )
  ref = None
  if setup.model.lora_rank:
    ref = sharding.abstract_params(setup.model.base, setup.mesh)
  elif setup.config.grpo.kl_coef > 0:
    ref = state.params
  return step.lower(state, ref, abstract_batch(setup))


def lower_rollouts(setup: Setup) -> dict[str, Any]:
  """The lowered programs of the engine; extend with its longest piece."""
  r = setup.config.rollout
  engine = engine_lib.Engine(
      model.definition(setup.model), setup.mesh, setup.model,
      num_slots=r.num_slots, cache_buckets=tuple(r.cache_buckets),
      extend_buckets=tuple(r.extend_buckets), extend_rows=r.extend_rows,
      max_new=r.max_message_tokens, end_id=1, pad_id=0,
  )
  return engine.programs.lower(r.extend_buckets[-1])


def parameter_count(config: model.ModelConfig) -> int:
  shapes = jax.eval_shape(
      lambda key: model.create(config, key)[1], jax.random.key(0)
  )
  return sum(x.size for x in jax.tree.leaves(shapes))


def update_model_flops(setup: Setup) -> float:
  """Of one microbatch of each length, all devices together; see above."""
  c, grpo = setup.model, setup.config.grpo
  per_token = 2 * parameter_count(c)
  if not c.tie_embeddings:
    per_token -= 2 * c.vocab_size * c.d_model  # a lookup multiplies nothing
  total = 0.0
  for length in grpo.length_buckets:
    # q k and weights v: 2 products over (length + 1) / 2 keys on average.
    attention = 2 * 2 * c.num_heads * c.head_dim * (length + 1) / 2
    reference = int(grpo.kl_coef > 0)
    trained = 2 if c.lora_rank else 3  # frozen matrices have no gradient
    work = (trained + reference) * per_token
    work += (3 + reference) * c.num_layers * attention
    total += grpo.microbatch_rows * length * work
  return total


def decode_floor(setup: Setup) -> float:
  """Bytes per device and step: weights and caches, each read once."""
  c, r = setup.model, setup.config.rollout
  size = jnp.dtype(c.dtype).itemsize
  weights = parameter_count(c) * size / setup.mesh.shape['tensor']
  if not c.tie_embeddings:
    weights -= c.vocab_size * c.d_model * size / setup.mesh.shape['tensor']
  cache = (
      2 * c.num_layers * r.num_slots * r.cache_buckets[-1] * c.num_kv_heads
      * c.head_dim * size / setup.mesh.size
  )
  return weights + cache


def measure(setup: Setup, name: str, lowered: Any) -> dict[str, Any]:
  """Compiles one program; its numbers are per device."""
  begin = time.monotonic()
  options = dict(option.split('=', 1) for option in _OPTIONS.value)
  compiled = lowered.compile(compiler_options=options)
  seconds = time.monotonic() - begin
  memory = compiled.memory_analysis()
  text = compiled.as_text()
  if _HLO.value:
    with open(os.path.join(_HLO.value, f'{name}.txt'), 'w') as file:
      file.write(text)
  program = hlo_costs.Program(text)
  # Donated arguments and the outputs in their place are the same bytes.
  total = (
      memory.argument_size_in_bytes + memory.output_size_in_bytes
      - memory.alias_size_in_bytes + memory.temp_size_in_bytes
  )
  family = _TOPOLOGY.value.partition(':')[0]
  numbers = {
      'program': name,
      'compile_s': round(seconds),
      'arguments_gib': memory.argument_size_in_bytes / GIB,
      'outputs_gib': memory.output_size_in_bytes / GIB,
      'donated_gib': memory.alias_size_in_bytes / GIB,
      'temporaries_gib': memory.temp_size_in_bytes / GIB,
      'total_gib': total / GIB,
      'peak_gib': memory.peak_memory_in_bytes / GIB,
      'hbm_gb': HBM_GB[family],
      'fits': total < HBM_GB[family] * 1e9,
      'tflops': program.flops() / 1e12,
      'collectives': program.collectives(),
  }
  if name == 'update':
    wanted = update_model_flops(setup) / setup.mesh.size
    numbers['model_tflops'] = wanted / 1e12
    numbers['flops_ratio'] = program.flops() / wanted
  if name == 'decode':
    floor = decode_floor(setup)
    traffic = hlo_bytes.Traffic(program)
    numbers['step_gib'] = traffic.per_step() / GIB
    numbers['floor_gib'] = floor / GIB
    numbers['bytes_ratio'] = traffic.per_step() / floor
    numbers['once_a_call_gib'] = traffic.once() / GIB
    xla = compiled.cost_analysis()['bytes accessed']
    numbers['bytes_ratio_of_xla_summary'] = xla / floor
  return numbers


def table(numbers: list[dict[str, Any]]) -> str:
  """A Markdown table, and one of the collectives below it."""
  names = list(dict.fromkeys(key for n in numbers for key in n))
  names.remove('collectives')
  names.remove('program')
  head = [n['program'] for n in numbers]
  lines = ['| per device | ' + ' | '.join(head) + ' |']
  lines.append('|---' * (len(head) + 1) + '|')
  for name in names:
    cells = (n.get(name, '') for n in numbers)
    cells = (f'{c:.2f}' if isinstance(c, float) else str(c) for c in cells)
    lines.append(f'| {name} | ' + ' | '.join(cells) + ' |')
  lines += ['', '| program | collective | group | count | GiB |']
  lines.append('|---' * 5 + '|')
  for n in numbers:
    for c in n['collectives']:
      lines.append(
          f'| {n["program"]} | {c["kind"]} | {c["group"]} | {c["count"]} | '
          f'{c["bytes"] / GIB:.3f} |'
      )
  return '\n'.join(lines)


def main(argv: list[str]) -> None:
  del argv
  setup = make_setup(_CONFIG.value, _TOPOLOGY.value, _VOCAB.value)
  wanted = set(_PROGRAMS.value)
  lowered = {}
  if 'update' in wanted:
    lowered['update'] = lower_update(setup)
  if wanted & {'decode', 'extend'}:
    made = lower_rollouts(setup)
    lowered |= {name: made[name] for name in made if name in wanted}
  numbers = [measure(setup, *item) for item in lowered.items()]
  print(json.dumps(numbers, indent=1) if _JSON.value else table(numbers))


if __name__ == '__main__':
  app.run(main)
