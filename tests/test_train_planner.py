"""The planner of the configuration reaches the request for variants."""

import types

import pytest

from rods_jax import train
from rods_jax.host import bfcl
from tests import tiny


@pytest.mark.parametrize('planner', ['exchange', 'compose'])
def test_requests_carry_the_planner(planner):
  """A stand-in for a run: two seeds, room for four variants, two of each."""
  config = tiny.get_config()
  config.synthesis.planner = planner
  tasks = list(bfcl.load_tasks(('base',)).values())[:2]
  pool = types.SimpleNamespace(
      choose_seeds=lambda epoch: [0, 1],
      task=tasks.__getitem__,
      injection_cap=lambda: 4,
      hashes=frozenset,
  )
  run = types.SimpleNamespace(
      config=config, pool=pool, pending=None, submit_pending=lambda: None
  )
  train._request(run, 0)
  assert run.pending.planner == planner
  assert run.pending.per_seed == 2 and run.pending.seeds == tuple(tasks)
