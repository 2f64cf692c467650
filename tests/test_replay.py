"""Tests of the active pool: caps, life cycle, history and restoring."""

import json

import numpy as np
import pytest

from rods_jax import types
from rods_jax.host import boundary
from rods_jax.host import replay

BOUNDARY = boundary.BoundaryConfig(hard_below=0.20, mastered_above=0.85)


def _config(**changes):
  values = dict(
      max_generated=8,
      inject_fraction=0.2,
      retire_above=0.95,
      retire_below=0.20,
      retire_human=False,
      cooldown_epochs=1,
  )
  return replay.PoolConfig(**{**values, **changes})


def _human(i):
  category = types.CATEGORIES[i % 4]
  turns = (types.Turn(f'do {i}', (f"cd(folder='{i}')",)),)
  return types.Task(
      f'multi_turn_{category}_{i}', category, i, ('Files',), {'a': {}}, turns
  )


def _variant(i):
  turns = (types.Turn(f'variant {i}', (f"mv(a='{i}')",)),)
  return types.Task(
      f'syn_{i}', 'base', 0, ('Files',), {'a': {}}, turns, parent='human'
  )


def _variants(*numbers):
  return [_variant(i) for i in numbers]


def _stats(mean, count=8):
  """Group of rewards 0 and 1 with this mean: total = square = 8 mean."""
  return types.SeedStats(count, count * mean, count * mean)


def _pool(num_human=10, **changes):
  humans = [_human(i) for i in range(num_human)]
  return replay.Pool(humans, _config(**changes), BOUNDARY)


def _of(pool, event):
  return [e for e in pool.events if e['event'] == event]


def test_the_papers_growth():
  """400, +20 % = 480, 576, 691 (115.2 floored), then P_max stops at 800."""
  pool = _pool(400, max_generated=400)
  sizes = [len(pool)]
  number = iter(range(10_000))
  for epoch in range(1, 5):
    accepted = [_variant(next(number)) for _ in range(pool.injection_cap())]
    assert len(pool.inject(epoch, accepted)) == len(accepted)
    sizes.append(len(pool))
  assert sizes == [400, 480, 576, 691, 800]
  # 691 + floor(138.2) = 829 went 29 over; those left for capacity.
  assert [e['reason'] for e in _of(pool, 'retired')] == ['capacity'] * 29
  assert pool.num_generated == 400


def test_injection_cap_is_not_a_victim_of_floats():
  # int(0.29 * 100) is 28: the product is 28.999999999999996.
  pool = _pool(100, inject_fraction=0.29, max_generated=99)
  assert pool.injection_cap() == 29
  assert _pool(4).injection_cap() == 0  # floor(0.8)
  assert _pool(100, max_generated=3).injection_cap() == 3


def test_order_is_a_permutation_of_its_generator():
  pool = _pool()
  order = pool.order(np.random.default_rng(0))
  assert order.dtype == np.int32
  assert sorted(order.tolist()) == pool.active_ids == list(range(10))
  again = pool.order(np.random.default_rng(0))
  np.testing.assert_array_equal(order, again)
  assert order.tolist() != pool.order(np.random.default_rng(1)).tolist()


def test_no_visit_is_no_statistic():
  """A task without a trajectory had mean 0 and was retired as hopeless."""
  pool = _pool()
  [new] = pool.inject(1, _variants(0))[:1]
  pool.record(1, {0: _stats(0.5), new: types.SeedStats(0, 0.0, 0.0)})
  assert pool.entry(new).mean is None and pool.entry(new).visits == 0
  assert pool.retire(1) == []
  assert pool.partition() == {'hard': [], 'boundary': [0], 'mastered': []}
  assert [e['id'] for e in _of(pool, 'visit')] == [0]
  # A later epoch without a visit keeps what is known.
  pool.record(2, {})
  assert pool.entry(0).mean == 0.5 and pool.entry(0).last_visit == 1
  assert pool.zone_variance()['boundary'] is None  # nothing visited in 2


def test_retirement():
  pool = _pool(20, max_generated=20)
  a, b, c, d = pool.inject(1, _variants(0, 1, 2, 3))
  pool.record(
      1,
      {
          0: _stats(0.0),  # human tasks stay
          1: _stats(1.0),
          a: _stats(0.125),  # first visit, hard
          b: _stats(1.0),  # mastered
          c: _stats(0.9),  # 0.85 to 0.95: trains on
          d: _stats(0.5),
      },
  )
  assert pool.retire(1) == [(a, 'burn_in'), (b, 'mastered')]
  assert pool.retire(1) == []
  pool.record(2, {c: _stats(0.125), d: _stats(0.2)})
  assert pool.retire(2) == [(c, 'hard')]  # second visit: not burn_in
  assert pool.active_ids == [*range(20), d]  # 0.2 itself stays
  assert _of(pool, 'retired')[0] == {
      'event': 'retired', 'epoch': 1, 'id': a, 'reason': 'burn_in',
      'mean': 0.125,
  }


