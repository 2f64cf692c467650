"""Values by content: made once, the least recently used dropped first."""

import dataclasses

from rods_jax.host import bfcl
from rods_jax.host import task_cache

TASKS = list(bfcl.load_tasks(('base',)).values())[:3]


def make_counted(keep=True):
  made = []

  def make(task):
    made.append(task.task_id)
    return len(made), keep

  return made, make


def test_a_value_is_made_once_per_content():
  made, make = make_counted()
  cache = task_cache.TaskCache(8)
  copy = dataclasses.replace(TASKS[0])
  assert [cache.get(t, make) for t in (TASKS[0], TASKS[1], copy)] == [1, 2, 1]
  cache.clear()
  assert cache.get(TASKS[0], make) == 3


def test_the_least_recently_used_goes_first():
  made, make = make_counted()
  cache = task_cache.TaskCache(2)
  a, b, c = TASKS
  for task in (a, b, a, c):  # c drops b: a was used after it
    cache.get(task, make)
  assert cache.get(a, make) == 1
  assert cache.get(b, make) == 4


def test_what_is_not_to_be_kept_is_made_again():
  made, make = make_counted(keep=False)
  cache = task_cache.TaskCache(2)
  assert [cache.get(TASKS[0], make) for _ in range(2)] == [1, 2]
