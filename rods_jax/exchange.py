"""The exchange: the only seam between device statistics and host ids.

At the start of an epoch the ids of the pool go to the device loop; at its end
the reward statistics of each come back, in one transfer. Both have a fixed
shape, N = the pool's capacity, so that a growing pool compiles nothing anew:
position k of the statistics belongs to the task at position k of the ids, and
-1 fills the rest. Text never crosses here.

Where a program spans several processes, every process calls each function here
at the same time. Process 0's ids count, and every process gets the statistics
of all. Two more things cross then: the trajectories that each process played,
as numbers, because the rows of an update come from all of them; and the
variants that process 0 has synthesized, as a file that is named by its content.
"""

from collections.abc import Sequence
import contextlib
import hashlib
import json
import os
import pathlib
import re
import time

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jaxtyping import Array, Float32
import numpy as np

from rods_jax import errors
from rods_jax import types
from rods_jax.device import advantages
from rods_jax.host.synthesis import records as synthesis

PADDING = -1
_VISIBLE_S = 30.0  # until a new file is seen on every machine
_SHARED = re.compile(r'[0-9a-f]{64}(\.partial)?')  # names of share_text's files
_MAX_TURNS = 31  # of a task: bits of an int32
_ELSEWHERE = 'judged in another process'
_FIELDS = ('count', 'total', 'square')


def is_first() -> bool:
  """Whether this is the process that writes: logs, reports, the pool."""
  return jax.process_index() == 0


