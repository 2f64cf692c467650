"""Tests of how engine.py cuts what is to be prefilled; nothing is computed."""

import jax
import pytest

from rods_jax import engine as engine_lib


@pytest.mark.parametrize('counts, chunk, lanes', [
    # A step has room for two pieces and costs 24 tokens beside theirs.
    ([4], 4, 1),  # 2 * 4 + 24 = 32; in pieces of 8: 2 * 8 + 24 = 40
    ([8], 4, 2),  # the same
    ([9, 4], 4, 4),  # two steps: 64; of 8: 3 pieces, 80
    # Two steps: 80; of 4, without padding: three, 96. Counting tokens alone,
    # 24 are cheaper than 32.
    ([12, 12], 8, 4),
])
def test_pieces_are_cut_where_prefill_takes_least_time(
    small_model, small_config, mesh, monkeypatch, counts, chunk, lanes
):
  engine = engine_lib.Engine(
      small_model[0], mesh, small_config, num_slots=8, cache_buckets=(16,),
      extend_buckets=(4, 8), extend_rows=2, max_new=1, end_id=1, pad_id=0,
  )
  engine.reset(small_model[1], jax.random.key(0), temperature=1.0)
  seen = []

  def extend(params, cache, batch):
    seen.append((batch.tokens.shape[1], int(batch.used)))
    return cache

  monkeypatch.setattr(engine.programs, 'extend', extend)
  for slot in range(len(counts)):
    engine.start(slot, slot)
  # The last token of a row is not fed yet.
  engine.extend({slot: [2] * (n + 1) for slot, n in enumerate(counts)})
  assert seen == [(chunk, lanes)]
