"""A corpus of generated tasks in a folder: shards of JSON lines and a manifest.

  manifest.json               configuration, seeds, counts, the shards
  tasks-00003-1f2e3d4c.jsonl  a task each line; the name tells its hash
  attempts-00004.jsonl        the shard in work: a line per attempted number

Task numbers go up from 0, and a shard holds the tasks of a fixed range of them.
A line is flushed before the next number is begun. A whole shard is written
under another name, synced and renamed; then the manifest is, the same way; then
the attempts are removed. So whatever moment the process is killed at, the
folder is continued where it was, and at most the number in work is lost. One
process at a time writes.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
from typing import Any, Iterator, Mapping, Sequence, TextIO

from rods_jax.errors import UserError
from rods_jax.host.synthesis.records import Report
from rods_jax.types import Task

FORMAT = 1  # of the folder
SHARD = 1000  # task numbers
MANIFEST = 'manifest.json'


@dataclasses.dataclass(frozen=True)
class Attempted:
  """What came of one task number.

  Attributes:
    number: from 0.
    task: None where no attempt was accepted.
    report: counts of its attempts.
    cpu_s: processor time that it took.
  """

  number: int
  task: Task | None
  report: Report
  cpu_s: float

  def to_json(self) -> dict[str, Any]:
    return {
        'number': self.number,
        'task': self.task and self.task.to_json(),
        'report': self.report.to_json(),
        'cpu_s': round(self.cpu_s, 6),
    }

  @classmethod
  def from_json(cls, data: Mapping[str, Any]) -> 'Attempted':
    task = data['task'] and Task.from_json(data['task'])
    report = Report.from_json(data['report'])
    return cls(data['number'], task, report, data['cpu_s'])


class Corpus:
  """A folder that is being filled; a context manager."""

  def __init__(
      self,
      folder: str | os.PathLike[str],
      config: Mapping[str, Any],
      seeds: Sequence[Task],
      shard: int = SHARD,
  ):
    """Begins a corpus, or continues one.

    Args:
      folder: new, empty, or of a corpus of the same configuration.
      config: all that decides which task a number gives; JSON values. 'n' is
        the number of task numbers.
      seeds: the tasks that it is made from, noted by name.
      shard: task numbers per shard.

    Raises:
      UserError: the folder holds something else or what cannot be read, cannot
        be made, or is being written.
    """
    self.folder = pathlib.Path(folder)
    self._shard = shard
    wanted = {
        'format': FORMAT,
        'config': {**json.loads(json.dumps(dict(config))), 'shard': shard},
        'seeds': [seed.task_id for seed in seeds],
        'seeds_sha256': digest(''.join(s.content_hash() for s in seeds)),
    }
    self._file: TextIO | None = None
    with _writable(self.folder):
      _check_free(self.folder)
      self.folder.mkdir(parents=True, exist_ok=True)
      self._lock: int | None = _locked(self.folder)
      try:
        self._begin(wanted)
      except BaseException:
        self.close()
        raise

  def _begin(self, wanted: dict[str, Any]) -> None:
    """Loads what is there, or writes the first manifest."""
    if (self.folder / MANIFEST).exists():
      self._manifest = read_manifest(self.folder)
      _check_same(self.folder, self._manifest, wanted)
    else:
      self._manifest = {**wanted, 'counts': {}, 'shards': []}
      self._write_manifest()
    self._remove_remains()
    self._open = self._continued()
    if not self.is_done or self._open:
      self._file = open(self._attempts_file(), 'a', encoding='utf-8')
    self._close_full_shard()

  @property
  def next_number(self) -> int:
    """The first task number that was not attempted."""
    done = self._first + len(self._open)
    return min(done, self._manifest['config']['n'])  # the last may be short

  @property
  def is_done(self) -> bool:
    return self.next_number >= self._manifest['config']['n']

  def add(self, attempted: Attempted) -> None:
    """Takes the next number in; it is on disk when this returns."""
    if attempted.number != self.next_number or self.is_done:
      raise ValueError(
          f'Task number {attempted.number} came, not {self.next_number}.'
      )
    self._write_line(attempted)
    self._open.append(attempted)
    self._close_full_shard()

  def tasks(self) -> Iterator[Task]:
    """All tasks so far, in the order of their numbers."""
    yield from read_tasks(self.folder)
    for attempted in self._open:
      if attempted.task is not None:
        yield attempted.task

  def report(self) -> Report:
    """Counts of all attempts so far."""
    found = Report()
    for shard in self._manifest['shards']:
      found.add(Report.from_json(shard['report']))
    for attempted in self._open:
      found.add(attempted.report)
    return found

  def times(self) -> list[float]:
    """Seconds of processor time of each shard, the one in work last."""
    found = [shard['cpu_s'] for shard in self._manifest['shards']]
    rest = sum(attempted.cpu_s for attempted in self._open)
    return found + ([rest] if self._open else [])

  def close(self) -> None:
    """Lets another process write; what was added stays. Safe to repeat."""
    if self._file is not None:
      self._file.close()
    if self._lock is not None:
      os.close(self._lock)
      self._lock = None

  def __enter__(self) -> 'Corpus':
    return self

  def __exit__(self, *exc) -> None:
    self.close()

  @property
  def _first(self) -> int:
    """The first number of the shard in work."""
    return len(self._manifest['shards']) * self._shard

  def _attempts_file(self) -> pathlib.Path:
    number = len(self._manifest['shards'])
    return self.folder / f'attempts-{number:05d}.jsonl'

  def _remove_remains(self) -> None:
    """Of a process that was killed while it published a shard."""
    known = {shard['file'] for shard in self._manifest['shards']}
    known.add(self._attempts_file().name)
    for pattern in ('tasks-*.jsonl', 'attempts-*.jsonl', '.*.partial'):
      for path in self.folder.glob(pattern):
        if path.name not in known:
          path.unlink()

  def _continued(self) -> list[Attempted]:
    """The whole lines of the shard in work; cuts half a line off the file."""
    if not self._attempts_file().exists():
      return []
    found, whole = [], 0
    with open(self._attempts_file(), 'rb') as file:
      for line in file:
        if not line.endswith(b'\n'):
          break
        found.append(self._read_line(line, self._first + len(found)))
        whole += len(line)
    os.truncate(self._attempts_file(), whole)
    return found

  def _read_line(self, line: bytes, number: int) -> Attempted:
    """A whole line; raises UserError where it is not that of the number."""
    try:
      attempted = Attempted.from_json(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError):
      attempted = None
    if attempted is None or attempted.number != number:
      raise UserError(
          f'{self._attempts_file()} is damaged: line '
          f'{number - self._first + 1} does not tell of task number {number}; '
          'delete it and all lines after it, or name a new folder.'
      )
    return attempted

  def _write_line(self, attempted: Attempted) -> None:
    self._file.write(json.dumps(attempted.to_json()) + '\n')
    self._file.flush()

  def _close_full_shard(self) -> None:
    """Publishes the shard in work once all of its numbers were attempted."""
    size = min(self._shard, self._manifest['config']['n'] - self._first)
    if not self._open or len(self._open) < size:
      return
    tasks = [a.task for a in self._open if a.task is not None]
    text = ''.join(json.dumps(task.to_json()) + '\n' for task in tasks)
    sha256 = digest(text)
    name = f'tasks-{len(self._manifest["shards"]):05d}-{sha256[:8]}.jsonl'
    _publish(self.folder / name, text)
    report = Report()
    for attempted in self._open:
      report.add(attempted.report)
    old = self._attempts_file()
    self._manifest['shards'].append({
        'file': name,
        'sha256': sha256,
        'first_number': self._open[0].number,
        'numbers': size,
        'tasks': len(tasks),
        'cpu_s': round(sum(a.cpu_s for a in self._open), 3),
        'report': report.to_json(),
    })
    self._count(tasks, size)
    self._write_manifest()
    self._file.close()
    old.unlink()
    self._open = []
    if not self.is_done:
      self._file = open(self._attempts_file(), 'a', encoding='utf-8')

  def _count(self, tasks: Sequence[Task], numbers: int) -> None:
    counts = self._manifest['counts']
    for name, more in (('numbers', numbers), ('tasks', len(tasks))):
      counts[name] = counts.get(name, 0) + more
    for task in tasks:
      counts[task.category] = counts.get(task.category, 0) + 1

  def _write_manifest(self) -> None:
    _publish(
        self.folder / MANIFEST, json.dumps(self._manifest, indent=1) + '\n'
    )


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
  """The manifest of a corpus.

  Raises:
    UserError: the folder holds none, or one of another format.
  """
  path = pathlib.Path(folder) / MANIFEST
  try:
    manifest = json.loads(path.read_text(encoding='utf-8'))
  except FileNotFoundError:
    raise UserError(
        f'{folder} holds no corpus: {MANIFEST} is missing; make one with '
        'python -m experiments.synthesize --out=DIR.'
    ) from None
  except ValueError as error:
    raise UserError(f'{path} is no JSON: {error}.') from None
  if not isinstance(manifest, dict) or manifest.get('format') != FORMAT:
    raise UserError(
        f'{path} is not of format {FORMAT}; make the corpus again.'
    )
  return manifest


def read_tasks(folder: str | os.PathLike[str]) -> Iterator[Task]:
  """All tasks of the published shards, one in memory at a time.

  Raises:
    UserError: a shard is missing, or its content is not what was written.
  """
  for shard in read_manifest(folder)['shards']:
    path = pathlib.Path(folder) / shard['file']
    found = hashlib.sha256()
    try:
      with open(path, 'rb') as file:
        for line in file:
          found.update(line)
          yield Task.from_json(json.loads(line))
    except (OSError, ValueError) as error:
      raise UserError(f'{path} cannot be read: {error}.') from None
    if found.hexdigest() != shard['sha256']:
      raise UserError(
          f'{path} has changed since it was written; make the corpus again.'
      )


@contextlib.contextmanager
def _writable(folder: pathlib.Path) -> Iterator[None]:
  """Turns an OSError about the folder into one line."""
  try:
    yield
  except OSError as error:
    raise UserError(
        f'{folder} cannot be written: {error.strerror or error}; name another '
        'folder, or make room.'
    ) from error


def _check_free(folder: pathlib.Path) -> None:
  """A new folder, or one that holds a corpus."""
  if not folder.exists() or (folder / MANIFEST).exists():
    return
  # What begins with a dot may be of a corpus that had just been begun.
  if not folder.is_dir() or any(
      not path.name.startswith('.') for path in folder.iterdir()
  ):
    raise UserError(f'{folder} exists and holds no corpus; name a new folder.')


def _check_same(
    folder: pathlib.Path, found: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
  old, new = found['config'], wanted['config']
  for name in sorted(old.keys() | new.keys()):
    if old.get(name) != new.get(name):
      raise UserError(
          f'{folder} holds a corpus of another configuration: {name} is '
          f'{old.get(name)!r} there and {new.get(name)!r} here; name a new '
          'folder.'
      )
  if found['seeds_sha256'] != wanted['seeds_sha256']:
    raise UserError(
        f'{folder} holds a corpus of other seeds; name a new folder.'
    )


def _locked(folder: pathlib.Path) -> int:
  """An open, locked file; the lock ends with the process."""
  lock = os.open(folder / '.lock', os.O_CREAT | os.O_RDWR, 0o644)
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    os.close(lock)
    raise UserError(
        f'{folder} is being written by another process; wait for it, or name '
        'a new folder.'
    ) from None
  return lock


def digest(text: str) -> str:
  """Hexadecimal sha256."""
  return hashlib.sha256(text.encode()).hexdigest()


def _publish(path: pathlib.Path, text: str) -> None:
  """Writes a file so that the path holds all of it or what was there."""
  partial = path.with_name(f'.{path.name}.partial')
  with open(partial, 'w', encoding='utf-8') as file:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
  os.replace(partial, path)
