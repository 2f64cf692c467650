"""Tests of the seam between device statistics and host ids."""

import os
import pathlib
import socket
import subprocess
import sys
import textwrap

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax import errors
from rods_jax import exchange
from rods_jax import run
from rods_jax import types
from rods_jax.device import advantages
from tests import tiny


def _stats(count, total, square):
  fields = (jnp.asarray(x, jnp.float32) for x in (count, total, square))
  return advantages.TaskStats(*fields)


def test_ids_are_padded_to_a_fixed_shape():
  ids = exchange.Exchange(5).begin_epoch([7, 0, 3])
  assert ids.dtype == np.int32 and ids.tolist() == [7, 0, 3, -1, -1]
  assert exchange.Exchange(2).begin_epoch([]).tolist() == [-1, -1]


def test_position_k_belongs_to_id_k():
  """Statistics by position went to the task whose id was that position."""
  seam = exchange.Exchange(4)
  ids = seam.begin_epoch([2, 0, 9])
  result = seam.gather(
      _stats([4, 0, 8, 5], [1, 0, 4, 5], [0.5, 0, 4, 5]), ids
  )
  assert result == {
      2: types.SeedStats(4, 1.0, 0.5),
      0: types.SeedStats(0, 0.0, 0.0),  # by id it would be task 2's 8
      9: types.SeedStats(8, 4.0, 4.0),
  }  # the padding's 5 is nobody's
  assert result[0].mean is None and result[0].variance is None
  assert result[2].mean == 0.25 and result[2].variance == 0.0625


def test_one_transfer(monkeypatch):
  fetched = []
  real = jax.device_get
  monkeypatch.setattr(
      jax, 'device_get', lambda x: fetched.append(x) or real(x)
  )
  seam = exchange.Exchange(3)
  seam.gather(advantages.empty_stats(3), seam.begin_epoch([1]))
  assert [jax.tree.map(jnp.shape, x) for x in fetched] == [(3, 3)]


def test_a_growing_pool_compiles_once():
  seam = exchange.Exchange(7)
  sizes = []
  for n in (3, 5, 7):
    seam.gather(advantages.empty_stats(7), seam.begin_epoch(range(n)))
    sizes.append(exchange._pack._cache_size())
  assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.parametrize('reward', [0.1, 0.2, 0.35, 1 / 3, 0.7, 1.0])
def test_variance_of_equal_rewards_is_zero_up_to_rounding(reward):
  """Equal rewards of 0.35 had a deviation of 1e-4, or the root of -1e-9."""
  rewards = jnp.full((16,), reward, jnp.float32)
  seam = exchange.Exchange(1)
  stats = _stats([16], [rewards.sum()], [(rewards**2).sum()])
  [result] = seam.gather(stats, seam.begin_epoch([0])).values()
  # One of 16 that differs by 1/8, the smallest step of eight turns, gives
  # 15/256/64 = 9.2e-4.
  assert 0 <= result.variance < 1e-6


def test_what_the_update_counts_comes_back():
  """A record of its own here once agreed with the update's by luck alone."""
  seam = exchange.Exchange(3)
  ids = seam.begin_epoch([5, 8])
  stats = advantages.add_rewards(
      advantages.empty_stats(3),
      jnp.array([[0.5, 1.0], [0.25, 0.75]]),
      jnp.array([[True, True], [True, False]]),  # one reward is missing
      jnp.array([1, 0]),  # task 8's group came first
  )
  assert seam.gather(stats, ids) == {
      5: types.SeedStats(1, 0.25, 0.0625),
      8: types.SeedStats(2, 1.5, 1.25),
  }


@pytest.mark.parametrize(
    'ids, message',
    [([1, 1], 'distinct'), ([-1, 2], 'distinct'), ([1, 2, 3, 4], 'not fit')],
)
def test_bad_ids(ids, message):
  with pytest.raises(ValueError, match=message):
    exchange.Exchange(3).begin_epoch(ids)


def test_bad_shape():
  seam = exchange.Exchange(3)
  with pytest.raises(ValueError, match=r'count have shape \(2,\), not \(3,\)'):
    seam.gather(advantages.empty_stats(2), seam.begin_epoch([0]))
  with pytest.raises(ValueError, match='1 or more'):
    exchange.Exchange(0)


def _alone_of_two(monkeypatch):
  """Process 0, with collectives that come back at once."""
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  for name in ('broadcast_one_to_all', 'sync_global_devices'):
    monkeypatch.setattr(multihost_utils, name, lambda x: x)


def test_shared_text_leaves_nothing(tmp_path, monkeypatch):
  """What a killed process had written once stayed for good."""
  _alone_of_two(monkeypatch)
  folder = tmp_path / 'exchange'
  assert exchange.share_text('ä', folder) == 'ä' and not folder.exists()
  folder.mkdir()
  for name in ('a' * 64, 'b' * 64 + '.partial', 'mine', 'c' * 63):
    (folder / name).touch()
  run.begin(tiny.get_config(), tmp_path, 'train')
  assert {path.name for path in folder.iterdir()} == {'mine', 'c' * 63}


def test_text_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
  _alone_of_two(monkeypatch)
  (tmp_path / 'exchange').touch()  # no folder
  with pytest.raises(errors.UserError, match='^Cannot write to .* exists'):
    run.begin(tiny.get_config(), tmp_path, 'train')


_WORKER = """
import sys
import jax
jax.config.update('jax_cpu_collectives_implementation', 'gloo')
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from rods_jax import exchange
from rods_jax.device import advantages

seam = exchange.Exchange(4)
mine = [5, 3] if jax.process_index() == 0 else []
ids = seam.begin_epoch(mine)
mesh = jax.make_mesh((2,), ('data',), axis_types=(AxisType.Auto,))
for spec in (P(), P('data')):
  sharding = NamedSharding(mesh, spec)
  whole = np.array([8, 4, 0, 0], np.float32)
  place = lambda a: jax.make_array_from_callback(
      (4,), sharding, lambda index: a[index])
  stats = advantages.TaskStats(
      place(whole), place(whole / np.float32(2)),
      place(whole / np.float32(4)))
  print('RESULT', sorted(
      (i, s.count, s.total, s.square)
      for i, s in seam.gather(stats, ids).items()))
"""


def test_two_processes_see_the_ids_of_process_0():
  with socket.socket() as s:
    s.bind(('localhost', 0))
    address = f'localhost:{s.getsockname()[1]}'
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
  workers = [
      subprocess.Popen(
          [sys.executable, '-c', textwrap.dedent(_WORKER), address, str(i)],
          stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT,
          text=True,
          env=env,
          cwd=pathlib.Path(__file__).parents[1],
      )
      for i in range(2)
  ]
  try:
    outputs = [w.communicate(timeout=120)[0] for w in workers]
  finally:
    for w in workers:
      w.kill()
  expected = 'RESULT [(3, 4, 2.0, 1.0), (5, 8, 4.0, 2.0)]'
  for output in outputs:
    results = [x for x in output.splitlines() if x.startswith('RESULT')]
    assert results == [expected] * 2, output
