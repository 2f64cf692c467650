"""What all-gathers deliver, read off the programs compiled for 8 devices.

The mesh is data=1 fsdp=4 tensor=2. The sizes of the model are chosen so that
the number of elements tells which array was gathered.
"""

import dataclasses
import json
import math
import os
import subprocess
import sys

import jax
import optax
import pytest

from experiments import hlo_costs
from rods_jax import programs
from rods_jax import sharding
from rods_jax.device import model
from rods_jax.device import update
from tests import test_update

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FSDP, TENSOR = 4, 2
V, D, H, K, P, F = 352, 48, 6, 2, 10, 104
SLOTS, ROWS, CHUNK, LENGTH = 8, 4, 4, 24
CONFIG = model.ModelConfig(
    vocab_size=V, d_model=D, num_layers=2, num_heads=H, num_kv_heads=K,
    head_dim=P, mlp_dim=F, scan_layers=True, remat='full',
)


def compiled(lowered) -> hlo_costs.Program:
  return hlo_costs.Program(lowered.compile().as_text())


def gathered(program, names=None) -> list[int]:
  """Elements of each array that an all-gather delivers, once each.

  Args:
    program: compiled.
    names: of its computations; all of them when None.
  """
  return sorted({
      math.prod(dims)
      for name in names or program.computations
      for op in program.computations[name].values()
      if op.code in ('all-gather', 'all-gather-start')
      for dims in hlo_costs.all_dims(op.type)
  })


def compile_all() -> dict[str, list[int]]:
  """Name of a program -> `gathered`."""
  mesh = sharding.make_mesh(1, FSDP, TENSOR)
  graphdef = model.definition(CONFIG)
  made = programs.Programs(
      graphdef, mesh, CONFIG, programs.Sizes(SLOTS, (16, 40), 4, 8, 8),
      end_id=1, pad_id=0,
  )
  found = {
      name: gathered(compiled(low)) for name, low in made.lower(8).items()
  }
  params = model.create(CONFIG, jax.random.key(0))[1]
  params = jax.device_put(params, sharding.param_shardings(params, mesh))
  state = update.init_state(params, optax.sgd(1.0), 5, mesh)
  step = update.make_update_fn(
      graphdef, optax.sgd(1.0),
      dataclasses.replace(test_update.CONFIG, kl_coef=0.1), chunk=CHUNK,
      state_shardings=jax.tree.map(lambda x: x.sharding, state), mesh=mesh,
  )
  batch = test_update.packed(buckets=(LENGTH,), microbatch_rows=ROWS)
  program = compiled(step.lower(state, params, batch))
  found['update'] = gathered(program)
  found['before the loop'] = gathered(program, [program.entry])
  return found


@pytest.fixture(scope='module')
def found():
  code = (
      'import json\n'
      'from tests import conftest, test_collectives\n'
      'print(json.dumps(test_collectives.compile_all()))\n'
  )
  flag = '--xla_force_host_platform_device_count=8'
  out = subprocess.run(
      [sys.executable, '-c', code],
      env=os.environ | {'XLA_FLAGS': flag, 'JAX_PLATFORMS': 'cpu'},
      cwd=_ROOT, check=True, timeout=300, capture_output=True, text=True,
  )
  return json.loads(out.stdout.splitlines()[-1])


# Parts of the matrices that a device keeps when they are whole along fsdp.
LAYER_PARTS = {D * H * P // TENSOR, D * F // TENSOR}
PARTS = LAYER_PARTS | {V * D // TENSOR}
SEGMENT = SLOTS * K * P * 16  # of the cache, the smaller one


def test_decode_gathers_no_weight_and_no_cache(found):
  """Activations of all slots, and the distributions [B V] of a device's rows.

  A draw needs the latter; a segment of its rows alone would have 640 elements.
  """
  assert SEGMENT // FSDP == 640
  assert found['decode'], 'it gathers something; was it looked for?'
  for size in found['decode']:
    assert size <= SLOTS * D or size == SLOTS // FSDP * V, found['decode']


def test_prefill_gathers_no_weight_and_no_cache(found):
  """Nothing beyond the activations of 4 pieces of 8 tokens."""
  assert 4 * 8 * D < SEGMENT and 4 * 8 * D not in PARTS
  assert found['extend'], 'it gathers something; was it looked for?'
  assert max(found['extend']) <= 4 * 8 * D
  assert not PARTS & set(found['extend'])


def test_update_gathers_weights_along_fsdp_alone(found):
  """No matrix whole, no two layers at once, and no logits over all of V.

  The backward pass once gathered all heads of the output projection, 2,880
  elements, for the gradient of what it multiplies, and exchanged that gradient
  between devices after it.
  """
  sizes = set(found['update'])
  assert PARTS <= sizes  # each layer's, when it is computed
  whole = {TENSOR * part for part in PARTS}
  assert 2880 in whole
  layers = {2 * part for part in LAYER_PARTS | whole}
  logits = {ROWS * CHUNK * V // n for n in (1, TENSOR, FSDP)}
  assert not PARTS & (whole | layers | logits)
  assert not sizes & (whole | layers | logits), sizes
  assert max(sizes) == V * D // TENSOR


def test_no_table_is_gathered_for_all_microbatches(found):
  """The embedding was, of policy and reference, and both were kept."""
  table = V * D // TENSOR
  assert table in found['update']
  assert table not in found['before the loop']
