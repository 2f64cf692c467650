"""A run from a Hugging Face folder, made here with random parameters."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import tokenizers
import torch
import transformers

from rods_jax import build
from rods_jax import errors
from rods_jax import evaluate
from rods_jax import export
from rods_jax import huggingface
from rods_jax import huggingface_config
from rods_jax import pretrained
from rods_jax import run as run_lib
from rods_jax import settings
from rods_jax import train
from rods_jax import warm_start
from rods_jax import weights
from rods_jax import workdir as workdir_lib
from rods_jax.host import bfcl
from rods_jax.host import env
from tests import chat_folders
from tests import test_warm_start
from tests import tiny

_ROOT = pathlib.Path(__file__).parents[1]
SIZE = 4000  # of the tokenizer


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> pathlib.Path:
  """Qwen3 with two layers; more rows in the embedding than tokens."""
  path = tmp_path_factory.mktemp('qwen3')
  config = transformers.Qwen3Config(
      vocab_size=SIZE + 96, hidden_size=32, num_hidden_layers=2,
      num_attention_heads=4, num_key_value_heads=2, head_dim=16,
      intermediate_size=48, max_position_embeddings=4096,
      tie_word_embeddings=True, bos_token_id=None, eos_token_id=SIZE + 2,
      rope_parameters={'rope_type': 'default', 'rope_theta': 1e6},
  )
  torch.manual_seed(3)
  transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
  made = tokenizers.Tokenizer.from_str(chat_folders.core(SIZE, words=False))
  chat_folders.write(path, 'qwen3', made)
  return path


def config_from(folder, **fields):
  config = tiny.get_config()
  with config.unlocked():
    config.model.init_from = str(folder)
    config.data.update(
        categories=('miss_param',), num_seed_tasks=2, max_task_tokens=1000,
    )
    config.rollout.update(
        group_size=2, groups_per_batch=2, num_slots=4,
        cache_buckets=(1024, 1536), extend_buckets=(128,), extend_rows=2,
        max_message_tokens=8,
    )
    config.grpo.update(
        minibatch_groups=2, microbatch_rows=1, length_buckets=(1536,),
        kl_coef=0.0, skip_flat_groups=False,
    )
    config.train.num_epochs = 1
    config.synthesis.enabled = False
    config.eval.update(num_variants=0, num_heldout=1, before=False)
    config.mesh.update(data=1, fsdp=1, tensor=1)
    config.update_from_flattened_dict(
        {name.replace('__', '.'): value for name, value in fields.items()}
    )
  settings.validate(config)
  return config


@pytest.fixture(scope='module')
def finished(folder, tmp_path_factory):
  """(workdir, trajectories) of a run of one update, by main's own path."""
  workdir = tmp_path_factory.mktemp('run')
  seen = []
  play = train.play
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
        train, 'play', lambda *a: seen.append(play(*a)) or seen[-1]
    )
    assert train.train(config_from(folder), workdir) == 0
  return workdir, [t for trajectories in seen for t in trajectories]


def test_a_run_trains_and_evaluates(folder, finished):
  workdir, trajectories = finished
  assert len(trajectories) == 4  # two tasks, two of each
  last = (workdir / 'metrics.jsonl').read_text().splitlines()[-1]
  metrics = json.loads(last)
  assert metrics['step'] == 1 and metrics['loss/grad_norm'] > 0
  # What the training path computes for the sampled ids, and the sampler did.
  assert metrics['loss/mismatch'] < 1e-4
  assert metrics['rollout/sampled_tokens'] == sum(
      int(t.loss_mask.sum()) for t in trajectories
  ) / len(trajectories)
  assert evaluate.evaluate_run(config_from(folder), workdir) == 0
  assert json.loads((workdir / 'eval.json').read_text())['step'] == 1


