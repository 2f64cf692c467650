"""The append-only history of the active pool, and its file pool.jsonl.

One JSON object a line:

  {event: added, epoch, id, task_id, origin, parent, category, scenario, hash}
  {event: visit, epoch, id, count, mean, variance, zone}
  {event: retired, epoch, id, reason, mean}
  {event: seed, epoch, id, priority}

A checkpoint holds only the number of past events: the file is the history. So
the file is written before the checkpoint that counts its lines.
"""

import json
import logging
import os
import pathlib
from typing import Any


class EventLog:
  """Events in memory since the start or the last restore.

  Attributes:
    events: append-only.
    num_past: events before the restore; 0 for a new history.
  """

  def __init__(self, num_past: int = 0):
    self.events: list[dict[str, Any]] = []
    self.num_past = num_past
    self._num_written = 0
    self._begun = False

  def __len__(self) -> int:
    """All events, also those before the restore."""
    return self.num_past + len(self.events)

  def append(
      self, event: str, epoch: int, pool_id: int, /, **fields: Any
  ) -> None:
    self.events.append(
        {'event': event, 'epoch': epoch, 'id': pool_id, **fields}
    )

  def write(self, path: pathlib.Path | str) -> None:
    """Appends the events not yet written to the file at `path`.

    The first write after a restore cuts off the lines of epochs that were run
    after the checkpoint and will be run again; the first write of a new
    history starts the file anew.
    """
    path = pathlib.Path(path)
    if not self._begun:
      self._cut(path)
      self._begun = True
    with path.open('a', encoding='utf-8') as f:
      for event in self.events[self._num_written :]:
        f.write(json.dumps(event) + '\n')
    self._num_written = len(self.events)

  def _cut(self, path: pathlib.Path):
    """Leaves the first num_past lines of the file, all or nothing."""
    lines = []
    if self.num_past and path.exists():
      lines = path.read_text(encoding='utf-8').splitlines(keepends=True)
      lines = [line for line in lines if line.endswith('\n')]
    if len(lines) < self.num_past:
      logging.warning(
          '%s holds %d of %d past events; the history has a gap.',
          path,
          len(lines),
          self.num_past,
      )
    partial = path.with_name(path.name + '.partial')
    partial.write_text(''.join(lines[: self.num_past]), encoding='utf-8')
    os.replace(partial, path)
