"""The composer: one seed, one new task, through exchangeable stages.

  plan     brief -> a walk on the API graph: calls with the seed's dependencies
  execute  plan -> its arguments and results, ground truth first
  rewrite  plan and execution -> what the user says
  augment  (miss_func, miss_param) -> something is missing at first
  review   plan and task -> no objection
  judge    task -> no objection; a language model's verdict, if there is one

Each gives its output or a Rejection. Those that write or judge language are
fields of `Stages`, so that another implementation can take their place, as a
language model does (synthesis/llm). The
feedback loop: an error that another initial state avoids is patched there
(execute does so); after any other rejection that names a tool this tool is
blocked, and the next attempt plans again.
"""

import dataclasses
import re
from typing import Callable

import numpy as np

from rods_jax.host import bfcl, task_cache, tool_calls
from rods_jax.host.synthesis import augment as augment_lib
from rods_jax.host.synthesis import profile, trace
from rods_jax.host.synthesis.compose import (
    augment,
    critique,
    execute,
    plan,
    rewrite,
)
from rods_jax.host.synthesis.compose.records import (
    Brief,
    Execution,
    Gates,
    Plan,
    Wording,
)
from rods_jax.host.synthesis.records import Rejection, Report
from rods_jax.types import Call, Task, Turn

ATTEMPTS = 3
REWORDINGS = 12  # tries to word a task for its side of the held-out split


def _no_objection(task: Task) -> Rejection | None:
  del task


@dataclasses.dataclass(frozen=True)
class Stages:
  """The stages that deal in language; the programmatic ones by default.

  Attributes:
    plan: gets the rejection of the plan before, if there was one.
    rewrite: gets the objection to the words before, if there was one.
    judge: a verdict on the whole task.
    fixes: how often a task is worded again after an objection.
  """

  plan: Callable[
      [Brief, frozenset[str], np.random.Generator, Rejection | None],
      Plan | Rejection,
  ] = plan.plan
  rewrite: Callable[
      [Plan, Execution, np.random.Generator, Rejection | None],
      Wording | Rejection,
  ] = rewrite.rewrite
  judge: Callable[[Task], Rejection | None] = _no_objection
  fixes: int = 0


def brief_of(seed: Task) -> Brief | Rejection:
  """What variants of a seed have to look like; cached by content."""
  return _briefs.get(seed, _brief_of)


_briefs: task_cache.TaskCache[Brief | Rejection] = task_cache.TaskCache(1024)


def _brief_of(seed: Task) -> tuple[Brief | Rejection, bool]:
  """The brief, and whether no call timed out while the seed was measured."""
  base = augment_lib.base_form(seed)
  if isinstance(base, Rejection):
    return base, True
  executed = trace.run(seed)
  found = profile.measure(executed)
  offered = frozenset(
      name for cls in seed.classes for name in bfcl.tool_names(cls)
      if name not in seed.excluded
  )  # pyformat: disable
  return Brief(
      seed, base, found.calls, found.links, found.tools, offered
  ), executed.finished


def compose(
    seed: Task,
    rng: np.random.Generator,
    accepts: Callable[[Task], bool],
    attempts: int = ATTEMPTS,
    report: Report | None = None,
    stages: Stages = Stages(),
    gates: Gates = Gates(),
    known_calls: Callable[[tuple[Call, ...]], bool] | None = None,
) -> Task | Rejection:
  """A new task with the structure of a seed, or the last attempt's rejection.

  Args:
    seed: human or generated.
    rng: consumed; the only source of chance.
    accepts: whether the task is on the right side of the held-out split, and
      new.
    attempts: plans to try, at least 1.
    report: counts every attempt, if given.
    stages: those that deal in language.
    gates: thresholds of the critique.
    known_calls: whether a known task has these calls, so that no words would
      help. For stages whose words are paid for: it is asked before any are.
  """
  report = report or Report()
  brief = brief_of(seed)
  result = brief if isinstance(brief, Rejection) else None
  blocked: frozenset[str] = frozenset()
  for _ in range(attempts):
    report.attempts += 1
    if not isinstance(brief, Rejection):
      result = _attempt(
          brief, blocked, result, rng, accepts, stages, gates, known_calls
      )
    if isinstance(result, Task):
      report.accepted += 1
      return result
    report.reject(result)
    blocked |= _blamed(brief, result)
  return result


def _attempt(
    brief: Brief,
    blocked: frozenset[str],
    last: Rejection | None,
    rng: np.random.Generator,
    accepts: Callable[[Task], bool],
    stages: Stages,
    gates: Gates,
    known_calls: Callable[[tuple[Call, ...]], bool] | None,
) -> Task | Rejection:
  """One plan and what comes of it."""
  planned = stages.plan(brief, blocked, rng, last)
  if isinstance(planned, Rejection):
    return planned
  executed = execute.execute(planned, rng)
  if isinstance(executed, Rejection):
    return executed
  if known_calls is not None and known_calls(executed.calls):
    return Rejection('duplicate', 'the calls of a known task')
  objection = None
  for _ in range(stages.fixes + 1):

    def reword():
      wording = stages.rewrite(planned, executed, rng, objection)
      if isinstance(wording, Rejection):
        return wording
      task = _assemble(brief, planned, executed, wording)
      task = augment.make(task, brief.seed.category, wording, executed, rng)
      return task if isinstance(task, Rejection) else _named(task, brief.seed)

    task = _accepted(reword, accepts)
    if isinstance(task, Rejection):
      return task
    objection = critique.review(planned, task, gates) or stages.judge(task)
    if objection is None:
      return task
  return objection


def _accepted(
    reword: Callable[[], Task | Rejection], accepts: Callable[[Task], bool]
) -> Task | Rejection:
  """The first wording on the right side of the held-out split."""
  for _ in range(REWORDINGS):
    task = reword()
    if isinstance(task, Rejection) or accepts(task):
      return task
  return Rejection('duplicate', 'known, or of the other side of the split')


def _assemble(
    brief: Brief, planned: Plan, executed: Execution, wording: Wording
) -> Task:
  """The base form as a task; it still has the seed's id."""
  calls = [[] for _ in brief.calls]
  for step, call in zip(planned.steps, executed.calls):
    calls[step.turn].append(tool_calls.render(call))
  turns = tuple(
      Turn(text, tuple(made)) for text, made in zip(wording.texts, calls)
  )
  return dataclasses.replace(
      brief.base, initial_config=executed.config, turns=turns
  )


def _named(task: Task, seed: Task) -> Task:
  """With an id of its own: its seed must count among those it may be near."""
  return dataclasses.replace(
      task, task_id=f'syn_{task.content_hash()}', parent=seed.task_id
  )


def _blamed(brief: Brief | Rejection, rejection: Rejection) -> frozenset[str]:
  """Tools that a rejection names: the next plan does without them."""
  if isinstance(brief, Rejection) or rejection.stage == plan.STAGE:
    return frozenset()
  words = re.findall(r'\w+', rejection.reason)
  return frozenset(w for w in words if w in brief.offered)
