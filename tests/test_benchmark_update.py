"""What the benchmark of the update counts as its work."""

import numpy as np

from experiments.benchmarks import update as benchmark
from rods_jax import batch as batch_lib
from rods_jax.device import model

CONFIG = model.ModelConfig(
    vocab_size=96, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=8, mlp_dim=48, previous_token=True,
)


def test_products_of_one_microbatch():
  """3 rows of 256 tokens, 128 targets: blocks of 128 queries see 128, 256.

  Seven products of a layer's parameters, one of the token before, the logits;
  and for each row and kv head the queries of its two heads.
  """
  found = list(benchmark.forward_products(CONFIG, 3, 256, 128))
  tokens = 3 * 256
  dense = [p for p in found if p[0] == 1]
  assert sorted(dense) == sorted(
      [(1, tokens, 32, 32), (1, 3 * 128, 32, 96)]
      + 2 * (
          [(1, tokens, 32, 32)] * 2 + [(1, tokens, 32, 16)] * 2  # q o, k v
          + [(1, tokens, 32, 48)] * 2 + [(1, tokens, 48, 32)]
      )
  )
  assert [p for p in found if p[0] > 1] == 2 * [
      (6, 256, 8, 128), (6, 256, 128, 8), (6, 256, 8, 256), (6, 256, 256, 8),
  ]


def test_the_backward_pass_has_two_products_for_each():
  """Two microbatches of the first bucket, none of the second."""
  bucket = lambda rows, length: batch_lib.Bucket(
      tokens=np.zeros((4, rows, length)),
      targets=np.zeros((4, rows, length // 2)),
      **dict.fromkeys(
          ('lengths', 'positions', 'old_logprobs', 'mask', 'rows')
      ),
  )
  packed = batch_lib.Packed((bucket(3, 256), bucket(3, 512)), np.array([2, 0]))
  found = benchmark.products(
      CONFIG, batch_lib.Batch(packed, *[None] * 4)
  )
  assert found[1, 384, 32, 96] == 2  # logits
  assert found[1, 384, 96, 32] == 2  # gradient of activations
  assert found[1, 32, 384, 96] == 2  # and of the matrix
  once = sum(
      2 * b * m * k * n
      for b, m, k, n in benchmark.forward_products(CONFIG, 3, 256, 128)
  )
  assert benchmark.flops(found) == 2 * 3 * once
