"""Stacked layers compute what layers apart do, and are the same on disk."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax import build
from rods_jax import engine as engine_lib
from rods_jax import huggingface
from rods_jax import huggingface_config
from rods_jax import sharding
from rods_jax import weights
from rods_jax.device import model
from rods_jax.device import model_config
from rods_jax.device import parameters
from rods_jax.device import stacking
from rods_jax.device import update
from tests import test_update
from tests import tiny

TOKENS = jnp.array([[5, 6, 7, 8, 9, 5, 6], [40, 41, 42, 0, 0, 0, 0]])
LENGTHS = jnp.array([7, 3])


@pytest.fixture(scope='module')
def both(small_config, small_model):
  """(config, graphdef, params) apart and stacked, of equal values."""
  graphdef, params = small_model
  config = dataclasses.replace(small_config, scan_layers=True)
  stacked = stacking.stack(params)
  return (
      (small_config, graphdef, params),
      (config, model.definition(config), stacked),
  )


def loss(graphdef, params):
  hidden = model.hidden(graphdef, params, TOKENS, LENGTHS)
  return model.logits(graphdef, params, hidden)[0].std(), hidden


def assert_close(one, other, atol=1e-5):
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    np.testing.assert_allclose(a, b, atol=atol)


def test_random_parameters_are_the_same(small_config):
  """The same draws, so that a switch of scan_layers is no other seed."""
  config = dataclasses.replace(small_config, scan_layers=True)
  graphdef, stacked = model.create(config, jax.random.key(0))
  _, apart = model.create(small_config, jax.random.key(0))
  assert tiny.leaves(stacking.unstack(stacked)) == tiny.leaves(apart)
  assert jax.tree.structure(stacking.stack(apart)) == jax.tree.structure(
      stacked
  )
  assert stacking.is_stacked(stacked) and not stacking.is_stacked(apart)
  assert graphdef == model.definition(config)


def test_logical_axes_of_stacked_parameters(both):
  axes = model.logical_axes(both[1][2])
  block = axes['blocks']['attention']
  assert block['q'].get_value() == ('layers', 'embed', 'heads', None)
  apart = model.logical_axes(stacking.unstack(both[1][2]))
  assert jax.tree.leaves(apart) == jax.tree.leaves(
      model.logical_axes(both[0][2])
  )


@pytest.mark.parametrize('remat', model_config.REMAT)
def test_same_activations_and_gradients(both, remat):
  """Also whatever is recomputed; the scan holds each block's program once."""
  found = []
  for config, _, params in both:
    config = dataclasses.replace(config, remat=remat)
    step = jax.value_and_grad(
        lambda p, g=model.definition(config): loss(g, p), has_aux=True
    )
    (value, hidden), grads = jax.jit(step)(params)
    valid = jnp.arange(TOKENS.shape[1]) < LENGTHS[:, None]
    found.append((value, hidden[valid], stacking.unstack(grads)))
    scans = str(jax.make_jaxpr(step)(params)).count('= scan[')
    assert scans == (2 if config.scan_layers else 0)
  assert_close(*found)
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(found[0]))


def test_gradients_are_added_within_the_backward_pass(both):
  """None of all layers beside the sum: 0.88 GiB a device for Qwen3-4B.

  A sum over all layers after each bucket's pass stood in the program as often
  as there are buckets; now only the optimizer has such sums.
  """
  config, graphdef, params = both[1]
  step = update.make_update_fn(graphdef, test_update.KEEP, test_update.CONFIG)
  state = jax.eval_shape(
      lambda p: update.init_state(p, test_update.KEEP, 5), params
  )
  shape = config.num_layers, config.mlp_dim, config.d_model
  assert params['blocks']['mlp']['down'].shape == shape
  shape = ','.join(map(str, shape))
  batches = [test_update.packed(buckets=x) for x in ((24,), (16, 24))]
  texts = [str(jax.make_jaxpr(step)(state, None, x)) for x in batches]
  sums = [text.count(f':f32[{shape}] = add ') for text in texts]
  assert 0 < sums[0] == sums[1]


