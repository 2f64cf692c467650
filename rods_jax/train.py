"""The training loop: GRPO with a task pool that co-evolves with the policy.

One epoch:
  1. The pool's active ids, shuffled, go to the device loop.
  2. For each batch of tasks: roll out group_size trajectories of each, then
     update per minibatch of groups; per-task reward statistics are reduced in
     the same call and stay on the device.
  3. The exchange brings the statistics to the host, once.
  4. The pool records them, retires what is mastered or hopeless, takes in the
     variants that were synthesized meanwhile, and names the next seeds;
     their synthesis starts in a background process. So the seeds of epoch n
     are varied while epoch n+1 trains, and their variants play in n+2.
  5. All of it is one checkpoint.

A signal stops the run after a batch, with a checkpoint; the same command goes
on from there and gives the numbers of a run that never stopped.

With several processes (processes.py) each runs this loop and keeps the same
pool. Each plays its share of the groups in its own environments, and process 0
alone synthesizes and writes.
"""

import logging
import pathlib
from typing import Any

import jax
import ml_collections
import numpy as np

from rods_jax import build
from rods_jax import errors
from rods_jax import evaluate
from rods_jax import exchange
from rods_jax import pretrained
from rods_jax import records
from rods_jax import report
from rods_jax import rng
from rods_jax import run as run_lib
from rods_jax import settings
from rods_jax import sharding
from rods_jax import stop as stop_lib
from rods_jax import terminal
from rods_jax import types
from rods_jax import weights
from rods_jax import workdir as workdir_lib
from rods_jax.device import update
from rods_jax.host import packing
from rods_jax.host import rollout
from rods_jax.host import side_by_side
from rods_jax.host.synthesis import pipeline
from rods_jax.host.synthesis import request as request_lib
from rods_jax.host.synthesis.compose.records import Gates

Metrics = dict[str, Any]
Groups = list[list[types.Trajectory]]


