"""The engines of a process: they share programs and parameters, not slots."""

from collections.abc import Callable
from typing import Any

import jax

from rods_jax import engine as engine_lib


class Engines:
  """Several engines with one policy version.

  Attributes:
    each: the engines.
    capacity: most tokens of a row.
  """

  def __init__(self, make: Callable[..., engine_lib.Engine], number: int):
    """`number` engines of make(); all but the first of make(programs=...)."""
    first = make()
    others = [make(programs=first.programs) for _ in range(number - 1)]
    self.each = [first, *others]
    self.capacity = first.capacity

  @property
  def num_programs(self) -> int:
    """Programs compiled so far."""
    return self.each[0].num_programs

  def reset(self, params: Any, key: jax.Array, **sampling) -> None:
    """Engine.reset of each; the parameters are placed once."""
    self.release()  # of all, before anything new is made
    self.each[0].reset(params, key, **sampling)
    for engine in self.each[1:]:
      engine.follow(self.each[0])

  def release(self) -> None:
    """Engine.release of each."""
    for engine in self.each:
      engine.release()
