"""A run's parts and its state: created fresh or from the last checkpoint."""

import contextlib
import dataclasses
import json
import pathlib
from typing import Any, Callable

from flax import nnx
import jax
import ml_collections
import optax

from rods_jax import build
from rods_jax import checkpoint
from rods_jax import errors
from rods_jax import exchange as exchange_lib
from rods_jax import metrics as metrics_lib
from rods_jax import settings
from rods_jax import weights
from rods_jax import workdir as workdir_lib
from rods_jax.device import lora
from rods_jax.device import model
from rods_jax.device import update
from rods_jax.host import boundary
from rods_jax.host import env_pool
from rods_jax.host import replay
from rods_jax.host.synthesis import background
from rods_jax.host.synthesis import pipeline
from rods_jax.host.synthesis.llm import client


@dataclasses.dataclass
class Position:
  """Where the run stands; part of every checkpoint.

  Attributes:
    epoch: the current epoch, from 0; num_epochs once the run is complete.
    batch: rollout batches of this epoch that are done.
    step: optimizer steps that are done.
    trajectories: lines of trajectories.jsonl.
  """

  epoch: int = 0
  batch: int = 0
  step: int = 0
  trajectories: int = 0


class Run:
  """All that a run holds; created fresh or from its last checkpoint."""

  def __init__(self, config: ml_collections.ConfigDict, workdir: pathlib.Path):
    self.config, self.workdir = config, workdir
    if config.synthesis.enabled and config.synthesis.language == 'openai':
      client.require()
    self.policy = build.build_policy(config)
    self.tasks = build.build_tasks(config, self.policy.fmt)
    self.engines = build.build_engines(config, self.policy)
    self.budgets = build.build_budgets(config)
    self.evaluation = build.evaluation_tasks(
        config, self.tasks, self.policy.fmt
    )
    self.position = Position()
    self.pending: pipeline.Request | None = None
    with errors.as_user_error(ValueError):
      self.pool = replay.Pool(self.tasks.seeds, *pool_configs(config))
    self.exchange = exchange_lib.Exchange(
        len(self.tasks.seeds) + config.pool.max_generated
    )
    self.timer = metrics_lib.PhaseTimer()
    self.saver = checkpoint.Checkpointer(
        workdir / 'checkpoints', config.train.keep_checkpoints
    )
    self._cleanup = contextlib.ExitStack()
    self._cleanup.callback(self.saver.close)
    self._saved_step = 0
    self.environments: env_pool.Environments | None = None
    self.writer: metrics_lib.MetricsWriter | None = None
    self.synthesis: background.Background | None = None
    with contextlib.ExitStack() as unless_open:  # what fails leaves nothing
      unless_open.callback(self._cleanup.close)
      self._build_update()
      self._restore()
      if not self.complete:  # a complete run's files stay as they are
        self._open()
      unless_open.pop_all()

  @property
  def complete(self) -> bool:
    return self.position.epoch >= self.config.train.num_epochs

  def _open(self) -> None:
    """Logs and other processes."""
    if exchange_lib.is_first():  # the only process that writes
      with workdir_lib.writable(self.workdir):
        self._open_logs()
        self.restart_synthesis()
    self.environments = build.build_environments(self.config)
    self._cleanup.callback(self.environments.close)
    self.submit_pending()

  def _open_logs(self) -> None:
    """The logs, brought back to the checkpoint."""
    position = self.position
    self.writer = metrics_lib.MetricsWriter(self.workdir)
    self._cleanup.callback(self.writer.close)
    # Step 0 is only written by a run that starts, which it does again.
    self.writer.rewind(position.step or -1)
    self.writer.truncate_jsonl('trajectories', position.trajectories)

  def restart_synthesis(self) -> None:
    """A fresh background process that knows of no request."""
    if self.synthesis is not None:
      self.synthesis.close()
    self.synthesis = background.Background(self.workdir / 'synthesis')
    self._cleanup.callback(self.synthesis.close)

  def submit_pending(self) -> None:
    """Starts the synthesis of the pending request, if there is one."""
    if self.pending is not None and self.synthesis is not None:
      with workdir_lib.writable(self.workdir):
        self.synthesis.submit(self.pending)

  def _build_update(self) -> None:
    config, policy = self.config, self.policy
    optimizer = make_optimizer(config)
    params = weights.initial_params(config, policy)
    self.ref_params = None
    self._base_digest = None  # checkpoints hold adapters alone
    if policy.config.lora_rank:
      self.ref_params, params = params, weights.initial_adapters(config, policy)
      self._base_digest = weights.digest(self.ref_params)
    elif config.grpo.kl_coef > 0:  # a copy, since the update donates params
      self.ref_params = jax.tree.map(lambda x: x.copy(), params)
    self.state = update.init_state(
        params, optimizer, self.exchange.capacity, policy.mesh
    )
    self.update_fn = make_update(
        config,
        policy.graphdef,
        optimizer,
        jax.tree.map(lambda x: x.sharding, self.state),
        policy.mesh,
        make_base_graphdef(policy.config),
    )

  @property
  def params(self) -> Any:
    """The policy's parameters, adapters included."""
    if not self.policy.config.lora_rank:
      return self.state.params
    return lora.join(self.state.params, self.ref_params)

  def _restore(self) -> None:
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        self.state,
    )
    try:
      step = common_step(lambda: self.saver.latest_step)
      restored = self.saver.restore(abstract, step) if step != 0 else None
    except checkpoint.CheckpointError as error:
      raise errors.UserError(
          f'{error}. Choose another --workdir, or delete {self.workdir} to '
          'start again.'
      ) from error
    if restored is None:
      return
    self.state = restored.arrays
    document = restored.document
    if self.policy.config.lora_rank:
      check_base(self.config, self._base_digest, document)
    self.position = Position(**document['position'])
    self._saved_step = self.position.step
    self.pool = replay.Pool.from_state(
        document['pool'], *pool_configs(self.config)
    )
    if document['pending'] is not None:
      pending = pipeline.Request.from_json(document['pending'])
      # The server may have moved since.
      self.pending = dataclasses.replace(
          pending, llm=build.language_model(self.config)
      )

  def save(self) -> None:
    """One composite checkpoint, unless there is one of this step already.

    The logs it counts on are written first.
    """
    if self.position.step == self._saved_step:
      return
    if exchange_lib.is_first():
      with workdir_lib.writable(self.workdir):
        self.pool.log.write(self.workdir / 'pool.jsonl')
    pending = None if self.pending is None else self.pending.to_json()
    document = {
        'position': dataclasses.asdict(self.position),
        'pool': self.pool.state_dict(),
        'pending': pending,
        'base': self._base_digest,
    }
    with errors.as_user_error(checkpoint.CheckpointError):
      self.saver.save(self.position.step, self.state, document)
    self._saved_step = self.position.step

  def __enter__(self) -> 'Run':
    return self

  def __exit__(self, *exc_info) -> None:
    with workdir_lib.writable(self.workdir):
      self._cleanup.close()


