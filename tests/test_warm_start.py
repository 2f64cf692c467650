"""The warm start: reproducible, loadable, and blind to what is held out."""

import jax
import ml_collections
import numpy as np
import pytest

from configs import warm_start as warm_start_config
from rods_jax import build
from rods_jax import warm_start
from rods_jax import weights
from rods_jax.host import tokenizer as tokenizer_lib
from rods_jax.host.synthesis import pipeline
from tests import tiny

VOCAB_SIZE = 700  # 256 bytes, 128 tools, their parameters, some merges


def get_config(output) -> ml_collections.ConfigDict:
  """Two steps of a tiny model."""
  c = ml_collections.ConfigDict(warm_start_config.get_config().to_dict())
  run = tiny.get_config()
  for section in ('data', 'model', 'rollout', 'eval', 'mesh'):
    c[section].update(run[section])
  c.rollout.cache_buckets = (512, 1024)
  c.grpo.length_buckets = (512, 1024)
  c.warm_start.update(
      vocab_size=VOCAB_SIZE, num_steps=2, rows_per_step=4, warmup_steps=1,
      microbatch_rows=2, tokenizer_variants=1, log_every=1, output=str(output),
  )
  return c.lock()


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  folder = tmp_path_factory.mktemp('warm_start')
  config = get_config(folder / 'assets')
  assert warm_start.warm_start(config, folder / 'workdir') == 0
  return config, folder


def test_what_it_writes_loads(made):
  config, folder = made
  tokenizer = tokenizer_lib.Tokenizer.load(folder / 'assets/tokenizer.json')
  assert tokenizer.vocab_size == VOCAB_SIZE
  policy = build.build_policy(config, tokenizer)
  path = folder / 'assets/policy.safetensors'
  params = weights.load(path, weights.abstract_params(policy))
  assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(params))
  assert (folder / 'workdir/eval.json').exists()
  assert [r['step'] for r in tiny.rows(folder / 'workdir')] == [1, 2]


def test_the_same_again_gives_the_same_bytes(made, tmp_path):
  """The file may name its configuration, but for the folder it goes to."""
  config, folder = made
  names = ('tokenizer.json', 'policy.safetensors')
  first = [(folder / 'assets' / name).read_bytes() for name in names]
  assert warm_start.warm_start(config, tmp_path) == 0
  again = [(folder / 'assets' / name).read_bytes() for name in names]
  assert first == again


def test_its_stream_never_meets_an_evaluation(tmp_path):
  """Variants of training scenarios, on training's side of the split."""
  config = get_config(tmp_path)
  fmt = build.build_policy(config).fmt
  tasks = build.build_tasks(config, fmt)
  heldout = {t.scenario for t in tasks.heldout.values()}
  evaluated = {
      t.content_hash()
      for some in build.evaluation_tasks(config, tasks, fmt).values()
      for t in some
  }
  for name in ('tokenizer', 'warm_start'):
    source = warm_start.variants(config, tasks.seeds, name)
    shown = [next(source) for _ in range(20)]
    assert not any(pipeline.is_heldout(task) for task in shown)
    assert not {task.scenario for task in shown} & heldout
    assert not {task.content_hash() for task in shown} & evaluated


def test_the_share_of_variants_of_variants(tmp_path):
  """A variant's parent is its seed, unless it is varied once more."""
  for share, generated in ((0.0, False), (1.0, True)):
    config = get_config(tmp_path)
    config.warm_start.second_share = share
    seeds = build.build_tasks(config).seeds
    source = warm_start.variants(config, seeds, 'warm_start')
    parents = [next(source).parent for _ in range(10)]
    assert {parent.startswith('syn_') for parent in parents} == {generated}


def test_the_share_of_renamed_rows(tmp_path):
  """With every row renamed the calls differ, their lengths do not."""
  calls = {}
  for share in (0.0, 1.0):
    config = get_config(tmp_path)
    config.warm_start.rename_share = share
    policy = build.build_policy(config)
    seeds = build.build_tasks(config).seeds
    source = warm_start.rows(config, policy, seeds)
    made = (next(source) for _ in range(10))
    calls[share] = [tokens[mask] for tokens, mask in made]
  pairs = list(zip(calls[0.0], calls[1.0]))
  assert all(len(a) == len(b) for a, b in pairs)
  assert sum((a != b).any() for a, b in pairs) >= 8


def test_the_share_of_turns_that_stop_early(tmp_path):
  """Rows of the same variants, whole and cut: a cut one is a beginning."""
  rows = {}
  for share in (0.0, 1.0):
    config = get_config(tmp_path)
    config.warm_start.update(early_stop_share=share, rename_share=0.0)
    policy = build.build_policy(config)
    seeds = build.build_tasks(config).seeds
    source = warm_start.rows(config, policy, seeds)
    rows[share] = [next(source)[0] for _ in range(10)]
  assert all(len(a) <= len(b) for a, b in zip(rows[1.0], rows[0.0]))
  assert sum(len(a) < len(b) for a, b in zip(rows[1.0], rows[0.0])) >= 5
