"""Initial states written out: what a task leaves to the simulator's defaults.

A simulator fills missing parts of its configuration from defaults of its own.
Names in there (the users of the messaging service) cannot be exchanged until
they stand in the task.
"""

import copy
import dataclasses
import sys
from typing import Any

from rods_jax.host import bfcl
from rods_jax.types import Task

_WRITTEN_OUT = {
    'MessageAPI': ('user_map', 'inbox'),
    'TradingBot': ('stocks', 'watch_list'),
}


def complete(task: Task) -> Task:
  """The same task with those defaults in its configuration."""
  config = dict(task.initial_config)
  for name in task.classes:
    keys = _WRITTEN_OUT.get(name, ())
    missing = [key for key in keys if key not in config.get(name, {})]
    if missing:
      defaults = _defaults(name)
      config[name] = dict(config.get(name, {}))
      for key in missing:
        config[name][key] = copy.deepcopy(defaults[key])
  return dataclasses.replace(task, initial_config=config)


def _defaults(class_name: str) -> dict[str, Any]:
  module = sys.modules[bfcl.simulator(class_name).__module__]
  return module.DEFAULT_STATE