def begin(
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    mode: str,
    may_differ: str = '',
) -> None:
  """Checks the folder, and that all processes have one mode and configuration.

  Raises:
    UserError: another run's folder, or one that this process cannot use; or
      process 0 was started with another configuration or mode.
  """
  folder = workdir / 'exchange'
  if exchange_lib.is_first():
    workdir_lib.check(workdir, config, may_differ)
    with workdir_lib.writable(workdir):
      exchange_lib.clear(folder)
  text = json.dumps({'mode': mode, 'config': config.to_dict()}, sort_keys=True)
  with workdir_lib.writable(workdir):
    first = exchange_lib.share_text(text, folder)
  if first == text:
    return
  wanted = json.loads(first)
  if wanted['mode'] != mode:
    raise errors.UserError(
        f'--mode is {mode} in process {jax.process_index()} and '
        f'{wanted["mode"]} in process 0; start all with the same flags.'
    )
  wanted, found = (
      settings.fields(ml_collections.ConfigDict(json.loads(t)['config']))
      for t in (first, text)
  )
  name = min(n for n in wanted | found if wanted.get(n) != found.get(n))
  raise errors.UserError(
      f'config.{name} is {found.get(name)!r} in process '
      f'{jax.process_index()} and {wanted.get(name)!r} in process 0; start all '
      'with the same flags.'
  )


