"""Many composed tasks, none of them twice, however many are made at once.

With a language model several tasks are in work together. Each knows of those
that were finished a fixed number of places before it, never of more, so that
the outcome does not depend on which answer came first; what two tasks have in
common all the same is found when the later one is finished, and drops it.

A run that goes on after another one knows of all that the other has finished,
from its first place on. So with a language model the first `window` places of a
continued corpus may give other tasks than those of an unbroken one, which would
have known of fewer; programmatic tasks are the same in both.
"""

import dataclasses
from typing import Callable, Iterable, Iterator

import numpy as np

from rods_jax.host.synthesis import quality
from rods_jax.host.synthesis.compose import stages as stages_lib
from rods_jax.host.synthesis.compose.records import Gates
from rods_jax.host.synthesis.llm import session
from rods_jax.host.synthesis.llm.records import Health, LlmConfig, Usage
from rods_jax.host.synthesis.records import Rejection, Report
from rods_jax.types import Task


@dataclasses.dataclass(frozen=True)
class Wanted:
  """One task to make.

  Attributes:
    seed: whose structure it shall have.
    rng: makes its random stream, the same one each time.
  """

  seed: Task
  rng: Callable[[], np.random.Generator]


def compose_all(
    wanted: Iterable[Wanted],
    accepts: Callable[[Task], bool],
    novelty: quality.Novelty,
    attempts: int,
    gates: Gates = Gates(),
    llm: LlmConfig | None = None,
    health: Health | None = None,
) -> Iterator[tuple[Task | Rejection, Report]]:
  """What comes of each, as soon as it is known, and the counts of its attempts.

  Args:
    wanted: in order; may be endless.
    accepts: which tasks may be made, apart from their novelty.
    novelty: of what is known at first; the tasks that come out are added.
    attempts: plans to try for each, at least 1.
    gates: thresholds of the critique.
    llm: the server of a language model; None for programmatic stages. Its
      account since the last outcome is part of the counts.
    health: of that server; is kept up to date.

  Raises:
    UserError: there is a server, but the package openai is missing.
  """
  usage, told = Usage(), Usage()
  window = session.window(llm)
  known = [len(novelty)] * window  # at each place: tasks that it may know of

  def job(place: int, one: Wanted) -> session.Job:
    def play(stages: stages_lib.Stages) -> tuple[Task | Rejection, Report]:
      counted = Report()
      result = stages_lib.compose(
          one.seed, one.rng(),
          lambda task: accepts(task) and novelty.accepts(task, known[place]),
          attempts, counted, stages, gates,
          # Programmatic words cost nothing, and drawing none would change
          # what comes of a random stream.
          llm and (lambda calls: novelty.knows_calls(calls, known[place])),
      )  # pyformat: disable
      return result, counted

    return play

  jobs = (job(place, one) for place, one in enumerate(wanted))
  for result, counted in session.run(jobs, llm, usage, health, gates):
    if isinstance(result, Task) and not novelty.accepts(result):
      counted.accepted -= 1
      result = Rejection('duplicate', 'made at the same time')
      counted.reject(result)
    if isinstance(result, Task):
      novelty.add(result)
    else:
      counted.failed_seeds += 1
    known.append(len(novelty))
    if llm is not None:
      counted.llm = usage.since(told)
      told = dataclasses.replace(usage)
    yield result, counted


def tasks(
    made: Iterable[tuple[Task | Rejection, Report]], report: Report
) -> Iterator[Task]:
  """The tasks alone; all counts are added to the report."""
  for result, counted in made:
    report.add(counted)
    if isinstance(result, Task):
      yield result