def share(number: int, process: int | None = None) -> slice:
  """Which of `number` groups (or tasks) a process plays; None: this one."""
  process = jax.process_index() if process is None else process
  each = -(-number // jax.process_count())
  return slice(min(process * each, number), min((process + 1) * each, number))


def largest(value: int) -> int:
  """The largest of the processes' values."""
  if jax.process_count() == 1:
    return value
  return int(multihost_utils.process_allgather(np.int32(value)).max())


def of_first(value: int) -> int:
  """Process 0's value."""
  if jax.process_count() == 1:
    return value
  return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def share_text(text: str, folder: pathlib.Path) -> str:
  """Process 0's text, in every process.

  Args:
    text: only process 0's counts.
    folder: on a file system that all processes share; made if missing.

  Raises:
    OSError: process 0 cannot write there.
    UserError: this process does not see the file of process 0.
  """
  if jax.process_count() == 1:
    return text
  digest = np.zeros(32, np.uint8)
  if is_first():
    data = text.encode()
    digest = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f'{digest.tobytes().hex()}.partial'
    partial.write_bytes(data)
    os.replace(partial, partial.with_suffix(''))
  digest = np.asarray(multihost_utils.broadcast_one_to_all(digest)).tobytes()
  path = folder / digest.hex()
  data = _read(path, digest)
  multihost_utils.sync_global_devices('text was read')
  if is_first():
    clear(folder)
  return data.decode()


def clear(folder: pathlib.Path) -> None:
  """Removes share_text's files, also those that a killed process left.

  Only process 0 calls it, and while no other reads. Other files stay.
  """
  for path in folder.glob('*'):
    if _SHARED.fullmatch(path.name):
      path.unlink()
  with contextlib.suppress(OSError):  # not there, or not empty
    folder.rmdir()


def share_variants(
    made: tuple[list[types.Task], synthesis.Report] | None, folder: pathlib.Path
) -> tuple[list[types.Task], synthesis.Report]:
  """Process 0's variants and the report on them; see share_text."""
  if jax.process_count() == 1:
    return made
  text = ''
  if is_first():
    tasks, report = made
    text = json.dumps(
        {'tasks': [t.to_json() for t in tasks], 'report': report.to_json()}
    )
  found = json.loads(share_text(text, folder))
  tasks = [types.Task.from_json(task) for task in found['tasks']]
  return tasks, synthesis.Report.from_json(found['report'])


def _read(path: pathlib.Path, digest: bytes) -> bytes:
  deadline = time.monotonic() + _VISIBLE_S
  while time.monotonic() < deadline:
    with contextlib.suppress(OSError):  # not there yet, or an older folder
      data = path.read_bytes()
      if hashlib.sha256(data).digest() == digest:
        return data
    time.sleep(0.05)
  raise errors.UserError(
      f'Process {jax.process_index()} of {jax.process_count()} does not see '
      f'{path}, which process 0 wrote; put --workdir on a file system that all '
      'processes share.'
  )


def gather_trajectories(
    own: Sequence[types.Trajectory],
    tasks: Sequence[types.Task],
    per_task: int,
    capacity: int,
) -> list[types.Trajectory]:
  """The trajectories of all processes.

  Args:
    own: those of this process, of the tasks of its `share`, task by task.
    tasks: all tasks that are played, the same in every process.
    per_task: trajectories of each.
    capacity: most tokens of a row.

  Returns:
    len(tasks) * per_task trajectories, task by task. Those of other processes
    have neither events nor reasons: text does not cross.
  """
  if jax.process_count() == 1 or not tasks:
    return list(own)
  rows = share(len(tasks), 0).stop * per_task
  tokens = np.zeros((rows, capacity), np.int32)
  logprobs = np.zeros((rows, capacity), np.float32)
  mask = np.zeros((rows, capacity), bool)
  numbers = np.zeros((rows, len(_NUMBERS) + 4), np.int32)
  for i, t in enumerate(own):
    size = len(t.tokens)
    tokens[i, :size], mask[i, :size] = t.tokens, t.loss_mask
    logprobs[i, :size] = t.logprobs
    numbers[i] = size, *_verdicts(t), *(getattr(t, n) for n in _NUMBERS)
  arrays = multihost_utils.process_allgather((tokens, mask, logprobs, numbers))
  found = []
  for process in range(jax.process_count()):
    played = tasks[share(len(tasks), process)]
    if process == jax.process_index():
      found += own
      continue
    found += [
        _trajectory(played[i // per_task], *(a[process, i] for a in arrays))
        for i in range(len(played) * per_task)
    ]
  return found


_NUMBERS = (
    'sample', 'status', 'policy_version', 'num_rounds', 'num_calls',
    'num_tool_errors', 'num_parse_errors',
)
_VERDICTS = ('score', 'state_ok', 'response_ok')


def _verdicts(trajectory: types.Trajectory) -> list[int]:
  """Of each verdict a number whose bit k is that of turn k."""
  scores = trajectory.turn_scores
  if len(scores) > _MAX_TURNS:
    raise ValueError(
        f'{trajectory.task_id} has {len(scores)} turns; at most {_MAX_TURNS} '
        'cross between processes.'
    )
  return [
      sum(int(getattr(score, name)) << k for k, score in enumerate(scores))
      for name in _VERDICTS
  ]


def _trajectory(task: types.Task, tokens, mask, logprobs, numbers):
  """The inverse of what gather_trajectories fills in."""
  size, *rest = map(int, numbers)
  verdicts, fields = rest[:3], dict(zip(_NUMBERS, rest[3:], strict=True))
  fields['status'] = types.Status(fields['status'])
  bits = ([bool(v >> k & 1) for v in verdicts] for k in range(len(task.turns)))
  return types.Trajectory(
      task_id=task.task_id,
      tokens=tokens[:size].copy(),
      loss_mask=mask[:size].copy(),
      logprobs=logprobs[:size].copy(),
      turn_scores=tuple(
          types.TurnScore(state_ok, response_ok, '' if right else _ELSEWHERE)
          for right, state_ok, response_ok in bits
      ),
      **fields,
  )


@jax.jit
def _pack(count, total, square) -> Float32[Array, '3 N']:
  return jnp.stack((count, total, square))


class Exchange:
  """Hands ids to the device loop and statistics back to the pool."""

  def __init__(self, capacity: int):
    """A seam for at most `capacity` tasks: human plus max_generated."""
    if capacity < 1:
      raise ValueError(f'exchange capacity must be 1 or more, got {capacity}.')
    self.capacity = capacity

  def begin_epoch(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """The epoch's ids in fixed shape, the same in every process.

    Args:
      ids: distinct ids of at most `capacity` tasks, in the order in which they
        are visited. Only process 0's count.

    Returns:
      int32 [N], filled up with PADDING.

    Raises:
      ValueError: too many, doubled or negative ids.
    """
    ids = np.asarray(ids, np.int32).reshape(-1)
    if len(ids) > self.capacity:
      raise ValueError(
          f'{len(ids)} tasks do not fit the exchange of {self.capacity}.'
      )
    if len(np.unique(ids)) < len(ids) or (ids < 0).any():
      raise ValueError('task ids must be distinct and 0 or more.')
    padded = np.full((self.capacity,), PADDING, np.int32)
    padded[: len(ids)] = ids
    if jax.process_count() > 1:
      padded = np.asarray(multihost_utils.broadcast_one_to_all(padded))
    return padded

  def gather(
      self, stats: advantages.TaskStats, ids: np.ndarray
  ) -> dict[int, types.SeedStats]:
    """Reads the epoch's statistics: one device-to-host transfer.

    Args:
      stats: of the epoch, on device, with N slots. Counts are exact up to
        2**24.
      ids: what begin_epoch returned.

    Returns:
      id -> statistics of every task of the epoch; count 0 where no trajectory
      was played.

    Raises:
      ValueError: another shape than [N].
    """
    fields = [getattr(stats, name) for name in _FIELDS]
    for name, field in zip(_FIELDS, fields):
      if np.shape(field) != (self.capacity,):
        raise ValueError(
            f'statistics {name} have shape {np.shape(field)}, not '
            f'({self.capacity},).'
        )
    packed = _pack(*fields)
    if jax.process_count() > 1:
      packed = multihost_utils.process_allgather(packed, tiled=True)
    count, total, square = np.asarray(jax.device_get(packed))
    return {
        int(task_id): types.SeedStats(
            int(count[k]), float(total[k]), float(square[k])
        )
        for k, task_id in enumerate(np.asarray(ids))
        if task_id != PADDING
    }