def make_optimizer(
    config: ml_collections.ConfigDict,
) -> optax.GradientTransformation:
  """The optimizer of the update."""
  grpo = config.grpo
  return update.make_optimizer(
      grpo.learning_rate,
      grpo.warmup_steps,
      grpo.grad_clip,
      grpo.weight_decay,
  )


def make_update(
    config: ml_collections.ConfigDict,
    graphdef: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    state_shardings: update.TrainState,
    mesh: jax.sharding.Mesh,
    base_graphdef: nnx.GraphDef | None = None,
) -> Callable[..., Any]:
  """The GRPO update of device/update.py with this run's options."""
  grpo = config.grpo
  return update.make_update_fn(
      graphdef,
      optimizer,
      update.GrpoConfig(
          clip_low=grpo.clip_low,
          clip_high=grpo.clip_high,
          dual_clip=grpo.dual_clip,
          kl_coef=grpo.kl_coef,
          entropy_coef=grpo.entropy_coef,
          aggregation=grpo.aggregation,
          normalize_advantage=grpo.normalize_advantage,
          temperature=config.rollout.temperature,
      ),
      chunk=grpo.logprob_chunk or None,
      base_graphdef=base_graphdef,
      state_shardings=state_shardings,
      mesh=mesh,
  )


def pool_configs(
    config: ml_collections.ConfigDict,
) -> tuple[replay.PoolConfig, boundary.BoundaryConfig]:
  return (
      replay.PoolConfig(**config.pool),
      boundary.BoundaryConfig(**config.boundary),
  )


def make_base_graphdef(config: model.ModelConfig) -> nnx.GraphDef | None:
  """Definition of the policy without adapters; None where it has none."""
  return model.definition(config.base) if config.lora_rank else None


def check_base(
    config: ml_collections.ConfigDict, digest: str, document: dict[str, Any]
) -> None:
  """Raises UserError where a checkpoint's adapters belong to another base."""
  if document['base'] != digest:
    raise errors.UserError(
        f'config.model.init_from, {config.model.init_from}, holds other '
        'parameters than when this run started; its adapters belong to '
        'those. Put them back, or start again in another --workdir.'
    )


def common_step(latest: Callable[[], int | None]) -> int | None:
  """Step of the checkpoint that all processes must read; 0 where none is.

  It is the newest that process 0 finds undamaged: each could find another.
  None for a process alone, which takes the newest that it can read.

  Args:
    latest: finds the newest that is undamaged; only process 0 calls it.
  """
  if jax.process_count() == 1:
    return None
  step = latest() if exchange_lib.is_first() else None
  return exchange_lib.of_first(step or 0)


def latest_params(
    config: ml_collections.ConfigDict,
    policy: build.Policy,
    workdir: pathlib.Path,
) -> tuple[int, Any]:
  """(step, params) of the newest checkpoint, or (0, the initial policy)."""
  folder = workdir / 'checkpoints'
  adapted = policy.config.lora_rank > 0
  latest = lambda: checkpoint.latest_step(folder)
  with errors.as_user_error(checkpoint.CheckpointError):
    wanted, found = common_step(latest), None
    step = latest() or 0 if wanted is None else wanted
    if step:
      found = checkpoint.load(folder, weights.abstract_trained(policy), wanted)
      step = found.step  # an older one, where the newest can't be read
  if found is not None and not adapted:
    return step, found.arrays['params']
  initial = weights.initial_params(config, policy)
  if not adapted:
    return step, initial
  if found is None:
    return step, lora.join(weights.initial_adapters(config, policy), initial)
  check_base(config, weights.digest(initial), found.document)
  return step, lora.join(found.arrays['params'], initial)