def test_the_policy_is_exported(folder, finished, capsys):
  """transformers loads it; its parameters are those of the checkpoint."""
  workdir, _ = finished
  config = config_from(folder)
  (workdir / 'exported').touch()  # no folder
  with pytest.raises(errors.UserError, match='^Cannot write to .*exported/1'):
    export.export_run(config, workdir)
  (workdir / 'exported').unlink()
  assert export.export_run(config, workdir) == 0
  out = workdir / 'exported' / '1'
  assert capsys.readouterr().out == f'Wrote {out}\n'
  made = transformers.AutoModelForCausalLM.from_pretrained(out)
  assert transformers.AutoTokenizer.from_pretrained(out).vocab_size == SIZE
  table = made.get_input_embeddings().weight.detach().float().numpy()
  policy = build.build_policy(pretrained.resolve(config))
  step, params = run_lib.latest_params(
      pretrained.resolve(config), policy, workdir
  )
  assert step == 1
  np.testing.assert_array_equal(table, np.asarray(params['embedding'][...]))
  before = huggingface.load(folder, weights.abstract_params(policy))
  assert (table != np.asarray(before['embedding'][...])).any()
  with pytest.raises(errors.UserError, match='exported/1 exists already'):
    export.export_run(config, workdir)


def test_what_cannot_be_exported(folder, tmp_path):
  with pytest.raises(errors.UserError, match='holds no checkpoint to export'):
    export.export_run(config_from(folder), tmp_path)
  with pytest.raises(errors.UserError, match='needs the Hugging Face folder'):
    export.export_run(tiny.get_config(), tmp_path)


def test_rows_are_in_the_folders_format(folder, finished):
  """Header and ids of the first prompt are as transformers renders them."""
  fmt = build.build_policy(config_from(folder)).fmt
  reference = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
  tasks = bfcl.load_tasks(('miss_param',))
  for t in finished[1]:
    task = tasks[t.task_id]
    messages, schemas = fmt.opening(env.offered(task)[0], task.turns[0].user)
    prompt = reference.apply_chat_template(
        messages, tools=schemas, add_generation_prompt=True,
        enable_thinking=False, return_dict=False,
    )
    assert t.tokens[: len(prompt)].tolist() == prompt
    first = int(np.flatnonzero(t.loss_mask)[0])
    assert first == len(prompt)
    # Ids without a token, which only fill the embedding, are sampled too.
    assert t.tokens.max() < SIZE + 96


def test_the_workdir_holds_the_shape_of_the_folder(folder, finished):
  """tiny's own shape has 2 heads and separate embeddings."""
  wanted = {
      'd_model': 32, 'num_layers': 2, 'num_heads': 4, 'num_kv_heads': 2,
      'head_dim': 16, 'mlp_dim': 48, 'tie_embeddings': True, 'qk_norm': True,
      'qkv_bias': False, 'rope_theta': 1e6, 'previous_token': False,
  }
  written = json.loads((finished[0] / 'config.json').read_text())['model']
  assert written.items() >= wanted.items()
  given = tiny.get_config().model
  assert given.num_heads == 2 and not given.tie_embeddings
  with pytest.raises(errors.UserError, match='another configuration: rollout'):
    workdir_lib.check(
        finished[0],
        pretrained.resolve(config_from(folder, rollout__thinking=True)),
    )


def test_parameters_are_the_folders(folder):
  config = config_from(folder)
  policy = build.build_policy(config)
  assert policy.config.vocab_size == SIZE + 96
  assert policy.tokenizer.vocab_size == SIZE + 9  # control tokens
  params = weights.initial_params(config, policy)
  made = transformers.AutoModelForCausalLM.from_pretrained(folder)
  want = made.model.embed_tokens.weight.detach().numpy()
  np.testing.assert_array_equal(np.asarray(params.embedding.get_value()), want)


def test_the_config_decides_how_the_folders_shape_is_computed(folder):
  config = config_from(folder, model__dtype='bfloat16', model__remat='full')
  found = build.build_policy(config).config
  assert (found.dtype, found.remat) == ('bfloat16', 'full')
  plain = huggingface_config.model_config(folder)
  assert dataclasses.replace(found, dtype='float32', remat='none') == plain
  assert set(pretrained.SHAPE) < set(config.model.to_dict())


def test_the_mesh_is_checked_against_the_shape_of_the_folder(
    folder, monkeypatch
):
  """The config's own 6 heads could be cut in 3, the folder's 4 cannot."""
  config = config_from(folder, model__num_heads=6, model__num_kv_heads=3)
  shape = {'data': 1, 'fsdp': 1, 'tensor': 3}
  monkeypatch.setattr(
      build.sharding, 'make_mesh',
      lambda **_: types.SimpleNamespace(shape=shape),
  )
  with pytest.raises(errors.UserError, match='model.num_heads is 4;'):
    build.build_policy(config)


