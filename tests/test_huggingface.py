"""Hugging Face folders: the same logits, the same tensors, on any mesh."""

import dataclasses
import json
import os
import pathlib
import pickle
import subprocess
import sys

import jax
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from rods_jax import engine as engine_lib
from rods_jax import errors
from rods_jax import huggingface
from rods_jax import huggingface_config
from rods_jax import sharding
from rods_jax.device import model
from tests import families

_ROOT = pathlib.Path(__file__).resolve().parents[1]
LENGTHS = np.array([40, 1, 17, 33])
CASES = [(f, tied) for f in families.FAMILIES for tied in (False, True)]


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """(family, tied) -> (the model in transformers, its folder)."""
  found = {}
  for case in CASES:
    made = families.reference(*case)
    found[case] = made, families.save(
        made, tmp_path_factory.mktemp('family') / 'model'
    )
  return found


def batch():
  """Ragged rows, right padded with tokens that must not matter."""
  rng = np.random.default_rng(3)
  return rng.integers(0, families.VOCAB, (len(LENGTHS), 40))


def expected(made, tokens) -> np.ndarray:
  mask = torch.tensor(np.arange(40) < LENGTHS[:, None]).long()
  with torch.no_grad():
    return made(torch.tensor(tokens), attention_mask=mask).logits.numpy()


@pytest.mark.parametrize('family, tied', CASES)
def test_logits_are_those_of_transformers(family, tied, saved, mesh):
  made, folder = saved[family, tied]
  config, params = families.load(folder, mesh)
  tokens = batch()
  got = families.logits(config, params, tokens, LENGTHS)
  want = expected(made, tokens)
  assert want.std() > 0.5  # so that 1e-4 says something
  for row, length in enumerate(LENGTHS):
    np.testing.assert_allclose(
        got[row, :length], want[row, :length], rtol=0, atol=1e-4
    )


def test_options_of_the_families_matter(saved, mesh):
  """The parity above would be worth nothing if these were zeros and ones."""
  tokens, lengths = batch(), LENGTHS
  config, params = families.load(saved['llama3', False][1], mesh)
  got = families.logits(config, params, tokens, lengths)
  plain = dataclasses.replace(config, rope_scaling=None)
  other = families.logits(plain, params, tokens, lengths)
  assert np.abs(got - other)[0].max() > 0.1
  for family, names in (
      ('qwen2', ('q_bias', 'k_bias', 'v_bias')),
      ('qwen3', ('q_norm', 'k_norm')),
  ):
    _, params = families.load(saved[family, False][1], mesh)
    for name in names:
      value = params['blocks'][1]['attention'][name].get_value()
      assert np.std(value) > 0.1, name


@pytest.mark.parametrize('family', families.FAMILIES)
def test_the_cached_path_continues_like_transformers(family, saved, mesh):
  """Greedy tokens through prefill, cache and decoding; and their logprobs."""
  made, folder = saved[family, True]
  config, params = families.load(folder, mesh)
  engine = engine_lib.Engine(
      families.graphdef(config), mesh, config, num_slots=8,
      cache_buckets=(16, 64), extend_buckets=(8,), extend_rows=2, max_new=12,
      end_id=families.VOCAB - 1, pad_id=0,
  )
  engine.reset(params, jax.random.key(0), temperature=1.0, greedy=True)
  prompts = [row[:n] for row, n in zip(batch(), LENGTHS)]
  for slot in range(len(prompts)):
    engine.start(slot, slot)
  engine.extend(dict(enumerate(prompts)))
  done = engine.decode({slot: 12 for slot in range(len(prompts))})
  for slot, prompt in enumerate(prompts):
    new = done[slot]
    row = np.concatenate([prompt, new.tokens])
    with torch.no_grad():
      scores = made(torch.tensor(row[None])).logits[0, len(prompt) - 1 : -1]
    np.testing.assert_array_equal(scores.argmax(-1).numpy(), new.tokens)
    logprobs = scores.log_softmax(-1).amax(-1).numpy()
    np.testing.assert_allclose(new.logprobs, logprobs, rtol=0, atol=1e-4)
    assert len(new.tokens) == 12 or new.finished


def same_tensors(one, other) -> None:
  """As torch sees them: names, dtypes and every bit."""
  one, other = one.state_dict(), other.state_dict()
  assert one.keys() == other.keys()
  for name, value in one.items():
    assert value.dtype == other[name].dtype, name
    assert torch.equal(value, other[name]), name


