"""What was worked out of a task, kept by the task's content."""

import collections
from collections.abc import Callable
from typing import Generic, TypeVar

from rods_jax.types import Task

T = TypeVar('T')


class TaskCache(Generic[T]):
  """Keeps the most recently used values of tasks.

  Attributes:
    size: most values that are kept.
  """

  def __init__(self, size: int):
    self.size = size
    self._values: collections.OrderedDict[str, T] = collections.OrderedDict()

  def get(self, task: Task, make: Callable[[Task], tuple[T, bool]]) -> T:
    """The task's value, made where it is not known.

    Args:
      task: two of the same content have the same value.
      make: task -> (its value, whether to keep it).
    """
    key = task.content_hash()
    if key in self._values:
      self._values.move_to_end(key)
      return self._values[key]
    value, keep = make(task)
    if keep:
      self._values[key] = value
      if len(self._values) > self.size:
        self._values.popitem(last=False)
    return value

  def clear(self) -> None:
    self._values.clear()