def test_retire_human_is_a_switch_and_never_empties_the_pool():
  pool = _pool(3, retire_human=True)
  pool.record(0, {0: _stats(0.0), 1: _stats(0.125), 2: _stats(1.0)})
  # phi: 0, 0.4375, 0. The best stays: an empty pool would train on nothing.
  assert pool.retire(0) == [(0, 'hard'), (2, 'mastered')]
  assert pool.active_ids == [1]


def test_ids_are_never_used_again():
  pool = _pool()
  first = pool.inject(1, _variants(0, 1))
  pool.record(1, {i: _stats(0.0) for i in first})
  pool.retire(1)
  assert first == [10, 11]
  assert pool.inject(2, _variants(2, 3)) == [12, 13]


def test_over_the_limit_the_lowest_phi_leaves_first():
  pool = _pool(10, max_generated=2)
  low, high = pool.inject(1, _variants(0, 1))
  pool.record(1, {low: _stats(0.75), high: _stats(0.5)})  # phi 0.75, 1
  pool.inject(2, _variants(2))
  assert pool.active_ids == [*range(10), high, 12]
  # 12 has no phi yet: high, known to be less urgent than unknown, leaves.
  pool.inject(3, _variants(3))
  assert pool.active_ids == [*range(10), 12, 13]
  assert pool.num_generated == 2


def test_duplicates_of_anything_ever_seen_are_refused():
  pool = _pool()
  seen = _variant(0)
  pool.inject(1, [seen, seen])
  assert pool.num_duplicates == 1 and len(pool) == 11
  pool.record(1, {10: _stats(0.0)})
  pool.retire(1)
  renamed = types.Task.from_json({**seen.to_json(), 'task_id': 'other'})
  assert pool.inject(2, [renamed]) == [] and pool.num_duplicates == 2
  assert renamed.content_hash() in pool.hashes()
  assert len(pool.hashes()) == 11


def test_tasks_over_the_cap_wait_in_line():
  pool = _pool(10, max_generated=4)  # cap 2
  pool.inject(1, _variants(0, 1, 2))
  assert [t.task_id for t in pool.waiting] == ['syn_2']
  assert pool.inject(2, _variants(2, 3)) == [12, 13]  # cap floor(2.4)
  assert pool.num_duplicates == 1  # waiting counts as seen
  assert pool.task(12).task_id == 'syn_2' and not pool.waiting
  # 2 of 8 enter, 6 are left, 4 may wait: the oldest 2 are dropped.
  pool.inject(3, _variants(*range(10, 18)))
  assert [t.task_id for t in pool.waiting] == [
      'syn_14', 'syn_15', 'syn_16', 'syn_17',
  ]
  assert pool.num_dropped == 2


def test_injecting_a_human_task_is_an_error():
  pool = _pool()
  with pytest.raises(ValueError, match='only generated tasks'):
    pool.inject(1, [_variant(0), _human(99)])
  assert len(pool) == 10 and len(pool.hashes()) == 10  # nothing half done


def test_seeds_are_boundary_tasks_that_rested():
  pool = _pool(10)  # cap 2
  pool.record(0, {i: _stats(0.5 if i < 4 else 0.0) for i in range(10)})
  assert pool.choose_seeds(0) == [0, 1]
  assert pool.choose_seeds(1) == [2, 3]  # 0 and 1 rest one epoch
  assert pool.choose_seeds(2) == [0, 1]
  assert _of(pool, 'seed')[0] == {
      'event': 'seed', 'epoch': 0, 'id': 0, 'priority': 1.0,
  }


def test_another_selector():
  hardest = lambda candidates, budget, epoch: sorted(
      (c.id for c in candidates), key=lambda i: -i
  )[:budget]
  humans = [_human(i) for i in range(10)]
  pool = replay.Pool(humans, _config(), BOUNDARY, hardest)
  assert pool.choose_seeds(0) == [9, 8]
  assert _of(pool, 'seed')[0]['priority'] is None  # never visited


def test_zone_variance_is_the_mean_over_groups():
  pool = _pool()
  # Rewards 0 or 1: variance m (1 - m) is 0.25, 0.1875 and 0.109375.
  pool.record(
      0, {0: _stats(0.5), 1: _stats(0.25), 2: _stats(0.125), 3: _stats(1.0)}
  )
  assert pool.zone_variance() == {
      'boundary': (0.25 + 0.1875) / 2, 'hard': 0.109375, 'mastered': 0.0,
  }


def test_variance_of_equal_rewards_is_not_negative():
  """Eight rewards of 0.35: square/8 - mean^2 was -2e-9 in float32 sums."""
  total = float(np.float32(8 * 0.35))
  square = float(np.float32(8 * 0.35**2)) - 1e-7
  assert square / 8 - (total / 8) ** 2 < 0
  pool = _pool()
  pool.record(0, {0: types.SeedStats(8, total, square)})
  assert pool.entry(0).variance == 0.0


