"""Synthesis in a process of its own, while the device trains.

The child is a fresh interpreter that runs this module, so it imports nothing
of the training program, jax least of all. (multiprocessing would import the
main module of the parent again, with all that it imports.) It is told names of
requests on its standard input and answers through a folder: a request and its
result, the tasks and the report, are each a file, written under another name
first and then renamed. Both are removed when the result is collected. Whatever
moment the child dies at, the folder holds whole files only, and because a
request is a pure function of itself, running it again gives the same variants.

A child that dies is replaced once per request; if that one dies too, or if it
cannot write, the request runs in this process. Requests finish in the order of
submission. The child is in a process group of its own: Ctrl-C is the parent's
business. It leaves when its input ends, which happens also when the parent is
killed.
"""

import collections
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import time

from rods_jax.host.synthesis import pipeline
from rods_jax.host.synthesis.records import Report
from rods_jax.types import Task

_POLL_S = 0.02
_CLOSE_S = 0.5  # for an idle child to leave by itself
_CANNOT_WRITE = os.EX_IOERR  # exit code of the child
_MODULE = 'rods_jax.host.synthesis.background'
_ROOT = pathlib.Path(__file__).resolve().parents[3]  # holds rods_jax


class Background:
  """A queue of synthesis requests and the process that works on it."""

  def __init__(self, folder: str | os.PathLike[str]):
    """Starts the child.

    Args:
      folder: for requests and results, of this object alone; made if it is
        missing. What a killed process left there is removed.
    """
    self._folder = pathlib.Path(folder)
    self._folder.mkdir(parents=True, exist_ok=True)
    self._remove_files('request_')
    self._pending: collections.deque[tuple[str, pipeline.Request]] = (
        collections.deque()
    )
    self._count = 0
    self._restarted: set[str] = set()
    self._closed = False
    self._child: subprocess.Popen | None = None
    self._start()

  @property
  def pending(self) -> tuple[pipeline.Request, ...]:
    """Submitted requests that were not collected, oldest first."""
    return tuple(request for _, request in self._pending)

  @property
  def pid(self) -> int | None:
    """Process id of the child, None without one."""
    return self._child.pid if self._child else None

  def submit(self, request: pipeline.Request) -> None:
    """Queues a request; returns at once."""
    if self._closed:
      raise RuntimeError('Background synthesis is closed; make a new one.')
    # A child of a killed process may still write under that one's names.
    name = f'request_{os.getpid()}_{self._count:06d}'
    self._count += 1
    _publish(_request_file(self._folder, name), request.to_json())
    self._pending.append((name, request))
    self._tell(name)

  def collect(self, timeout_s: float) -> tuple[list[Task], Report] | None:
    """The oldest request's variants and report.

    Args:
      timeout_s: how long to wait for them.

    Returns:
      None when nothing was submitted or the time ran out.
    """
    if not self._pending:
      return None
    name, request = self._pending[0]
    deadline = time.monotonic() + timeout_s
    while True:
      result = _read(self._folder, name)
      if result is None and not self._alive():
        # The child may have finished between the two looks.
        result = _read(self._folder, name) or self._recover(name, request)
      if result is not None:
        self._pending.popleft()
        self._remove_files(name)
        if self._child is None and not self._closed:
          self._start()
        return result
      if time.monotonic() >= deadline:
        return None
      time.sleep(_POLL_S)

  def close(self) -> None:
    """Ends the child and reaps it; what is pending stays in `pending`."""
    self._closed = True
    self._stop()
    self._remove_files('request_')

  def __enter__(self) -> 'Background':
    return self

  def __exit__(self, *exc) -> None:
    self.close()

  def _remove_files(self, prefix: str) -> None:
    """Removes files of this name, half-written ones too."""
    for pattern in (f'{prefix}*.json', f'.{prefix}*.partial'):
      for path in self._folder.glob(pattern):
        path.unlink(missing_ok=True)

  def _alive(self) -> bool:
    return self._child is not None and self._child.poll() is None

  def _start(self) -> None:
    path = os.environ.get('PYTHONPATH')
    self._child = subprocess.Popen(
        [sys.executable, '-m', _MODULE, str(self._folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        process_group=0,
        env={
            **os.environ,
            'PYTHONPATH': os.pathsep.join(filter(None, (str(_ROOT), path))),
        },
    )
    for name, _ in self._pending:
      self._tell(name)

  def _tell(self, name: str) -> None:
    """Queues a request with the child, if there is one to listen."""
    try:
      self._child.stdin.write(f'{name}\n')
      self._child.stdin.flush()
    except BrokenPipeError:
      logging.info('The synthesis process is gone; collect replaces it.')

  def _recover(
      self, name: str, request: pipeline.Request
  ) -> tuple[list[Task], Report] | None:
    """A fresh child, once per request; then the result, made here."""
    if self._closed:
      return None
    code = self._child.returncode if self._child else None
    self._stop()
    if code == _CANNOT_WRITE:
      logging.warning(
          'The synthesis process cannot write to %s; running the request in '
          'the main process.', self._folder,
      )  # pyformat: disable
    elif name in self._restarted:
      logging.warning(
          'The synthesis process ended twice (exit code %s) in one request; '
          'running the request in the main process.', code,
      )  # pyformat: disable
    else:
      self._restarted.add(name)
      logging.warning(
          'The synthesis process ended (exit code %s); starting it again.', code
      )
      self._start()
      return None
    return pipeline.run_request(request)

  def _stop(self) -> None:
    """Ends and reaps the child, politely first. Safe to repeat."""
    child, self._child = self._child, None
    if child is None:
      return
    try:
      child.stdin.close()
    except BrokenPipeError:
      logging.info('The synthesis process was gone already.')
    try:
      child.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
      child.kill()  # Safe at any moment: files are renamed when whole.
      child.wait()


def _work(folder: pathlib.Path) -> None:
  """The child: the requests it is told, until its input ends."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  os.nice(5)  # Training comes first.
  for line in sys.stdin:
    name = line.strip()
    try:
      data = json.loads(_request_file(folder, name).read_text('utf-8'))
    except FileNotFoundError:
      continue  # Removed: nobody waits for it any more.
    variants, report = pipeline.run_request(pipeline.Request.from_json(data))
    result = {
        'tasks': [task.to_json() for task in variants],
        'report': report.to_json(),
    }
    try:
      _publish(_result_file(folder, name), result)
    except OSError:
      sys.exit(_CANNOT_WRITE)  # The parent says so, once.


def _publish(path: pathlib.Path, data) -> None:
  """Writes JSON so that the path holds all of it or does not exist."""
  partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
  try:
    with open(partial, 'w', encoding='utf-8') as f:
      json.dump(data, f)
      f.flush()
      os.fsync(f.fileno())
    os.replace(partial, path)
  except OSError:
    partial.unlink(missing_ok=True)
    raise


def _request_file(folder: pathlib.Path, name: str) -> pathlib.Path:
  return folder / f'{name}.json'


def _result_file(folder: pathlib.Path, name: str) -> pathlib.Path:
  return folder / f'{name}.result.json'


def _read(
    folder: pathlib.Path, name: str
) -> tuple[list[Task], Report] | None:
  """A finished request's result, None while it is not finished."""
  try:
    result = json.loads(_result_file(folder, name).read_text('utf-8'))
  except FileNotFoundError:
    return None
  tasks = [Task.from_json(task) for task in result['tasks']]
  return tasks, Report.from_json(result['report'])


if __name__ == '__main__':
  _work(pathlib.Path(sys.argv[1]))
