"""What a rollout records of the sampler is what the update computes anew."""

import dataclasses
import time

import jax
import numpy as np
import pytest

from rods_jax import engine as engine_lib
from rods_jax.device import model
from rods_jax.device import update
from rods_jax.host import env
from rods_jax.host import env_pool
from rods_jax.host import packing
from rods_jax.host import rollout
from tests import scripted
from tests import worlds

TEMPERATURE = 0.7
CAPACITY = 320
GROUP = 3


class _Patient(env_pool.InProcess):
  """Tools that take until the device is through with the other rows.

  It is the same for messages without a call, and this policy makes none.
  """

  def __init__(self):
    self.pending = None  # what the device works on, untaken
    self.count = 0

  def watch(self, engine):
    decode, begin = engine.programs.decode, engine.begin_decode

    def watched(*args):
      cache, self.pending = decode(*args)
      return cache, self.pending

    def begin_watched(*args):
      finish = begin(*args)

      def take():
        self.pending = None
        return finish()

      return take

    engine.programs.decode, engine.begin_decode = watched, begin_watched

  def execute(self, batch):
    if self.pending is not None:
      end = time.monotonic() + 60
      while not self.pending.counts.is_ready():
        assert time.monotonic() < end, 'the device waits for the tool'
        time.sleep(0.01)
      self.count += 1
    return super().execute(batch)


def played(mesh, environments=env_pool.InProcess(), overlap_tokens=0):
  """(graphdef, params, trajectories) of two groups on four slots.

  More rows than slots, so that rows are refilled, and prompts are prefilled by
  some and copied by others. Messages are cut, answered, and turns go on.
  """
  tokenizer = scripted.tokenizer()
  config = model.ModelConfig(
      vocab_size=tokenizer.vocab_size, d_model=32, num_layers=2, num_heads=4,
      num_kv_heads=2, head_dim=8, mlp_dim=48, tie_embeddings=False,
  )
  graphdef, params = model.create(config, jax.random.key(0))
  head = 15 * params.head[...]  # far from uniform; an end now and then
  params.head.value = head.at[:, tokenizer.end_id].multiply(3)
  slots = 4 * mesh.size
  engine = engine_lib.Engine(
      graphdef, mesh, config, num_slots=slots, cache_buckets=(128, CAPACITY),
      extend_buckets=(8, 32), extend_rows=slots, max_new=9,
      end_id=tokenizer.end_id, pad_id=tokenizer.pad_id,
  )
  engine.reset(params, jax.random.key(1), temperature=TEMPERATURE)
  tasks = (
      scripted.files(("cat('a.txt')",), ('pwd()',)),
      worlds.make('TwitterAPI', truths=((), ('get_user_stats()',), ())),
  )
  jobs = [  # a task's id tells its siblings, who copy its prompt
      rollout.Job(
          dataclasses.replace(task, task_id=f'task {k}'), sample,
          k * GROUP + sample,
      )
      for k, task in enumerate(tasks * mesh.size)
      for sample in range(GROUP)
  ]
  if overlap_tokens:
    environments.watch(engine)
  budgets = rollout.Budgets(
      9, env.Limits(max_rounds=3), overlap_tokens=overlap_tokens
  )
  return graphdef, params, rollout.rollout(
      jobs, engine, scripted.fmt(), budgets, environments=environments
  ).trajectories


@pytest.fixture(scope='module')
def plain(mesh):
  return played(mesh)


def test_the_device_works_while_a_tool_takes_its_time(mesh, plain):
  """Nobody waits for what it makes, and it is made; the rows are the same."""
  tool = _Patient()
  rows = played(mesh, tool, overlap_tokens=3)[2]
  assert tool.count > 5
  for row, wanted in zip(rows, plain[2], strict=True):
    np.testing.assert_array_equal(row.tokens, wanted.tokens)
    np.testing.assert_allclose(row.logprobs, wanted.logprobs, atol=5e-5)
    assert row.events == wanted.events


def test_sampled_logprobs_are_those_of_the_update(plain):
  """On ragged rows, to 1e-4: the ratio of an unchanged policy is 1.

  Scored at another temperature, or one place aside, they are apart by tenths.
  """
  graphdef, params, rows = plain
  groups = [rows[i : i + GROUP] for i in range(0, len(rows), GROUP)]
  batch = packing.pack(
      groups, range(len(groups)), buckets=(192, CAPACITY), microbatch_rows=2,
      group_size=GROUP,
  )
  assert len({len(row.tokens) for row in rows}) > 2  # ragged
  assert all(row.num_rounds > 2 for row in rows)
  found = {}
  for temperature in (TEMPERATURE, 1.0):
    score = update.make_score_fn(graphdef, temperature)
    found[temperature] = packing.unpack(
        batch.packed, score(params, batch.packed)
    )
    assert set(found[temperature]) == set(range(len(rows)))
  for i, row in enumerate(rows):
    sampled = row.logprobs[row.loss_mask]
    assert sampled.std() > 0.3
    np.testing.assert_allclose(found[TEMPERATURE][i], sampled, atol=1e-4)
    assert abs(found[1.0][i] - sampled).max() > 0.1
    assert not row.logprobs[~row.loss_mask].any()