def train(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> int:
  """Runs or continues a training run; returns the exit status."""
  settings.check_training(config)
  config = pretrained.resolve(config)
  run_lib.begin(config, workdir, 'train')
  with stop_lib.StopRequest() as stop, run_lib.Run(config, workdir) as run:
    if exchange.is_first():  # a failed start claims no folder
      workdir_lib.prepare(workdir, config)
    if run.complete and exchange.is_first():
      print(
          f'{workdir} holds a complete run of {run.position.epoch} epochs; '
          'a larger --config.train.num_epochs continues it.'
      )
    complete = run.complete or loop(run, stop)
    signal = exchange.largest(stop.signal or 0)
  if not exchange.is_first():
    return 0 if complete else 128 + signal
  with workdir_lib.writable(workdir):
    report.write_report(workdir)
  if not complete:
    print(
        f'Stopped at step {run.position.step}; the same command continues.'
    )
    return 128 + signal
  print(terminal.summary_table(report.summary_rows(workdir)))
  print(f'Report: {workdir / "report.html"}')
  return 0


def loop(run: run_lib.Run, stop: stop_lib.StopRequest) -> bool:
  """All epochs that are left; False if a signal stopped them before."""
  config, position = run.config, run.position
  num_epochs = config.train.num_epochs
  run.timer.metrics()  # what came before is no step's time
  if not position.step and config.eval.before:
    _write(run, 0, evaluate_policy(run) | run.timer.metrics())
  with _progress_bar(run) as bar:
    while position.epoch < num_epochs:
      ids = epoch_ids(run)
      batches = _batches(ids, config.rollout.groups_per_batch)
      for slots in batches[position.batch :]:
        if exchange.largest(stop.signal or 0):  # of any process
          run.save()
          return False
        rows = train_batch(run, ids, slots)
        position.batch += 1
        if position.batch == len(batches):
          with run.timer.phase('host'):
            rows[-1] |= close_epoch(run, ids)
          position.epoch, position.batch = position.epoch + 1, 0
          if position.epoch == num_epochs:
            rows[-1] |= evaluate_policy(run)
        rows[-1] |= run.timer.metrics()
        _log(run, rows, bar)
        if not position.batch:
          bar.end_epoch(position.epoch - 1)
          bar.expect(_total_steps(run))
        if _checkpoint_is_due(run):
          with run.timer.phase('checkpoint'):  # of the next step
            run.save()
  return True


def epoch_ids(run: run_lib.Run) -> np.ndarray:
  """1. int32 [capacity] ids; the same again when an epoch is resumed."""
  random = rng.host(run.config.rng_seed, 'order', run.position.epoch)
  return run.exchange.begin_epoch(run.pool.order(random))


def train_batch(
    run: run_lib.Run, ids: np.ndarray, slots: np.ndarray
) -> list[Metrics]:
  """2. Plays the tasks ids[slots] and updates; metrics of each step."""
  with run.timer.phase('rollout'):
    trajectories = play(run, ids[slots])
  size = run.config.rollout.group_size
  groups = [
      trajectories[i : i + size] for i in range(0, len(trajectories), size)
  ]
  with run.timer.phase('host'):
    _keep_trajectories(run, run.pool.task(int(ids[slots[0]])), groups[0])
  per_step = run.config.grpo.minibatch_groups
  rows = []
  for i in range(0, len(groups), per_step):
    part = groups[i : i + per_step]
    metrics = update_policy(run, part, slots[i : i + per_step])
    rows.append(
        {'train/epoch': run.position.epoch}
        | records.group_metrics(part)
        | metrics
    )
    if i + per_step < len(groups):  # the last row's time is not over yet
      rows[-1] |= run.timer.metrics()
  return rows


def play(run: run_lib.Run, ids: np.ndarray) -> list[types.Trajectory]:
  """group_size trajectories of each task, group by group."""
  r, position = run.config.rollout, run.position
  key = rng.device(run.config.rng_seed, 'sample', position.step)
  run.engines.reset(run.params, key, temperature=r.temperature)
  tasks = [run.pool.task(int(i)) for i in ids]
  jobs = [
      rollout.Job(tasks[k], sample, k * r.group_size + sample)
      for k in range(len(tasks))[exchange.share(len(tasks))]
      for sample in range(r.group_size)
  ]
  result = side_by_side.rollout(
      jobs,
      run.engines.each,
      run.policy.fmt,
      run.budgets,
      policy_version=position.step,
      environments=run.environments,
  )
  run.engines.release()
  run.timer.add('host', result.host_s)
  return exchange.gather_trajectories(
      result.trajectories, tasks, r.group_size, run.engines.capacity
  )


def update_policy(
    run: run_lib.Run, groups: Groups, slots: np.ndarray
) -> Metrics:
  """One optimizer step on a minibatch of groups."""
  grpo = run.config.grpo
  with run.timer.phase('host'):
    batch = packing.pack(
        groups,
        slots,
        buckets=tuple(run.config.grpo.length_buckets),
        microbatch_rows=grpo.microbatch_rows,
        group_size=run.config.rollout.group_size,
        num_groups=grpo.minibatch_groups,
        skip_flat=grpo.skip_flat_groups,
        mask_overlong=grpo.mask_overlong,
        pad_id=run.policy.tokenizer.pad_id,
    )
  with run.timer.phase('update'):
    placed = sharding.put_batch(batch, run.policy.mesh)
    run.state, metrics = run.update_fn(run.state, run.ref_params, placed)
    metrics = {k: float(v) for k, v in jax.device_get(metrics).items()}
  # Flat groups, masked rows and rows without a sampled token are not in it.
  metrics['train/rows'] = packing.num_rows(batch.packed)
  run.position.step += 1
  if metrics['loss/nonfinite_in_row'] >= grpo.max_nonfinite:
    raise errors.UserError(
        f'{grpo.max_nonfinite} updates in a row were not finite; the last '
        f'batch is in {_dump(run, batch)}. Start again in another --workdir '
        'with a lower --config.grpo.learning_rate.'
    )
  return metrics


def _dump(run: run_lib.Run, batch: Any) -> pathlib.Path:
  """Writes the arrays of a batch, by name; every process awaits the file."""
  path = run.workdir / 'nonfinite_batch.npz'
  if run.writer is not None:
    named = zip(weights.names(batch), jax.tree.leaves(batch), strict=True)
    with workdir_lib.writable(run.workdir):
      np.savez(path, **dict(named))
  exchange.largest(0)  # the first process to end ends the one that writes
  return path


def close_epoch(run: run_lib.Run, ids: np.ndarray) -> Metrics:
  """3. and 4. What the epoch taught about the tasks."""
  epoch, pool = run.position.epoch, run.pool
  stats = run.exchange.gather(run.state.stats, ids)
  run.state = update.clear_stats(run.state)
  pool.record(epoch, stats)
  zones, variance = pool.partition(), pool.zone_variance()
  before, size, generated = len(pool.events), len(pool), pool.num_generated
  pool.retire(epoch)
  made, stages = _collect(run)
  injected = pool.inject(epoch + 1, made)
  _request(run, epoch)
  changes = [event['event'] for event in pool.events[before:]]
  return {
      **{f'boundary/{zone}': len(found) for zone, found in zones.items()},
      **{f'boundary/variance_{z}': v for z, v in variance.items()},
      'pool/size': size,
      'pool/generated': generated,
      'pool/injected': len(injected),
      'pool/retired': changes.count('retired'),
      'pool/waiting': len(pool.waiting),
      'pool/duplicates': pool.num_duplicates,
      **stages,
  }


def _collect(run: run_lib.Run) -> tuple[list[types.Task], Metrics]:
  """Variants of the seeds that the epoch before named.

  They enter now or never: which epoch a variant enters at may not depend on
  how fast the machine is, or a continued run would give other numbers.
  """
  if run.pending is None:
    return [], {}
  request, run.pending = run.pending, None
  made = _await_synthesis(run, request)
  with workdir_lib.writable(run.workdir):
    made, stages = exchange.share_variants(made, run.workdir / 'exchange')
  return made, stages.metrics(run.config.synthesis.planner)


def _await_synthesis(
    run: run_lib.Run, request: pipeline.Request
) -> tuple[list[types.Task], Any] | None:
  """What the background process made of a request; None without one."""
  if run.synthesis is None:
    return None
  collected = run.synthesis.collect(run.config.synthesis.timeout_s)
  if collected is None:
    logging.warning(
        'Synthesis took longer than config.synthesis.timeout_s; its request '
        'runs again in the main process, with the same result.'
    )
    run.restart_synthesis()
    collected = pipeline.run_request(request)
  return collected


def _request(run: run_lib.Run, epoch: int) -> None:
  """Names the next seeds and starts their synthesis.

  After the last epoch it is only noted, for a run that is continued.
  """
  if not run.config.synthesis.enabled:
    return
  seeds = run.pool.choose_seeds(epoch)
  if not seeds:
    return
  run.pending = pipeline.Request(
      epoch=epoch,
      seeds=tuple(run.pool.task(i) for i in seeds),
      per_seed=max(1, run.pool.injection_cap() // len(seeds)),
      rng_seed=run.config.rng_seed,
      attempts=run.config.synthesis.attempts,
      forbidden=run.pool.hashes(),
      known=_known(run),
      max_profile_distance=run.config.synthesis.max_profile_distance,
      planner=run.config.synthesis.planner,
      gates=Gates(
          max_class_distance=run.config.synthesis.max_class_distance,
          min_cross_turn=run.config.synthesis.min_cross_turn,
          min_novelty=run.config.synthesis.min_novelty,
      ),
      llm=build.language_model(run.config),
  )
  if epoch + 1 < run.config.train.num_epochs:
    run.submit_pending()


def _known(run: run_lib.Run) -> tuple[types.Task, ...]:
  """What composed tasks must be unlike: those that play and those that wait."""
  if run.config.synthesis.planner != 'compose':
    return ()
  active = map(run.pool.task, run.pool.active_ids)
  return tuple(map(request_lib.bare, (*active, *run.pool.waiting)))


def evaluate_policy(run: run_lib.Run) -> Metrics:
  """Scores of the current policy on both evaluation sets."""
  with run.timer.phase('evaluate'):
    results = evaluate.evaluate_tasks(
        run.config,
        run.policy,
        run.params,
        run.evaluation,
        run.engines,
        run.environments,
    )
  if exchange.is_first():
    evaluate.write(run.config, run.workdir, run.position.step, results)
  return evaluate.metrics(results)


def _batches(ids: np.ndarray, size: int) -> list[np.ndarray]:
  """Positions of the epoch's tasks in ids; the last batch may be smaller."""
  slots = np.arange(int((ids >= 0).sum()))
  return [slots[i : i + size] for i in range(0, len(slots), size)]


def _checkpoint_is_due(run: run_lib.Run) -> bool:
  """At the end of an epoch: every few, and the last."""
  position, config = run.position, run.config.train
  return not position.batch and (
      position.epoch == config.num_epochs
      or position.epoch % config.checkpoint_every_epochs == 0
  )


def _write(run: run_lib.Run, step: int, row: Metrics) -> None:
  if run.writer is not None:
    with workdir_lib.writable(run.workdir):
      run.writer.write(step, row)


def _log(
    run: run_lib.Run, rows: list[Metrics], bar: terminal.ProgressBar
) -> None:
  first = run.position.step - len(rows) + 1
  for step, row in enumerate(rows, first):
    _write(run, step, row)
    bar.update(step, int(row['train/epoch']), row['reward/mean'])


def _progress_bar(run: run_lib.Run) -> terminal.ProgressBar:
  return terminal.ProgressBar(
      _total_steps(run),
      run.config.train.num_epochs,
      initial_step=run.position.step,
      stream=None if exchange.is_first() else terminal.Nowhere(),
  )


def _total_steps(run: run_lib.Run) -> int:
  """Steps of the whole run if the pool stays as large as it is now."""
  position, config = run.position, run.config
  per_batch = config.rollout.groups_per_batch // config.grpo.minibatch_groups
  per_epoch = -(-len(run.pool) // config.grpo.minibatch_groups)
  left = (config.train.num_epochs - position.epoch) * per_epoch
  return position.step + left - position.batch * per_batch


def _keep_trajectories(
    run: run_lib.Run, task: types.Task, group: list[types.Trajectory]
) -> None:
  """Logs the first group of each batch, for reading."""
  position = run.position
  position.trajectories += len(group)
  if run.writer is None:
    return
  lines = records.group_records(
      position.step, position.epoch, task, group, run.policy.tokenizer.decode
  )
  with workdir_lib.writable(run.workdir):
    run.writer.append_jsonl('trajectories', lines)