@pytest.mark.parametrize('family, tied', CASES)
def test_export_gives_the_tensors_back(family, tied, saved, mesh, tmp_path):
  made, folder = saved[family, tied]
  config, params = families.load(folder, mesh)
  out = tmp_path / 'a' / 'exported'
  huggingface.export(out, params, config, folder)
  again = transformers.AutoModelForCausalLM.from_pretrained(out)
  same_tensors(made, again)
  assert made.config.to_diff_dict() == again.config.to_diff_dict()
  words = transformers.PreTrainedTokenizerFast.from_pretrained(out)
  assert words('w5 w7').input_ids == [5, 7]
  names = {path.name for path in out.iterdir()}
  assert names == {path.name for path in folder.iterdir()}
  assert not list(out.parent.glob('*.partial'))


def test_several_files_with_an_index(saved, mesh, tmp_path):
  made, folder = saved['qwen3', False]
  parts = families.save(made, tmp_path / 'parts', max_shard_size='20KB')
  assert len(list(parts.glob('model-*.safetensors'))) > 2
  one, other = (families.arrays(f, mesh) for f in (folder, parts))
  for a, b in zip(one, other, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
@pytest.mark.parametrize('key', ['dtype', 'torch_dtype'])
def test_half_precision_comes_back_as_it_was(dtype, key, mesh, tmp_path):
  made = families.reference('qwen2', True).to(getattr(torch, dtype))
  folder = families.save(made, tmp_path / 'half')
  edit(folder, lambda c: c.update({key: c.pop('dtype')}))
  config, params = families.load(folder, mesh)
  assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype('float32')}
  huggingface.export(tmp_path / 'out', params, config, folder)
  assert json.loads((tmp_path / 'out/config.json').read_text())[key] == dtype
  again = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path / 'out', dtype='auto'
  )
  same_tensors(made, again)
  huggingface.export(tmp_path / 'wide', params, config, folder, 'float32')
  wide = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path / 'wide', dtype='auto'
  )
  same_tensors(made.float(), wide)


def test_the_structure_is_that_of_the_model(saved, mesh):
  config, params = families.load(saved['qwen2', False][1], mesh)
  made = model.create(config, jax.random.key(0))[1]
  assert jax.tree.structure(params) == jax.tree.structure(made)
  jax.tree.map(np.testing.assert_equal, *(
      jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)
      for tree in (params, made)
  ))


def reload_on_eight(folder: pathlib.Path, out: pathlib.Path) -> None:
  """In a process of 8 devices: loads, checks the cut, exports."""
  mesh = sharding.make_mesh(2, 2, 2)
  config, params = families.load(folder, mesh)
  gate = params['blocks'][0]['mlp']['gate'].get_value()
  assert {s.data.shape for s in gate.addressable_shards} == {(16, 24)}
  q = params['blocks'][0]['attention']['q'].get_value()
  assert {s.data.shape for s in q.addressable_shards} == {(16, 2, 16)}
  huggingface.export(out / 'exported', params, config, folder)
  leaves = [np.asarray(x) for x in jax.tree.leaves(params)]
  (out / 'arrays.pickle').write_bytes(pickle.dumps(leaves))


def test_eight_devices_get_the_same_parameters(saved, mesh, tmp_path):
  """(data, fsdp, tensor) = (2, 2, 2): each device reads its own part."""
  made, folder = saved['qwen3', False]
  env = {
      **os.environ,
      'XLA_FLAGS': '--xla_force_host_platform_device_count=8',
      'JAX_PLATFORMS': 'cpu',
  }
  code = (
      'import pathlib, sys\n'
      'from tests import test_huggingface as t\n'
      't.reload_on_eight(*map(pathlib.Path, sys.argv[1:]))\n'
  )
  subprocess.run(
      [sys.executable, '-c', code, str(folder), str(tmp_path)],
      cwd=_ROOT, env=env, check=True, timeout=300,
  )
  eight = pickle.loads((tmp_path / 'arrays.pickle').read_bytes())
  for a, b in zip(families.arrays(folder, mesh), eight, strict=True):
    np.testing.assert_array_equal(a, b)
  again = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path / 'exported'
  )
  same_tensors(made, again)


# What can be wrong with a folder: one line that names it.


@pytest.fixture
def folder(tmp_path):
  """A folder of its own to spoil: untied, in one file."""
  return families.save(families.reference('llama3', False), tmp_path / 'model')


def edit(folder: pathlib.Path, change) -> None:
  config = json.loads((folder / 'config.json').read_text())
  change(config)
  (folder / 'config.json').write_text(json.dumps(config))


