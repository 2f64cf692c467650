"""Jobs that ask a language model, many at once, with reproducible results.

A job is a function of nothing but its random stream and the answers it gets.
It is run from its beginning; where it asks what is not known yet it stops, the
answer is fetched, and it runs again, up to the next question. So a job is plain
code on one thread, others' answers arrive meanwhile, and a run over answers
that are all in the cache is the same as one that fetched them.
"""

import asyncio
import collections
from typing import Callable, Iterable, Iterator, TypeVar

from rods_jax.host.synthesis.compose.records import Gates
from rods_jax.host.synthesis.compose.stages import Stages
from rods_jax.host.synthesis.llm import client as client_lib
from rods_jax.host.synthesis.llm import judge, planner, writer
from rods_jax.host.synthesis.llm.records import (
    Answer,
    Failure,
    Health,
    LlmConfig,
    Question,
    Usage,
)

T = TypeVar('T')
Job = Callable[[Stages], T]


class Pending(Exception):
  """A job cannot go on without the answer to a question."""

  def __init__(self, question: Question):
    super().__init__('an answer is pending')
    self.question = question


class Known:
  """The answers that one job has got so far."""

  def __init__(self):
    self._answers: dict[Question, Answer | Failure] = {}

  def ask(self, question: Question) -> Answer | Failure:
    """The answer; raises Pending where it is not known."""
    if question not in self._answers:
      raise Pending(question)
    return self._answers[question]

  def tell(self, question: Question, answer: Answer | Failure) -> None:
    self._answers[question] = answer


def stages(
    ask: Callable[[Question], Answer | Failure], gates: Gates = Gates()
) -> Stages:
  """The stages of one task, with a language model in them."""
  return Stages(
      plan=planner.Planner(ask, gates).plan,
      rewrite=writer.Writer(ask).rewrite,
      judge=judge.Judge(ask).judge,
      fixes=1,
  )


def run(
    jobs: Iterable[Job[T]],
    llm: LlmConfig | None,
    usage: Usage,
    health: Health | None = None,
    gates: Gates = Gates(),
) -> Iterator[T]:
  """The jobs' results, in order.

  A job is taken only when the result `window(llm)` places before it has been
  used, so what a job may know of others' results does not depend on time.

  Args:
    jobs: each may be called several times.
    llm: the server; None for programmatic stages, and no server.
    usage: is counted up.
    health: of the server; is kept up to date.
    gates: what the planner is told, and held to.

  Raises:
    UserError: the package openai is missing.
  """
  if llm is None:
    for job in jobs:
      yield job(Stages())
    return
  loop = asyncio.new_event_loop()
  client = client_lib.Client(llm, usage, health)
  playing: collections.deque[asyncio.Task] = collections.deque()
  try:
    for job in jobs:
      playing.append(loop.create_task(_play(job, client, gates)))
      if len(playing) == window(llm):
        yield loop.run_until_complete(playing.popleft())
    while playing:
      yield loop.run_until_complete(playing.popleft())
  finally:
    loop.run_until_complete(_end(playing, client))
    loop.close()


def window(llm: LlmConfig | None) -> int:
  """Jobs that are worked on together."""
  return 1 if llm is None else llm.concurrency


async def _play(job: Job[T], client: client_lib.Client, gates: Gates) -> T:
  known = Known()
  while True:
    try:
      return job(stages(known.ask, gates))
    except Pending as pending:
      question = pending.question
    known.tell(question, await client.answer(question))


async def _end(
    playing: Iterable[asyncio.Task], client: client_lib.Client
) -> None:
  """Leaves nothing running, also when the run is left half-way."""
  for task in playing:
    task.cancel()
  await asyncio.gather(*playing, return_exceptions=True)
  await client.close()
