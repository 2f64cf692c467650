"""The planner of the configuration reaches the request for variants."""

import types

import pytest

from rods_jax import train
from rods_jax.host import bfcl
from rods_jax.host.synthesis.compose import records
from tests import tiny


@pytest.mark.parametrize('planner', ['exchange', 'compose'])
def test_requests_carry_the_planner_and_its_gates(planner):
  """A stand-in for a run: two seeds, room for four variants, two of each."""
  config = tiny.get_config()
  config.synthesis.update(
      planner=planner,
      max_class_distance=0.25, min_cross_turn=0.75, min_novelty=0.625,
  )  # pyformat: disable
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
  assert run.pending.gates == records.Gates(0.25, 0.75, 0.625)
  assert run.pending.per_seed == 2 and run.pending.seeds == tuple(tasks)
