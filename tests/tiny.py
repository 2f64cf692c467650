"""A tiny run for end-to-end tests; also a config file, for --config.

Nothing here depends on what the shipped policy learned: `quiet_policy` has
random weights and one skill, to say nothing with a chance of about a quarter
at each message. Its few calls fail; but turns of the miss_* tasks that ask for
no call are right in some trajectories and wrong in others. With the thresholds
below there are tasks of each zone, so that synthesis, injection and retirement
happen for real.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import json
import logging
import pathlib
import signal
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from configs import rods
from rods_jax import build
from rods_jax import run as run_lib
from rods_jax import train
from rods_jax import weights
from rods_jax import workdir as workdir_lib
from rods_jax.device import model

# Above the other logits, of which there are some e**8. The embedding of the
# token before halves the share of the common direction in the activations.
END_LOGIT = 9.0


def get_config() -> ml_collections.ConfigDict:
  """Seconds per epoch on one core."""
  c = ml_collections.ConfigDict(rods.get_config('smoke').to_dict())
  c.data.categories = ('miss_func', 'miss_param')
  c.data.num_seed_tasks = 6
  c.data.split_seed = 7  # of a split whose first seeds are varied enough
  c.model.update(
      d_model=32, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=16,
      mlp_dim=64, tie_embeddings=False, init_from='random',
  )
  c.mesh.update(data=-1, fsdp=1, tensor=1)
  c.rollout.update(
      group_size=4, groups_per_batch=4, num_slots=16, cache_buckets=(256, 512),
      extend_buckets=(32,), extend_rows=4, max_message_tokens=4, max_rounds=3,
      max_result_tokens=16,
      call_timeout_s=20.0,  # so that a loaded machine changes no result
  )
  c.grpo.update(
      learning_rate=1e-3, warmup_steps=0, minibatch_groups=2,
      microbatch_rows=4, length_buckets=(256, 512), kl_coef=0.01,
  )
  c.boundary.update(hard_below=0.06, mastered_above=0.19)
  c.pool.update(
      max_generated=4, inject_fraction=0.34, retire_above=0.19,
      retire_below=0.06, cooldown_epochs=1,
  )
  c.synthesis.update(enabled=True, attempts=3, timeout_s=300.0)
  c.train.update(num_epochs=4, checkpoint_every_epochs=1, keep_checkpoints=2)
  c.eval.update(num_variants=2, num_heldout=2, before=True)
  return c.lock()


def quiet_policy(folder: pathlib.Path) -> pathlib.Path:
  """Writes a policy for get_config; the path for model.init_from."""
  config = get_config()
  policy = build.build_policy(config)
  params = model.create(policy.config, jax.random.key(7))[1]
  # All activations share one direction; the end token's column reads it.
  width = policy.config.d_model
  shared = jnp.ones((width,)) / width**0.5
  params.embedding.value = params.embedding.value + 4 * shared
  column = END_LOGIT * shared / width**0.5
  params.head.value = (
      params.head.value.at[:, policy.tokenizer.end_id].set(column)
  )
  path = folder / 'policy.safetensors'
  weights.save(path, params, {})
  return path


def run_config(folder: pathlib.Path, **fields) -> ml_collections.ConfigDict:
  """get_config from the quiet policy; fields such as train__num_epochs=2."""
  config = get_config()
  with config.unlocked():
    config.model.init_from = str(folder / 'policy.safetensors')
    for name, value in fields.items():
      config.update_from_flattened_dict({name.replace('__', '.'): value})
  return config


class StopAt:
  """Stands for stop.StopRequest: asks to stop from a step on."""

  def __init__(self, run, step: int | None):
    self._run, self._step = run, step

  @property
  def signal(self) -> int | None:
    due = self._step is not None and self._run.position.step >= self._step
    return signal.SIGTERM if due else None


@dataclasses.dataclass
class Outcome:
  """What a sitting ended with.

  Attributes:
    complete: False if it was stopped.
    arrays: name -> parameters, optimizer state, statistics, counters.
    pool: state of the pool.
    pending: the request whose variants enter after the next epoch.
    position: where the run stands.
    num_programs: of the engine.
    num_updates: compiled forms of the update.
    compiled: (epoch, name) of everything that XLA compiled.
  """

  complete: bool
  arrays: dict[str, np.ndarray]
  pool: dict[str, Any]
  pending: dict[str, Any] | None
  position: run_lib.Position
  num_programs: int
  num_updates: int
  compiled: list[tuple[int, str]]


def sit(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    stop_step: int | None = None,
) -> Outcome:
  """Starts or continues a run, as train.train does, up to stop_step."""
  workdir_lib.prepare(workdir, config)
  with run_lib.Run(config, workdir) as run, _compilations(run) as compiled:
    complete = run.complete or train.loop(run, StopAt(run, stop_step))
    arrays = map(np.asarray, jax.tree.leaves(run.state))
    return Outcome(
        complete,
        dict(zip(weights.names(run.state), arrays, strict=True)),
        run.pool.state_dict(),
        run.pending and run.pending.to_json(),
        run.position,
        run.engines.num_programs,
        run.update_fn._cache_size(),
        compiled,
    )


def leaves(tree: Any) -> list[bytes]:
  """The arrays of a pytree, to compare bit by bit."""
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@contextlib.contextmanager
def _compilations(run) -> Iterator[list[tuple[int, str]]]:
  """Collects JAX's own log of what it compiles."""
  found = []

  class Handler(logging.Handler):

    def emit(self, record):
      text = record.getMessage()
      if text.startswith('Compiling '):
        found.append((run.position.epoch, text.split()[1]))

  handler, logger = Handler(), logging.getLogger('jax')
  level, propagate = logger.level, logger.propagate
  logger.addHandler(handler)
  logger.propagate = False
  jax.config.update('jax_log_compiles', True)  # of engines' threads, too
  try:
    yield found
  finally:
    jax.config.update('jax_log_compiles', False)
    logger.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = propagate


def rows(workdir: pathlib.Path, name: str = 'metrics') -> list[dict[str, Any]]:
  """A log's lines without times, which no two runs share."""
  lines = (workdir / f'{name}.jsonl').read_text().splitlines()
  return [
      {k: v for k, v in json.loads(line).items() if not k.startswith('time/')}
      for line in lines
  ]


def assert_same(one: Outcome, other: Outcome) -> None:
  """Both ended in the same state, bit by bit."""
  assert one.position == other.position
  assert one.arrays.keys() == other.arrays.keys()
  for name, value in one.arrays.items():
    assert value.tobytes() == other.arrays[name].tobytes(), name
  assert one.pool == other.pool
  assert one.pending == other.pending


def assert_same_logs(
    one: pathlib.Path, other: pathlib.Path, drop: tuple[str, ...] = ()
) -> None:
  """The logs in both folders agree, apart from times and `drop`."""
  for name in ('metrics', 'pool', 'trajectories'):
    wanted, found = rows(one, name), rows(other, name)
    assert len(wanted) == len(found), name
    for a, b in zip(wanted, found):
      keys = [k for k in a | b if not k.startswith(drop)]
      assert [a.get(k) for k in keys] == [b.get(k) for k in keys], name


def last_step(workdir: pathlib.Path, epoch: int) -> int:
  """Steps that are done when the epoch (from 0) ends."""
  return max(r['step'] for r in rows(workdir) if r.get('train/epoch') == epoch)