@pytest.mark.parametrize(
    'stats, message',
    [
        ({99: _stats(0.5)}, 'id 99: not active'),
        ({0: types.SeedStats(8, float('nan'), 1.0)}, 'is nan: not in'),
        ({0: types.SeedStats(8, 9.0, 9.0)}, 'is 1.125: not in'),
    ],
)
def test_wrong_statistics_are_refused(stats, message):
  pool = _pool()
  with pytest.raises(ValueError, match=message):
    pool.record(0, {1: _stats(0.5), **stats})
  assert pool.entry(1).visits == 0  # all or nothing


def test_epochs_do_not_go_back():
  pool = _pool()
  pool.record(3, {})
  with pytest.raises(ValueError, match='epoch 2 after those of epoch 3'):
    pool.record(2, {})


@pytest.mark.parametrize(
    'changes',
    [
        dict(max_generated=-1),
        dict(inject_fraction=1.5),
        dict(retire_above=0.1),
        dict(retire_above=1.1),
        dict(retire_below=-0.1),
        dict(cooldown_epochs=-1),
    ],
)
def test_bad_limits(changes):
  with pytest.raises(ValueError, match=next(iter(changes))) as e:
    _config(**changes)
  assert '\n' not in str(e.value)


@pytest.mark.parametrize(
    'changes', [dict(retire_below=0.3), dict(retire_above=0.8)]
)
def test_retiring_inside_the_boundary_is_refused(changes):
  with pytest.raises(ValueError, match='must not lie inside the boundary'):
    _pool(**changes)


def test_no_or_doubled_tasks():
  with pytest.raises(ValueError, match='at least one task'):
    replay.Pool([], _config(), BOUNDARY)
  with pytest.raises(ValueError, match='multi_turn_base_0 twice'):
    replay.Pool([_human(0), _human(0)], _config(), BOUNDARY)


def _epoch(pool, epoch):
  """One epoch of an imagined training run, by named random numbers."""
  rng = np.random.default_rng([7, epoch])
  order = pool.order(rng)
  stats = {int(i): _stats(float(rng.integers(0, 9)) / 8) for i in order[:-2]}
  pool.record(epoch, stats)
  retired = pool.retire(epoch)
  added = pool.inject(epoch + 1, _variants(*range(9 * epoch, 9 * epoch + 11)))
  seeds = pool.choose_seeds(epoch)
  return order.tolist(), retired, added, seeds, pool.zone_variance()


def _trace(pool, epochs):
  return [_epoch(pool, epoch) for epoch in epochs]


def test_a_restored_pool_goes_on_as_if_never_stopped(tmp_path):
  whole = _pool(30, max_generated=12)
  expected = _trace(whole, range(6))
  whole.log.write(tmp_path / 'whole.jsonl')
  # The life cycle really happened, or this test would prove little.
  assert {e['reason'] for e in _of(whole, 'retired')} >= {
      'burn_in', 'mastered', 'capacity',
  }
  assert whole.num_duplicates and whole.num_dropped and whole.waiting

  path = tmp_path / 'pool.jsonl'
  pool = _pool(30, max_generated=12)
  begin = _trace(pool, range(2))
  pool.log.write(path)
  text = json.dumps(pool.state_dict())
  _trace(pool, range(2, 4))  # lost: the crash came before a checkpoint
  pool.log.write(path)

  pool = replay.Pool.from_state(json.loads(text), pool.config, BOUNDARY)
  assert json.dumps(pool.state_dict()) == text
  assert begin + _trace(pool, range(2, 6)) == expected
  pool.log.write(path)
  assert path.read_text() == (tmp_path / 'whole.jsonl').read_text()
  assert json.dumps(pool.state_dict()) == json.dumps(whole.state_dict())
  assert len(pool.log) == len(whole.log) == len(whole.events)


def test_log_of_a_new_run_starts_the_file_anew(tmp_path):
  path = tmp_path / 'pool.jsonl'
  path.write_text('{"event": "of another run"}\n')
  pool = _pool(2)
  pool.log.write(path)
  pool.record(0, {0: _stats(0.5)})
  pool.log.write(path)
  pool.log.write(path)  # nothing new
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  assert lines == pool.events and len(lines) == 3
  assert lines[0] == {
      'event': 'added', 'epoch': 0, 'id': 0,
      'task_id': 'multi_turn_base_0', 'origin': 'human', 'parent': None,
      'category': 'base', 'scenario': 0, 'hash': _human(0).content_hash(),
  }
  assert lines[2] == {
      'event': 'visit', 'epoch': 0, 'id': 0, 'count': 8, 'mean': 0.5,
      'variance': 0.25, 'zone': 'boundary',
  }


def test_log_with_a_gap_warns(tmp_path, caplog):
  pool = _pool(3)
  restored = replay.Pool.from_state(
      pool.state_dict(), pool.config, BOUNDARY
  )
  restored.log.write(tmp_path / 'pool.jsonl')
  assert 'holds 0 of 3 past events' in caplog.text