def test_casts_are_rounded_apart(both):
  """Exactly the cast; one for each matrix of a layer, two for the embeddings.

  A cast alone became one of all layers, ahead of the scan: 0.44 GiB each for
  the policy and the reference.
  """
  config, _, params = both[1]
  config = dataclasses.replace(config, dtype='bfloat16')
  text = str(jax.make_jaxpr(
      lambda p: model.hidden(model.definition(config), p, TOKENS, LENGTHS)
  )(params))
  assert text.count('reduce_precision[') == len('qkvo') + 3 + 2
  edge = [3.3895e38, 1e-40, 1.00390625, -1.01171875, jnp.inf, -jnp.nan, 1 / 3]
  x = jnp.array(edge, jnp.float32)
  found = parameters.weight(nnx.Param(x, logical_axes=(None,)), jnp.bfloat16)
  bits = lambda y: y.view(jnp.uint16).tolist()
  assert bits(found) == bits(x.astype(jnp.bfloat16))


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_same_greedy_tokens(both, mesh, dtype):
  found = []
  for config, _, params in both:
    config = dataclasses.replace(config, dtype=dtype)
    engine = engine_lib.Engine(
        model.definition(config), mesh, config, num_slots=8,
        cache_buckets=(16, 32), extend_buckets=(4,), extend_rows=2, max_new=12,
        end_id=1, pad_id=0,
    )
    engine.reset(params, jax.random.key(1), temperature=1.0, greedy=True)
    for slot in (0, 1):
      engine.start(slot, slot)
    engine.extend({0: np.asarray(TOKENS[0]), 1: np.asarray(TOKENS[1, :3])})
    out = engine.decode({0: 12, 1: 12})
    found.append([(out[i].tokens.tolist(), out[i].logprobs) for i in (0, 1)])
  for (one, p), (other, q) in zip(*found):
    assert one == other
    np.testing.assert_allclose(p, q, atol=1e-5)


def test_files_hold_layers_apart(tmp_path):
  """A policy saved either way is the same file, and loads either way."""
  config = tiny.get_config()
  policy = build.build_policy(config)
  with config.unlocked():
    config.model.scan_layers = True
  scanned = build.build_policy(config)
  params = model.create(scanned.config, jax.random.key(3))[1]
  one, two = tmp_path / 'one.safetensors', tmp_path / 'two.safetensors'
  origin = weights.origin(config, scanned)
  assert origin == weights.origin(tiny.get_config(), policy)
  weights.save(one, params, origin)
  weights.save(two, stacking.unstack(params), origin)
  assert one.read_bytes() == two.read_bytes()
  apart = weights.load(one, weights.abstract_params(policy))
  stacked = weights.load(one, weights.abstract_params(scanned))
  assert jax.tree.structure(stacked) == jax.tree.structure(params)
  assert tiny.leaves(stacking.unstack(stacked)) == tiny.leaves(apart)


def test_hugging_face_folders(tmp_path):
  """Loaded as one array for all layers, and exported to the same bytes."""
  families = pytest.importorskip('tests.families')
  mesh = sharding.make_mesh(-1, 1, 1)
  folder = families.save(families.reference('qwen3', True), tmp_path / 'in')
  _, apart = families.load(folder, mesh)
  config = huggingface_config.model_config(folder, scan_layers=True)
  stacked = huggingface.load(folder, sharding.abstract_params(config, mesh))
  assert tiny.leaves(stacking.unstack(stacked)) == tiny.leaves(apart)
  assert jax.tree.structure(stacked) == jax.tree.structure(
      sharding.abstract_params(config, mesh)
  )
  huggingface.export(tmp_path / 'out', stacked, config, folder)
  again = families.load(tmp_path / 'out', mesh)[1]
  assert tiny.leaves(again) == tiny.leaves(apart)
