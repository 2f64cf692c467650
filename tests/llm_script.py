"""A scripted language model that answers right, but for what a test spoils.

The right answers are what the programmatic stages make of the same random
stream, in the form in which a language model writes. So what is accepted, and
after how many requests, is known beforehand.
"""

import json
import re
from typing import Any

import numpy as np

from experiments import synthesize
from rods_jax.host.synthesis import quality
from rods_jax.host.synthesis.compose import batch, plan, rewrite, stages
from rods_jax.host.synthesis.records import Report
from rods_jax.types import Task
from tests.llm_server import Reply, serve

ALL = {seed.task_id: seed for seed in synthesize.seeds()}
# One of each category; their plans hold references to earlier results.
SEEDS = [ALL[f'multi_turn_{name}'] for name in (
    'base_152', 'miss_func_22', 'miss_param_49', 'long_context_47'
)]  # pyformat: disable
SEED = SEEDS[0]  # five calls, two dependencies


def rng_of(seed: Task) -> np.random.Generator:
  return np.random.default_rng([seed.scenario, 1])


def role_of(body: dict[str, Any]) -> str:
  """'planner', 'writer' or 'judge'."""
  first = body['messages'][0]['content']
  starts = {'You plan': 'planner', 'You spea': 'writer', 'You revi': 'judge'}
  return starts[first[:8]]


def data_of(body: dict[str, Any], message: int = 1) -> Any:
  """What a message quotes."""
  text = body['messages'][message]['content']
  return json.loads(re.search(r'<data>\n(.*)\n</data>', text).group(1))


def good_verdict(body: dict[str, Any], **changes: Any) -> str:
  """All criteria hold, but for the changes."""
  names = ('alignment', 'consistency', 'coherence', 'naturalness', 'ambiguity')
  verdict = {'code': data_of(body)['code'], **dict.fromkeys(names, True)}
  return json.dumps({**verdict, **changes})


def right_answers(
    seed: Task, rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Any]]:
  """What a planner and a writer that make no mistake answer for a seed.

  Args:
    seed: whose first plan succeeds.
    rng: as the planner will get it: the initial state is the same.
  """
  made = []

  def write(planned, executed, rng, last):
    wording = rewrite.rewrite(planned, executed, rng, last)
    made.append((planned, executed, wording))
    return wording

  task = stages.compose(
      seed, rng, lambda task: True, 1, stages=stages.Stages(plan.plan, write)
  )
  assert isinstance(task, Task), task
  (planned, executed, wording), = made
  assert not executed.patches
  turns: list[list] = [[] for _ in planned.brief.calls]
  for step, values in zip(planned.steps, executed.values):
    args = dict(values)
    for slot in step.slots:
      thing = None if slot.thing is None else planned.things[slot.thing]
      if thing is not None and thing.source is not None:
        assert not slot.source.text
        args[slot.params[0]] = {'call': thing.maker, 'path': thing.path}
    turns[step.turn].append({'tool': step.use.tool, 'args': args})
  blurs = [
      {'turn': b.turn, 'value': b.value, 'query': b.text, 'supply': b.supply}
      for b in wording.blurs
  ]
  return (
      {'story': f'A story like {seed.task_id}.', 'turns': turns},
      {'queries': list(wording.texts), 'blurs': blurs},
  )


class Model:
  """Right answers for some seeds, and what a test puts in their place.

  Attributes:
    spoiled: role -> replies that come first, as functions of the request.
    asked: role -> its requests, in order.
  """

  def __init__(self, seeds=(SEED,)):
    self.right = [right_answers(s, rng_of(s)) for s in seeds]
    self.spoiled = {'planner': [], 'writer': [], 'judge': []}
    self.asked = {role: [] for role in self.spoiled}

  def __call__(self, body):
    role, data = role_of(body), data_of(body)
    self.asked[role].append(body)
    if self.spoiled[role]:
      reply = self.spoiled[role].pop(0)
      reply = reply(body) if callable(reply) else reply
      return reply if isinstance(reply, Reply) else Reply(reply)
    if role == 'judge':
      return Reply(good_verdict(body))
    for planned, wording in self.right:
      counts = [len(turn) for turn in planned['turns']]
      if role == 'planner' and counts == data['calls_per_turn']:
        return Reply(json.dumps(planned))
      if role == 'writer' and data['story'] == planned['story']:
        return Reply(json.dumps(wording))
    return Reply('I do not know.')


def made(model, seeds=(SEED,), attempts=1, **changes):
  """(tasks, report) of one task for each seed, and the server."""
  report = Report()
  with serve(model) as server:
    tasks = composed(seeds, attempts, report, server.config(**changes))
  return tasks, report, server


def composed(seeds, attempts, report, llm):
  """The tasks; nothing is known at first, and tasks may be near each other."""
  made = batch.compose_all(
      [batch.Wanted(seed, lambda s=seed: rng_of(s)) for seed in seeds],
      lambda task: True,
      quality.Novelty(0.0),
      attempts,
      llm=llm,
  )
  return list(batch.tasks(made, report))
