"""Tests of device/rope.py: the angles by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax.device import rope

SCALING = rope.Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_positions=100,
)


def at(position, x, *args):
  """x, one head of one token, as it stands at a position."""
  table = rope.table(200, x.shape[-1], *args)
  return rope.rotate(x, rope.look_up(table, jnp.array([[position]])))


def test_rotation_by_hand():
  # P = 4: pairs (0, 2) and (1, 3), frequencies 1 and 100^(-1/2) = 0.1.
  x = jnp.array([1.0, 1.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
  want = [np.cos(2), np.cos(0.2), np.sin(2), np.sin(0.2)]
  np.testing.assert_allclose(at(2, x, 100.0).ravel(), want, rtol=1e-6)


def test_a_whole_row_is_rotated_as_its_tokens_are():
  """The table alone, for the 5 tokens of 2 rows; then token by token."""
  x = jax.random.normal(jax.random.key(0), (2, 5, 3, 8))
  whole = rope.rotate(x, rope.table(5, 8, 1e4))
  for position in range(5):
    one = at(position, x[:, position : position + 1], 1e4)
    np.testing.assert_array_equal(whole[:, position : position + 1], one)


@pytest.mark.parametrize('scaling', [None, SCALING])
def test_scores_depend_on_distance_only(scaling):
  q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))
  score = lambda i, j: jnp.sum(
      at(i, q, 1e4, scaling) * at(j, k, 1e4, scaling)
  )
  np.testing.assert_allclose(score(7, 3), score(107, 103), rtol=1e-4)
  assert abs(score(7, 3) - score(7, 4)) > 1e-3


def test_llama3_frequencies_by_hand():
  """P = 6, theta = 1000: frequencies 1, 0.1 and 0.01.

  Turns within 100 positions: 100 f / (2 pi) = 15.9, 1.59 and 0.159. The first
  is above 4: as it is. The last is below 1: an eighth. The one between keeps
  (1.59 - 1) / (4 - 1) = 0.197 of its speed, the rest is an eighth: 0.0297.
  With the factors of the wavelength swapped all three would be an eighth.
  """
  kept = (10 / (2 * np.pi) - 1) / 3
  want = [1, kept * 0.1 + (1 - kept) * 0.1 / 8, 0.01 / 8]
  got = rope.frequencies(6, 1000.0, SCALING)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  np.testing.assert_allclose(got[1], 0.0297, atol=1e-4)


@pytest.mark.parametrize(
    'field, value, message',
    [
        ('factor', 0.5, 'factor is 0.5'),
        ('low_freq_factor', 4.0, 'below high_freq_factor, 4.0'),
        ('original_positions', 0, 'original_positions is 0'),
    ],
)
def test_scaling_errors_say_what_to_do(field, value, message):
  with pytest.raises(ValueError, match=message) as error:
    dataclasses.replace(SCALING, **{field: value})
  assert '\n' not in str(error.value)
