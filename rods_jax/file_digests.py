"""A folder's own list of its files, so that damage is noticed before reading.

files.json holds the size and CRC-32 of every other file. A folder without it is
incomplete or not ours.
"""

import json
import os
import pathlib
import zlib

NAME = 'files.json'


class DamageError(RuntimeError):
  """A folder is not as it was written; the message is one line."""


def is_sealed(path: pathlib.Path) -> bool:
  """Whether the folder has a list of its files."""
  return (path / NAME).is_file()


def _contents(path: pathlib.Path) -> dict[str, list[int]]:
  """Relative name -> [size, CRC-32] of every file below `path`."""
  contents = {}
  for file in sorted(path.rglob('*')):
    if file.is_file() and file != path / NAME:
      crc = 0
      with file.open('rb') as f:
        while chunk := f.read(1 << 22):
          crc = zlib.crc32(chunk, crc)
      contents[str(file.relative_to(path))] = [file.stat().st_size, crc]
  return contents


def seal(path: pathlib.Path):
  """Writes files.json and waits until the folder is on disk."""
  (path / NAME).write_text(json.dumps(_contents(path), indent=1))
  for item in (path, *path.rglob('*')):
    sync(item)


def sync(path: pathlib.Path):
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


def verify(path: pathlib.Path):
  """Raises DamageError unless every file is as it was written."""
  if not is_sealed(path):
    raise DamageError(f'foreign or incomplete, it has no {NAME}')
  expected = json.loads((path / NAME).read_text())
  found = _contents(path)
  for name, content in expected.items():
    if name not in found:
      raise DamageError(f'file {name} is missing')
    if found[name][0] != content[0]:
      raise DamageError(
          f'file {name} has {found[name][0]} bytes instead of {content[0]}'
      )
    if found[name] != content:
      raise DamageError(f'file {name} is damaged')