def test_folders_are_told_apart(folder, finished, tmp_path):
  of = lambda source: pretrained.folder(config_from(folder, model__init_from=(
      str(source))))
  assert of(folder) == folder
  assert of(finished[0]) is None  # a run has a config.json too
  assert of(finished[0] / 'checkpoints') is None
  assert of(tmp_path) is None and of(tmp_path / 'none') is None
  assert of('embedded') is None and of('random') is None
  (tmp_path / 'config.json').write_text('{"architectures": ["X"]}')
  assert of(tmp_path) == tmp_path


def copied(folder, tmp_path, *left_out):
  ignore = lambda _, names: [name for name in names if name in left_out]
  return shutil.copytree(folder, tmp_path / 'copy', ignore=ignore)


@pytest.mark.parametrize(
    'name', ['config.json', 'tokenizer.json', 'tokenizer_config.json']
)
def test_a_missing_file_is_named_in_one_line(folder, tmp_path, name):
  path = copied(folder, tmp_path, name)
  with pytest.raises(errors.UserError, match=f'has no {name}') as error:
    build.build_policy(config_from(path))
  assert str(path) in str(error.value) and '\n' not in str(error.value)


def test_a_tokenizer_of_another_model(folder, tmp_path):
  """ids up to 4008 do not fit into 4000 rows."""
  path = copied(folder, tmp_path)
  raw = json.loads((path / 'config.json').read_text())
  (path / 'config.json').write_text(json.dumps(raw | {'vocab_size': SIZE}))
  with pytest.raises(errors.UserError, match='ids up to 4008, but vocab_size'):
    build.build_policy(config_from(path))


def test_the_small_policy_does_not_think():
  config = tiny.get_config()
  with config.unlocked():
    config.rollout.thinking = True
  with pytest.raises(errors.UserError, match='does not think'):
    build.build_policy(config)


def test_a_run_that_began_from_a_folder_is_no_start_for_another(
    folder, finished
):
  """Its checkpoints lack the tokenizer; the arrays failed to fit somewhere."""
  config = config_from(finished[0])
  policy = build.build_policy(config)
  with pytest.raises(errors.UserError, match='began from the Hugging') as error:
    weights.initial_params(config, policy)
  text = str(error.value)
  assert str(folder) in text and str(finished[0]) in text and '\n' not in text


def test_a_warm_start_makes_its_own_tokenizer(folder, tmp_path):
  """It once synthesized and learned a tokenizer first, and then failed."""
  config = test_warm_start.get_config(tmp_path / 'assets')
  with config.unlocked():
    config.model.init_from = str(folder)
  with pytest.raises(errors.UserError, match="so use 'random'"):
    warm_start.warm_start(config, tmp_path / 'workdir')
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('fields, given, message', [
    ({'model__num_heads': 8}, ['model.num_heads'],
     r'config.model.num_heads is 8, but .* decides it: 4. Leave it out.'),
    ({'model__num_heads': 8}, ['rollout.num_slots'], None),  # the config's
    ({'model__num_heads': 4}, ['model.num_heads'], None),  # the same
    ({'model__dtype': 'bfloat16'}, ['model.dtype'], None),  # not of the shape
])
def test_a_shape_given_by_hand_is_not_dropped(folder, fields, given, message):
  config = config_from(folder, **fields)
  if message is None:
    pretrained.check_given(config, given)
    return
  with pytest.raises(errors.UserError, match=message):
    pretrained.check_given(config, given)


def test_the_compiled_programs_have_the_shape_of_the_folder(folder):
  """The folder was dropped, and the config's own 8 heads compiled.

  In a process of its own, because the module defines --config as main.py does.
  """
  code = (
      'import sys, types, jax\n'
      'from experiments import aot\n'
      'from tests import test_pretrained\n'
      'aot.topologies = types.SimpleNamespace(get_topology_desc=lambda *_: (\n'
      '    types.SimpleNamespace(devices=jax.devices()[:1])))\n'
      'config = test_pretrained.config_from(sys.argv[1], model__num_heads=8)\n'
      'made = aot.make_setup(config, "v5e:4x4", 77).model\n'
      'print(made.num_heads, made.vocab_size, made.dtype)\n'
  )
  run = subprocess.run(
      [sys.executable, '-c', code, str(folder)], cwd=_ROOT,
      capture_output=True, text=True, env=os.environ | {'JAX_PLATFORMS': 'cpu'},
  )
  assert run.stdout.split() == ['4', str(SIZE + 96), 'float32'], run.stderr
