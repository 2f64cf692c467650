"""Attention in blocks equals attention at once, with its gradients."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax.device import layers
from rods_jax.device import long_attention


def inputs(t, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(t), 4)
  shapes = ((2, t, 4, 8), (2, t, 2, 8), (2, t, 2, 8), (2, t, 4, 8))
  return [jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes)]


def run(attention, q, k, v, weight):
  """Output, and gradients of its weighted sum."""
  total = lambda *x: (jnp.sum(attention(*x) * weight), attention(*x))
  grads, out = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(q, k, v)
  return out, *grads


@pytest.mark.parametrize('t', [2, 7, 16, 50])
def test_same_as_at_once(t, monkeypatch):
  """Blocks of 4, so 1 to 13 of them; 50, 7 and 2 are no multiples of 4."""
  monkeypatch.setattr(long_attention, 'BLOCK', 4)
  data = inputs(t)
  blocks = run(long_attention.attention, *data)
  whole = run(layers.causal_attention, *data)
  for a, b in zip(blocks, whole, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_bfloat16_stays_and_is_close():
  data = inputs(300, jnp.bfloat16)
  out, *grads = run(long_attention.attention, *data)
  whole = run(layers.causal_attention, *(x.astype(jnp.float32) for x in data))
  for a, b in zip((out, *grads), whole, strict=True):
    assert a.dtype == jnp.bfloat16
    np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.05)


def program(t):
  """Text of the traced attention of a row, backward included."""
  shapes = [jax.ShapeDtypeStruct((1, t, n, 8), jnp.float32) for n in (2, 1, 1)]
  total = lambda *x: layers.causal_attention(*x).sum()
  return str(jax.make_jaxpr(jax.grad(total, (0, 1, 2)))(*shapes))


def test_long_rows_take_this_path_and_keep_no_scores():
  """Scores are of a block by a block, whatever the length of the row."""
  block, t = long_attention.BLOCK, 8 * long_attention.BLOCK
  assert t > layers.SHORT
  assert f'[1,1,{2 * block},{block}]' in program(t)  # two heads
  assert f',{t}]' not in program(t)


def test_pairs_that_see_nothing_are_not_computed():
  """8 blocks are 8 * 9 / 2 = 36 pairs, forward and backward; all are 64.

  Groups of blocks that shared a number of keys computed 9/16 of all scores,
  and compiled a loop for each group.
  """
  text = program(8 * long_attention.BLOCK)
  assert re.findall(r'length=(\d+)', text) == ['36', '36']


def test_masks_are_not_made_ahead(monkeypatch):
  """16 blocks of 2 tokens: a mask is of one pair of them at a time.

  A mask needs the index alone, so a scan over layers made those of all blocks
  once and kept them: 1.1 GiB for rows of 16,384 tokens.
  """
  monkeypatch.setattr(long_attention, 'BLOCK', 2)
  q, k, v, _ = inputs(32)
  attend = jax.checkpoint(lambda x: long_attention.attention(x, k, v))

  def total(x):
    return jax.lax.scan(lambda x, _: (attend(x), None), x, length=3)[0].sum()

  text = str(jax.make_jaxpr(jax.grad(total))(q))
  masks = [
      math.prod(map(int, shape.split(',')))
      for shape in re.findall(r'bool\[([\d,]+)\]', text)
  ]
  assert max(masks) == 2 * 2 * (2 * 2) * 2  # [B K Q S] of a pair
