"""What a run writes down: metrics, logs of records, seconds per phase.

One writer puts every scalar into `metrics.jsonl` and into TensorBoard event
files (through tensorboardX, no TensorFlow). The other JSONL files of a working
directory go through it too. A line is flushed as it is written, so a killed
process loses at most the line it was writing; `rewind` and `truncate_jsonl`
bring the files back to a checkpoint.

This module never imports jax.
"""

import contextlib
import itertools
import json
import logging
import math
import os
import pathlib
import time
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

METRICS_FILE = 'metrics.jsonl'
TENSORBOARD_DIR = 'tensorboard'

# Two event files opened within one second would get the same name.
_event_file_count = itertools.count()


def _scalar(key: str, value: Any) -> int | float | None:
  """A Python number for a Python, numpy or jax scalar; None if not finite."""
  if value is None:
    return None
  array = np.asarray(value)
  if array.size != 1 or array.dtype.kind in 'OSUMmc':
    raise TypeError(
        f'metric {key!r} must be one real number, got {value!r}.'
    )
  if array.dtype.kind in 'biu':
    return int(array.reshape(()))
  number = float(array.reshape(()))
  return number if math.isfinite(number) else None


def _jsonable(value: Any) -> Any:
  """The value in JSON's own types; numbers that are not finite become null."""
  if isinstance(value, Mapping):
    return {str(key): _jsonable(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [_jsonable(item) for item in value]
  if isinstance(value, (np.ndarray, np.generic)):
    return _jsonable(value.tolist())
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def _line(record: Mapping[str, Any]) -> bytes:
  text = json.dumps(_jsonable(record), allow_nan=False)
  return text.encode('ascii') + b'\n'


def _parse_line(line: bytes) -> dict[str, Any] | None:
  """The object on one line, or None if it is not a whole JSON object."""
  try:
    record = json.loads(line)
  except (ValueError, RecursionError):
    return None
  return record if isinstance(record, dict) else None


def read_jsonl(
    path: str | os.PathLike[str],
) -> tuple[list[dict[str, Any]], int]:
  """Reads a JSONL file; a missing file is an empty one.

  Returns:
    The objects in file order, and the number of lines left out because they
    are no whole JSON object (a process killed while writing leaves one).
  """
  path = pathlib.Path(path)
  if not path.exists():
    return [], 0
  lines = [line for line in path.read_bytes().split(b'\n') if line.strip()]
  parsed = [_parse_line(line) for line in lines]
  records = [record for record in parsed if record is not None]
  return records, len(parsed) - len(records)


def _replace_file(path: pathlib.Path, data: bytes) -> None:
  """Puts data in place of the file in one step, durably."""
  temporary = path.with_name(path.name + '.tmp')
  with open(temporary, 'wb') as f:
    f.write(data)
    f.flush()
    os.fsync(f.fileno())
  os.replace(temporary, path)


class _EventFile:
  """One TensorBoard event file, written and flushed in the calling thread."""

  def __init__(self, folder: pathlib.Path, purge_step: int | None):
    from tensorboardX import event_file_writer
    from tensorboardX.proto import event_pb2
    from tensorboardX.proto import summary_pb2

    self._event = event_pb2.Event
    self._summary = summary_pb2.Summary
    folder.mkdir(parents=True, exist_ok=True)
    suffix = f'.{os.getpid()}.{next(_event_file_count)}'
    self._writer = event_file_writer.EventsWriter(
        str(folder / 'events'), suffix
    )
    if purge_step is not None:
      # TensorBoard drops what older files hold from this step on.
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._write(purge_step, session_log=start)

  def _write(self, step: int, **what: Any) -> None:
    event = self._event(step=step, wall_time=time.time(), **what)
    self._writer.write_event(event)
    self._writer.flush()

  def scalars(self, step: int, values: Mapping[str, float]) -> None:
    summary = self._summary()
    for tag, number in values.items():
      summary.value.add(tag=tag, simple_value=number)
    self._write(step, summary=summary)

  def close(self) -> None:
    self._writer.close()


class MetricsWriter:
  """Writes the metrics and record logs of one working directory.

  One process writes one working directory. A last line that a killed process
  left half-written is cut off when its file is opened.
  """

  def __init__(self, workdir: str | os.PathLike[str]):
    """Opens the directory, which is made if needed."""
    self._workdir = pathlib.Path(workdir)
    self._workdir.mkdir(parents=True, exist_ok=True)
    self._files: dict[str, Any] = {}
    self._events: _EventFile | None = None

  def write(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Writes one row: {"step": step, **metrics}.

    Args:
      step: optimizer steps done so far.
      metrics: 'phase/name' -> a Python, numpy or jax scalar, or None. None,
        NaN and infinities are written as null and left out of TensorBoard.

    Raises:
      ValueError: a key is not of the form 'phase/name'.
      TypeError: a value is not a scalar.
    """
    for key in metrics:
      if not all(key.partition('/')):
        raise ValueError(f"metric key {key!r} must look like 'phase/name'.")
    step = int(step)
    row = {key: _scalar(key, value) for key, value in metrics.items()}
    self._append(METRICS_FILE, _line({'step': step, **row}))
    numbers = {key: value for key, value in row.items() if value is not None}
    if self._events is None:
      self._events = self._open_events(purge_step=None)
    self._events.scalars(step, numbers)

  def rewind(self, step: int) -> None:
    """Drops the metrics after `step`, as if the run had stopped there.

    TensorBoard's files stay; the next one tells it to forget those steps.
    """
    path = self._workdir / METRICS_FILE
    records, _ = read_jsonl(path)
    if path.exists():
      self._release(METRICS_FILE)
      kept = [r for r in records if isinstance(r.get('step'), int)]
      _replace_file(
          path, b''.join(_line(r) for r in kept if r['step'] <= step)
      )
    if self._events is not None:
      self._events.close()
    self._events = self._open_events(purge_step=step + 1)

  def append_jsonl(
      self, name: str, records: Iterable[Mapping[str, Any]]
  ) -> None:
    """Appends one line for each record to `name`.jsonl, then flushes."""
    data = b''.join(_line(record) for record in records)
    if data:
      self._append(f'{name}.jsonl', data)

  def truncate_jsonl(self, name: str, num_lines: int) -> None:
    """Keeps the first `num_lines` lines of `name`.jsonl, atomically."""
    path = self._workdir / f'{name}.jsonl'
    lines = path.read_bytes().split(b'\n')[:-1] if path.exists() else []
    if len(lines) < num_lines:
      logging.warning(
          '%s has %d lines where the checkpoint counted %d: its history has '
          'a gap.', path, len(lines), num_lines
      )
    if path.exists():
      self._release(path.name)
      kept = lines[:num_lines]
      _replace_file(path, b''.join(line + b'\n' for line in kept))

  def close(self) -> None:
    """Makes everything durable and closes; safe to call twice."""
    for name, file in list(self._files.items()):
      os.fsync(file.fileno())
      self._release(name)
    if self._events is not None:
      self._events.close()
      self._events = None

  def __enter__(self) -> 'MetricsWriter':
    return self

  def __exit__(self, *unused_exception: Any) -> None:
    self.close()

  def _open_events(self, purge_step: int | None) -> _EventFile:
    return _EventFile(self._workdir / TENSORBOARD_DIR, purge_step)

  def _append(self, name: str, data: bytes) -> None:
    if name not in self._files:
      path = self._workdir / name
      file = open(path, 'ab')
      _cut_partial_line(path)
      self._files[name] = file
    self._files[name].write(data)
    self._files[name].flush()

  def _release(self, name: str) -> None:
    if name in self._files:
      self._files.pop(name).close()


def _cut_partial_line(path: pathlib.Path) -> None:
  """Removes what follows the last newline, so that lines never merge."""
  data = path.read_bytes()
  whole = data.rfind(b'\n') + 1
  if whole < len(data):
    logging.warning('%s: cut a half-written last line.', path)
    os.truncate(path, whole)


class PhaseTimer:
  """Seconds per phase of a step.

  Phases may nest; a second counts for the innermost phase only, so the phases
  never add up to more than the total. Device work is asynchronous: a phase
  must wait for its results, or their time falls to whoever waits.
  """

  def __init__(
      self,
      host_phases: Sequence[str] = ('host',),
      clock: Callable[[], float] = time.perf_counter,
  ):
    """Starts the clock of the first step.

    Args:
      host_phases: phases whose share of the total is 'time/host_share'.
      clock: returns seconds; tests give their own.
    """
    self._host_phases = tuple(host_phases)
    self._clock = clock
    self._seconds: dict[str, float] = {}
    self._open: list[str] = []
    self._start = self._mark = clock()

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Counts the time inside the `with` block for the phase."""
    self._credit()
    self._open.append(name)
    try:
      yield
    finally:
      self._credit()
      self._open.pop()

  def add(self, name: str, seconds: float) -> None:
    """Moves seconds measured elsewhere from the open phase to `name`."""
    self._seconds[name] = self._seconds.get(name, 0.0) + seconds
    if self._open:
      outer = self._open[-1]
      self._seconds[outer] = self._seconds.get(outer, 0.0) - seconds

  def metrics(self) -> dict[str, float]:
    """The step's 'time/<phase>', 'time/total', 'time/host_share'; resets."""
    self._credit()
    total = self._mark - self._start
    host = sum(self._seconds.get(name, 0.0) for name in self._host_phases)
    result = {f'time/{name}': s for name, s in self._seconds.items()}
    result['time/total'] = total
    result['time/host_share'] = host / total if total > 0 else 0.0
    self._seconds = {}
    self._start = self._mark
    return result

  def _credit(self) -> None:
    now = self._clock()
    if self._open:
      name = self._open[-1]
      elapsed = now - self._mark
      self._seconds[name] = self._seconds.get(name, 0.0) + elapsed
    self._mark = now
