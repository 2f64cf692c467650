"""Tests of device/model.py: each formula by hand, then the invariances."""

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax.device import model

CONFIG = model.ModelConfig(
    vocab_size=11, d_model=8, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=4, mlp_dim=12,
)


def test_rms_norm_by_hand():
  # mean square of (3, 4) is 12.5; not of their deviation from 3.5 (LayerNorm).
  x = jnp.array([3.0, 4.0])
  got = model.rms_norm(x, jnp.array([1.0, 2.0]), 0.0)
  np.testing.assert_allclose(got, [3 / 12.5**0.5, 8 / 12.5**0.5], rtol=1e-6)


@pytest.fixture(scope='module')
def forward():
  graphdef, params = model.create(CONFIG, jax.random.key(0))
  run = jax.jit(lambda t, n: model.hidden(graphdef, params, t, n))
  return lambda t, n: np.asarray(run(jnp.asarray(t), jnp.asarray(n)))


def test_padding_values_never_matter(forward):
  tokens = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
  lengths = np.array([3, 5])
  changed = tokens.copy()
  changed[0, 3:] = [-7, 99]  # not even ids
  a, b = forward(tokens, lengths), forward(changed, lengths)
  np.testing.assert_array_equal(a, b)
  assert np.isfinite(a).all()


def test_more_padding_and_other_rows_do_not_matter(forward):
  wide = forward([[1, 2, 3, 0, 0], [9, 9, 9, 9, 9]], [3, 5])
  alone = forward([[1, 2, 3, 0, 0], [0, 0, 0, 0, 0]], [3, 0])
  np.testing.assert_allclose(wide[0, :3], alone[0, :3], atol=1e-6)


def test_causal(forward):
  a = forward([[1, 2, 3, 4, 5], [0] * 5], [5, 5])
  b = forward([[1, 2, 3, 9, 5], [0] * 5], [5, 5])
  np.testing.assert_array_equal(a[0, :3], b[0, :3])
  assert np.abs(a[0, 3:] - b[0, 3:]).max() > 1e-3


def test_remat_changes_no_gradient():
  tokens, lengths = jnp.array([[1, 2, 3, 4]]), jnp.array([4])

  def gradient(config):
    graphdef, params = model.create(config, jax.random.key(0))
    loss = lambda p: model.logits(
        graphdef, p, model.hidden(graphdef, p, tokens, lengths)
    ).std()
    return jax.tree.leaves(jax.jit(jax.grad(loss))(params))

  plain = gradient(CONFIG)
  remat = gradient(dataclasses.replace(CONFIG, remat='full'))
  for a, b in zip(plain, remat, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6)
    assert np.abs(a).max() > 0  # every parameter takes part


def test_the_token_before_each():
  tokens = jnp.array([[1, 2, 3], [4, 5, 6]])
  np.testing.assert_array_equal(
      model.shift(tokens, 0), [[0, 1, 2], [0, 4, 5]]
  )
  np.testing.assert_array_equal(
      model.shift(tokens, jnp.array([7, 8])), [[7, 1, 2], [8, 4, 5]]
  )


def test_input_of_the_token_before():
  """x = E[token] + E[token before] R; without layers nothing else matters."""
  config = dataclasses.replace(CONFIG, previous_token=True)
  graphdef, params = model.create(config, jax.random.key(0))
  decoder = nnx.merge(graphdef, params)
  decoder.blocks = nnx.List([])
  table, weight = decoder.embedding[...], decoder.previous[...]
  want = table[3] + table[2] @ weight
  want = want / jnp.sqrt(jnp.mean(want**2) + 1e-6)
  got = decoder.forward(
      jnp.array([[3]]), jnp.array([[2]]), decoder.rotations(1), None
  )
  np.testing.assert_allclose(got[0, 0], want, rtol=1e-4)


def test_head_0_starts_by_looking_after_the_earlier_copy():
  """In  ... 17 40 ... 17 ...  the second 17 attends to 40 before any training.

  Of 100 tokens that come twice, more than 30 give the most of all weights to
  the token after their first copy (found: 40); by chance it would be one.
  """
  config = model.ModelConfig(
      vocab_size=512, d_model=128, num_layers=1, num_heads=2, num_kv_heads=1,
      head_dim=64, mlp_dim=8, rope_theta=1e6, previous_token=True,
  )
  graphdef, params = model.create(config, jax.random.key(0))
  decoder = nnx.merge(graphdef, params)
  tokens = jax.random.permutation(jax.random.key(1), 512)[:100]
  tokens = jnp.tile(tokens, 2)[None]
  seen = []

  def attend(layer, q, k, v):
    seen.append(jnp.einsum('tp,sp->ts', q[0, 100:, 0], k[0, :100, 0]))
    return jnp.zeros_like(q)

  decoder.forward(
      tokens, model.shift(tokens, 0), decoder.rotations(200), attend
  )
  found = np.asarray(jnp.argmax(seen[0], axis=1))[:-1]  # 99 has none after it
  assert np.mean(found == np.arange(1, 100)) > 0.3
  # The output projection undoes the value projection of that head.
  a = decoder.blocks[0].attention
  np.testing.assert_array_equal(a.o[...][0], a.v[...][:, 0].T)


def test_options_add_their_parameters():
  count = lambda **kw: sum(
      x.size
      for x in jax.tree.leaves(
          model.create(dataclasses.replace(CONFIG, **kw), jax.random.key(0))[1]
      )
  )
  base = count()
  # Bias: (H + 2 K) P = (4 + 2 * 2) * 4 = 32 in each of 2 layers.
  assert count(qkv_bias=True) - base == 64
  # q and k norm: 2 P = 8 in each layer.
  assert base - count(qk_norm=False) == 16
  assert count(tie_embeddings=False) - base == 11 * 8
  assert count(previous_token=True) - base == 8 * 8


def test_bfloat16_activations_give_float32_logits():
  config = dataclasses.replace(CONFIG, dtype='bfloat16')
  graphdef, params = model.create(config, jax.random.key(0))
  hidden = model.hidden(graphdef, params, jnp.ones((1, 2), int), jnp.array([2]))
  assert hidden.dtype == jnp.bfloat16
  assert model.logits(graphdef, params, hidden).dtype == jnp.float32
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))


def test_logical_axes_name_every_dimension():
  for tied in (True, False):
    config = dataclasses.replace(
        CONFIG, qkv_bias=True, tie_embeddings=tied, previous_token=tied
    )
    _, params = model.create(config, jax.random.key(0))
    axes = model.logical_axes(params)
    named = jax.tree.map(lambda x, a: x.ndim == len(a), params, axes)
    assert all(jax.tree.leaves(named))
    block = axes['blocks'][0]
    assert block['attention']['q'].get_value() == ('embed', 'heads', None)
    assert axes['embedding'].get_value() == ('vocab', 'embed')


@pytest.mark.parametrize(
    'field, value, message',
    [
        ('num_heads', 3, 'multiple of model.num_kv_heads'),
        ('head_dim', 5, 'must be even'),
        ('num_layers', 0, 'model.num_layers is 0'),
        ('dtype', 'float64', "use 'float32' or 'bfloat16'"),
        ('remat', 'some', 'use one of none, dots'),
    ],
)
def test_config_errors_say_what_to_do(field, value, message):
  with pytest.raises(ValueError, match=message) as error:
    dataclasses.replace(CONFIG, **{field: value})
  assert '\n' not in str(error.value)
