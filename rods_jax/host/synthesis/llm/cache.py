"""Answers by the content of their questions: a file each, whole or not there.

The key covers the model's name, the messages and the sampling, not the address
of the server: the same question elsewhere has the same answer. Two processes
may share a folder.
"""

import contextlib
import json
import logging
import os
import pathlib
from typing import Any

from rods_jax.host.synthesis.llm.records import Answer


class Cache:
  """A folder of answers; without a name, none."""

  def __init__(self, folder: str):
    self._folder = pathlib.Path(folder).expanduser() if folder else None
    self._warned = False

  def get(self, key: str) -> Answer | None:
    """The known answer; None also for a file that is damaged."""
    if self._folder is None:
      return None
    try:
      data = json.loads(self._path(key).read_text(encoding='utf-8'))
      answer = Answer(data['text'], data['cut'])
    except (OSError, ValueError, TypeError, KeyError):
      return None
    valid = isinstance(answer.text, str) and isinstance(answer.cut, bool)
    return answer if valid else None

  def put(self, key: str, body: dict[str, Any], answer: Answer) -> None:
    """Keeps an answer with its question, for a reader.

    A folder that cannot be written is a warning: work goes on without.
    """
    if self._folder is None:
      return
    path = self._path(key)
    partial = path.with_name(f'.{path.name}.{os.getpid()}.partial')
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      with open(partial, 'w', encoding='utf-8') as file:
        json.dump({'text': answer.text, 'cut': answer.cut, 'of': body}, file)
      os.replace(partial, path)
    except OSError as error:
      with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)
      if not self._warned:
        self._warned = True
        logging.warning(
            'config.synthesis.llm.cache, %s, cannot be written (%s); answers '
            'are not kept.', self._folder, error.strerror,
        )  # pyformat: disable

  def _path(self, key: str) -> pathlib.Path:
    return self._folder / key[:2] / f'{key}.json'
