"""Many composed tasks, none of them twice, however many are made at once.

With a language model several tasks are in work together. Each knows of those
that were finished a fixed number of places before it, never of more, so that
the outcome does not depend on which answer came first; what two tasks have in
common all the same is found when the later one is finished, and drops it.
"""

import dataclasses
from typing import Callable, Hashable, Iterable, Iterator

import numpy as np

from rods_jax.host.synthesis.compose import stages as stages_lib
from rods_jax.host.synthesis.llm import session
from rods_jax.host.synthesis.llm.records import LlmConfig, Usage
from rods_jax.host.synthesis.records import Rejection, Report
from rods_jax.types import Task

_ALWAYS = -(2**62)  # the place of what was known from the beginning


@dataclasses.dataclass(frozen=True)
class Wanted:
  """One task to make.

  Attributes:
    seed: whose structure it shall have.
    rng: makes its random stream, the same one each time.
  """

  seed: Task
  rng: Callable[[], np.random.Generator]


class _Seen:
  """What finished tasks hold, and at which place it came first."""

  def __init__(self, window: int, known: Iterable[Hashable]):
    self._window = window
    self._places = dict.fromkeys(known, _ALWAYS)

  def is_new(self, keys: Iterable[Hashable], place: int) -> bool:
    """Whether the task at a place may know of none of the keys."""
    last = place - self._window
    return all(self._places.get(key, place) > last for key in keys)

  def add(self, keys: Iterable[Hashable], place: int) -> bool:
    """Takes a finished task in; False for one with a known key."""
    keys = tuple(keys)
    if not self._places.keys().isdisjoint(keys):
      return False
    self._places.update(dict.fromkeys(keys, place))
    return True


def compose_all(
    wanted: Iterable[Wanted],
    accepts: Callable[[Task], bool],
    keys: Callable[[Task], Iterable[Hashable]],
    attempts: int,
    report: Report,
    known: Iterable[Hashable] = (),
    llm: LlmConfig | None = None,
) -> Iterator[Task]:
  """The tasks, each as soon as it is made; one may fail.

  Args:
    wanted: in order; may be endless.
    accepts: which side of the held-out split a task may be on.
    keys: what no two tasks may have in common.
    attempts: plans to try for each, at least 1.
    report: counts every attempt; the account of a language model at the end.
    known: keys that must not come.
    llm: the server of a language model; None for programmatic stages.

  Raises:
    UserError: there is a server, but the package openai is missing.
  """
  usage = Usage()
  seen = _Seen(session.window(llm), known)

  def job(place: int, one: Wanted) -> session.Job:
    def play(stages: stages_lib.Stages) -> tuple[Task | Rejection, Report]:
      counted = Report()
      result = stages_lib.compose(
          one.seed,
          one.rng(),
          lambda task: accepts(task) and seen.is_new(keys(task), place),
          attempts,
          counted,
          stages,
      )
      return result, counted

    return play

  jobs = (job(place, one) for place, one in enumerate(wanted))
  try:
    for place, (result, counted) in enumerate(session.run(jobs, llm, usage)):
      if isinstance(result, Task) and not seen.add(keys(result), place):
        counted.accepted -= 1
        result = Rejection('duplicate', 'made at the same time')
        counted.reject(result)
      report.add(counted)
      if isinstance(result, Task):
        yield result
      else:
        report.failed_seeds += 1
  finally:
    if llm is not None:
      report.add(Report(llm=dataclasses.asdict(usage)))
