"""What travels between devices, read off the compiled programs.

Compiled for 8 forced host devices, data=1 fsdp=4 tensor=2. All sizes of the
model differ, so that a gathered array is known by its number of elements.
"""

import math
import os
import subprocess
import sys

import jax
import pytest

from experiments import hlo_costs
from rods_jax import programs
from rods_jax import sharding
from rods_jax.device import losses
from rods_jax.device import model
from rods_jax.device import update
from rods_jax.host import packing
from tests import test_update

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FSDP, TENSOR = 4, 2
V, D, H, P, F = 352, 48, 4, 12, 104
SLOTS, ROWS, TOKENS, CHUNK = 8, 4, 24, 4


def gathered(compiled) -> set[int]:
  """Elements of each array that an all-gather delivers."""
  program = hlo_costs.Program(compiled.as_text())
  return {
      math.prod(dims)
      for ops in program.computations.values()
      for op in ops.values()
      if op.code.startswith('all-gather') and not op.code.endswith('-done')
      for dims in hlo_costs.shapes(op.type)
  }


def compile_programs() -> dict[str, set[int]]:
  """Name -> `gathered` of the update and of the rollout programs."""
  mesh = sharding.make_mesh(1, FSDP, TENSOR)
  config = model.ModelConfig(
      vocab_size=V, d_model=D, num_layers=2, num_heads=H, num_kv_heads=2,
      head_dim=P, mlp_dim=F, scan_layers=True, remat='full',
  )
  graphdef = model.definition(config)
  made = programs.Programs(
      graphdef, mesh, config, programs.Sizes(SLOTS, (16, 40), 4, 8, 8),
      end_id=1, pad_id=0,
  )
  found = {
      name: gathered(lowered.compile())
      for name, lowered in made.lower(8).items()
  }
  params = jax.device_put(
      model.create(config, jax.random.key(0))[1],
      sharding.abstract_params(config, mesh),
  )
  return found