def retensor(folder: pathlib.Path, change) -> None:
  file = str(folder / 'model.safetensors')
  tensors = safetensors.torch.load_file(file)
  change(tensors)
  safetensors.torch.save_file(tensors, file, {'format': 'pt'})


def refusal(folder: pathlib.Path, mesh) -> str:
  with pytest.raises(errors.UserError) as error:
    families.load(folder, mesh)
  text = str(error.value)
  assert '\n' not in text and str(folder) in text
  return text


def double(tensors, name):
  tensors[name] = torch.cat([tensors[name]] * 2)


NORM = 'model.layers.1.input_layernorm.weight'
BIAS = 'model.layers.0.self_attn.o_proj.bias'


@pytest.mark.parametrize(
    'change, words',
    [
        (lambda t: t.pop(NORM), ('lacks', NORM)),
        (lambda t: t.pop('lm_head.weight'), ('lacks', 'lm_head.weight')),
        (lambda t: t.update({BIAS: torch.zeros(32)}), ('unknown', BIAS)),
        (lambda t: double(t, NORM), (NORM, '[64]', '[32]')),
        (
            lambda t: t.update({NORM: t[NORM].to(torch.float8_e4m3fn)}),
            (NORM, 'F8_E4M3', 'convert it to one of F32, BF16, F16'),
        ),
        (lambda t: t.update({NORM: t[NORM].long()}), (NORM, 'I64')),
    ],
)
def test_a_wrong_tensor_is_named(change, words, folder, mesh):
  retensor(folder, change)
  text = refusal(folder, mesh)
  for word in words:
    assert word in text, text


@pytest.mark.parametrize('share', [0.0, 0.001, 0.1, 0.5, 0.99])
def test_part_of_a_file_is_one_line(share, folder, mesh):
  file = folder / 'model.safetensors'
  content = file.read_bytes()
  file.write_bytes(content[: int(share * len(content))])
  text = refusal(folder, mesh)
  assert str(file) in text and 'Copy it there again' in text


def test_files_that_the_index_names_must_be_there(mesh, tmp_path):
  parts = families.save(
      families.reference('qwen3', False), tmp_path / 'parts',
      max_shard_size='20KB',
  )
  lost = sorted(parts.glob('model-*.safetensors'))[1]
  lost.rename(tmp_path / 'lost')
  assert lost.name in refusal(parts, mesh)
  index = parts / 'model.safetensors.index.json'
  for content in ('', '{}', '[]', '{"weight_map": 3}'):
    index.write_text(content)
    assert index.name in refusal(parts, mesh)
  index.unlink()
  text = refusal(parts, mesh)
  assert 'neither model.safetensors nor model.safetensors.index.json' in text


def test_a_tied_head_may_stand_in_the_file(mesh, tmp_path):
  """Some published folders hold the matrix twice. Two matrices are no tie."""
  folder = families.save(families.reference('qwen3', True), tmp_path / 'tied')
  before = families.arrays(folder, mesh)
  table = 'model.embed_tokens.weight'
  retensor(folder, lambda t: t.update({'lm_head.weight': t[table].clone()}))
  for a, b in zip(before, families.arrays(folder, mesh), strict=True):
    np.testing.assert_array_equal(a, b)
  retensor(folder, lambda t: t.update({'lm_head.weight': t[table] + 1}))
  assert 'tie_word_embeddings' in refusal(folder, mesh)


def test_tensors_that_follow_from_the_configuration_are_left_out(folder, mesh):
  name = 'model.layers.0.self_attn.rotary_emb.inv_freq'
  retensor(folder, lambda t: t.update({name: torch.ones(4)}))
  families.load(folder, mesh)


def test_export_refusals(folder, mesh, tmp_path):
  config, params = families.load(folder, mesh)

  def text(path, config, dtype=None):
    with pytest.raises(errors.UserError) as error:
      huggingface.export(path, params, config, folder, dtype)
    assert '\n' not in str(error.value)
    return str(error.value)

  assert 'exists already' in text(folder, config)
  out = tmp_path / 'out'
  assert 'bfloat16' in text(out, config, 'int8')
  wider = dataclasses.replace(config, mlp_dim=64)
  assert 'another model' in text(out, wider)
  assert not out.exists()


def test_a_parameter_without_a_place_in_a_folder_is_named(folder, mesh):
  config = huggingface_config.model_config(folder)
  config = dataclasses.replace(config, previous_token=True)
  with pytest.raises(errors.UserError, match='previous_token must be False'):
    huggingface.load(folder, sharding.abstract_params(config, mesh))
