"""Planner and language of the configuration reach the request for variants."""

import json
import types

import pytest

from rods_jax import errors
from rods_jax import run as run_lib
from rods_jax import train
from rods_jax.host import bfcl
from rods_jax.host.synthesis.compose.records import Gates
from rods_jax.host.synthesis.llm import client
from rods_jax.host.synthesis.llm import records
from tests import tiny


def requested(**changes):
  """(request, config, seeds) of a stand-in for a run: two seeds, room for four
  variants, two of each."""
  config = tiny.get_config()
  config.synthesis.update(changes)
  tasks = list(bfcl.load_tasks(('base',)).values())[:2]
  pool = types.SimpleNamespace(
      choose_seeds=lambda epoch: [0, 1],
      task=tasks.__getitem__,
      injection_cap=lambda: 4,
      hashes=frozenset,
      active_ids=[1],
      waiting=tasks[:1],
  )
  run = types.SimpleNamespace(
      config=config, pool=pool, pending=None, submit_pending=lambda: None
  )
  train._request(run, 0)
  return run.pending, config, tuple(tasks)


@pytest.mark.parametrize('planner', ['exchange', 'compose'])
def test_requests_carry_the_planner_and_its_gates(planner):
  pending, _, tasks = requested(
      planner=planner,
      max_class_distance=0.25, min_cross_turn=0.75, min_novelty=0.625,
  )  # pyformat: disable
  assert pending.planner == planner and pending.llm is None
  assert pending.gates == Gates(0.25, 0.75, 0.625)
  assert pending.per_seed == 2 and pending.seeds == tasks


def test_composed_tasks_must_be_unlike_the_pool():
  assert requested(planner='exchange')[0].known == ()
  pending, _, tasks = requested(planner='compose')
  assert [task.turns for task in pending.known] == [
      tasks[1].turns, tasks[0].turns,  # active, waiting
  ]  # pyformat: disable
  assert not any(task.initial_config for task in pending.known)


def test_requests_carry_the_server_and_not_its_key(monkeypatch):
  monkeypatch.setenv('OPENAI_API_KEY', 'sk-secret')
  pending, config, _ = requested(planner='compose', language='openai')
  assert records.LlmConfig(**pending.llm).base_url == (
      config.synthesis.llm.base_url
  )
  assert 'secret' not in json.dumps(pending.to_json())
  assert 'secret' not in config.to_json()


def test_a_run_starts_only_with_the_client_that_it_needs(
    tmp_path, monkeypatch
):
  config = tiny.get_config()
  config.synthesis.update(planner='compose', language='openai')
  monkeypatch.setattr(
      client.importlib.util, 'find_spec', lambda name: None
  )
  with pytest.raises(errors.UserError, match='requirements-llm.txt'):
    run_lib.Run(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
