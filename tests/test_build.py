"""Splits, seed tasks and evaluation sets."""

import collections
import types

import numpy as np
import pytest

from rods_jax import build
from rods_jax import errors
from rods_jax.host import demonstrate
from rods_jax.host.synthesis import pipeline
from tests import tiny


def config_with(**fields):
  config = tiny.get_config()
  with config.unlocked():
    config.update_from_flattened_dict(
        {k.replace('__', '.'): v for k, v in fields.items()}
    )
  return config


def evaluation_sets(config):
  fmt = build.build_policy(config).fmt
  return build.evaluation_tasks(config, build.build_tasks(config, fmt), fmt)


def test_only_tasks_within_the_budgets_are_seeds_and_evaluated():
  """Half of the ground-truth dialogues are longer than 450 tokens."""
  config = config_with(data__num_seed_tasks=0, data__max_task_tokens=450)
  fmt = build.build_policy(config).fmt
  everything = build.build_tasks(config)
  tasks = build.build_tasks(config, fmt)
  assert 0 < len(tasks.seeds) < len(everything.seeds)
  sets = build.evaluation_tasks(config, tasks, fmt)
  for task in [*tasks.seeds, *sum(sets.values(), [])]:
    assert len(demonstrate.demonstrate(task, fmt).tokens) <= 450


def test_a_message_over_the_budget_keeps_a_task_out():
  """With 3 tokens a message is at most one call without arguments."""
  config = config_with(data__num_seed_tasks=0, data__max_message_tokens=3)
  fmt = build.build_policy(config).fmt
  with pytest.raises(errors.UserError, match='max_task_tokens'):
    build.build_tasks(config, fmt)


def test_a_scenario_is_on_one_side_only():
  tasks = build.build_tasks(
      config_with(
          data__categories=('base', 'miss_func', 'miss_param', 'long_context'),
          data__num_seed_tasks=0,
      )
  )
  train = {t.scenario for t in tasks.train.values()}
  heldout = {t.scenario for t in tasks.heldout.values()}
  assert train and heldout and not train & heldout
  assert len(train) <= 100
  assert {t.task_id for t in tasks.seeds} == set(tasks.train)


def test_seeds_are_whole_scenarios():
  """6 tasks of 2 categories: 3 scenarios, unless a fault took a task."""
  tasks = build.build_tasks(config_with())
  assert len(tasks.seeds) == 6
  count = collections.Counter(t.scenario for t in tasks.seeds)
  assert len(count) in (3, 4)
  assert set(count) <= {t.scenario for t in tasks.train.values()}


def test_more_seeds_than_tasks_is_one_line():
  with pytest.raises(errors.UserError, match='0 takes all'):
    build.build_tasks(config_with(data__num_seed_tasks=5000))


def test_evaluation_sets_do_not_depend_on_the_seed():
  sets = []
  for rng_seed in (0, 1):
    config = config_with(rng_seed=rng_seed, eval__num_variants=4)
    sets.append(evaluation_sets(config))
  assert sets[0] == sets[1]
  assert {name: len(tasks) for name, tasks in sets[0].items()} == {
      'heldout_variants': 4,
      'heldout_scenarios': 2,
  }


def test_evaluation_variants_are_of_seeds_and_of_the_evaluations_side():
  config = config_with(eval__num_variants=12)
  variants = evaluation_sets(config)['heldout_variants']
  fmt = build.build_policy(config).fmt
  seeds = {t.task_id for t in build.build_tasks(config, fmt).seeds}
  assert variants
  assert all(pipeline.is_heldout(v) and v.parent in seeds for v in variants)


def test_a_cut_takes_every_seed_once_before_any_twice():
  """6 varied seeds, 7 variants wanted: 3 made of each, 1 or 2 kept.

  A cut by chance alone would leave some seeds out.
  """
  config = config_with(eval__num_variants=7)
  variants = evaluation_sets(config)['heldout_variants']
  count = collections.Counter(v.parent for v in variants)
  assert len(variants) == 7
  assert sorted(count.values()) == [1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize('name', ['num_variants', 'num_heldout'])
def test_an_evaluation_set_may_be_empty(name):
  config = config_with(**{f'eval__{name}': 0})
  sets = evaluation_sets(config)
  assert sorted(map(len, sets.values())) == [0, 2]


def test_a_mesh_that_does_not_fit_is_one_line():
  with pytest.raises(errors.UserError, match='config.mesh'):
    build.build_mesh(config_with(mesh__data=3, mesh__tensor=5))


@pytest.mark.parametrize(
    'sizes, fields, named',
    [
        ((2, 1, 1), {'grpo__microbatch_rows': 3}, 'grpo.microbatch_rows is 3'),
        ((2, 2, 1), {'rollout__num_slots': 6}, 'rollout.num_slots is 6'),
        ((1, 1, 4), {}, 'model.num_heads is 2'),
    ],
)
def test_a_count_that_the_mesh_cannot_split_is_one_line(
    monkeypatch, sizes, fields, named
):
  """3 rows over 2 devices once ended in a traceback at the first update."""
  shape = dict(zip(('data', 'fsdp', 'tensor'), sizes))
  monkeypatch.setattr(
      build.sharding, 'make_mesh',
      lambda **_: types.SimpleNamespace(shape=shape),
  )
  with pytest.raises(errors.UserError, match=named):
    build.build_mesh(config_with(**fields))


def test_a_vocabulary_that_the_mesh_cannot_cut_is_one_line(monkeypatch):
  """It ended in a traceback when the parameters were placed."""
  size = build.build_policy(config_with()).config.vocab_size
  mesh = types.SimpleNamespace(shape={'tensor': size - 1})
  monkeypatch.setattr(build, 'build_mesh', lambda config: mesh)
  wanted = f'vocabulary of {size} tokens cannot be cut in {size - 1}; choose'
  with pytest.raises(errors.UserError, match=wanted):
    build.build_policy(config_with())


def _devices(number, platform):
  devices = np.array([types.SimpleNamespace(platform=platform)] * number)
  return types.SimpleNamespace(size=number, devices=devices)


@pytest.mark.parametrize(
    'wanted, number, platform, slots, found',
    [
        (0, 1, 'cpu', 16, 2),
        (0, 1, 'cpu', 15, 1),  # cannot be halved
        (0, 8, 'cpu', 16, 1),
        (0, 1, 'gpu', 16, 1),
        (4, 1, 'gpu', 16, 4),
        (1, 8, 'tpu', 16, 1),
    ],
)
def test_how_many_engines_share_the_slots(
    wanted, number, platform, slots, found
):
  config = config_with(rollout__num_engines=wanted)
  local = _devices(number, platform)
  assert build.num_engines(config, local, slots) == found


@pytest.mark.parametrize(
    'wanted, number, message',
    [(2, 8, '8 devices, which work as one'), (3, 1, 'a multiple of')],
)
def test_engines_that_cannot_be_are_one_line(wanted, number, message):
  config = config_with(rollout__num_engines=wanted)
  with pytest.raises(errors.UserError, match=message) as error:
    build.num_engines(config, _devices(number, 'cpu'), 16)
  assert 'rollout.num_engines' in str(error.value)
  assert '\n' not in str(error.value)


def test_engines_split_the_slots_of_the_configuration():
  config = config_with(rollout__num_slots=12, rollout__num_engines=3)
  engines = build.build_engines(config, build.build_policy(config))
  assert [e.num_slots for e in engines.each] == [4, 4, 4]
  assert len({id(e.programs) for e in engines.each}) == 1
