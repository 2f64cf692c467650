"""The writer: a language model words the user's side of an executed plan.

It speaks as the user would, sees the calls and their results, and is told which
values the user has to bring and which come from results. After an objection it
is shown its words and what is wrong with them.
"""

from typing import Any, Mapping

import numpy as np

from rods_jax.host import tool_calls
from rods_jax.host.synthesis.compose.records import (
    Blur,
    Execution,
    Plan,
    Wording,
)
from rods_jax.host.synthesis.compose.values import shown
from rods_jax.host.synthesis.flow import is_documented
from rods_jax.host.synthesis.llm import answers, planner, prompts, texts
from rods_jax.host.synthesis.llm.answers import Unusable
from rods_jax.host.synthesis.reading import arguments_of
from rods_jax.host.synthesis.records import Rejection
from rods_jax.host.synthesis.speech import Speech

STAGE = 'rewrite'
MAX_RESULT = 1500  # characters of a result that are shown
MAX_BLURS = 20


class Writer:
  """Words one task; remembers what it wrote last."""

  def __init__(self, ask: answers.Ask):
    self._ask = ask
    self._last = ''

  def rewrite(
      self,
      plan: Plan,
      execution: Execution,
      rng: np.random.Generator,
      last: Rejection | None = None,
  ) -> Wording | Rejection:
    """What the user says in each turn, and what could be left out at first.

    Args:
      plan: with its story.
      execution: of the plan.
      rng: seeds the sampling.
      last: the objection to the words before.
    """
    messages = prompts.messages('writer', _data(plan, execution))
    if last is not None:
      messages += (
          ('assistant', self._last),
          ('user', prompts.note(
              'rewrite', {'reason': last.reason, 'detail': last.detail}
          )),
      )  # pyformat: disable
    found = answers.obtain(
        self._ask,
        STAGE,
        messages,
        int(rng.integers(2**31)),
        lambda data: _wording(data, plan, execution),
    )
    if isinstance(found, Rejection):
      return found
    wording, self._last = found
    return wording


def _data(plan: Plan, execution: Execution) -> dict[str, Any]:
  turns = [{'calls': [], 'user_brings': list(values)}
           for values in planner.said(plan, execution)]  # pyformat: disable
  for step, call, result in zip(
      plan.steps, execution.calls, execution.results
  ):
    turns[step.turn]['calls'].append({
        'call': tool_calls.render(call),
        'from_results': [s.params[0] for s in step.slots
                         if s.thing is not None],
        'result': result[:MAX_RESULT],
    })  # pyformat: disable
  return {
      'story': plan.story,
      'turns': turns,
      'wants_blurs': _wants_blurs(plan),
  }


def _wants_blurs(plan: Plan) -> bool:
  return plan.brief.seed.category == 'miss_param'


def _wording(
    data: Mapping[str, Any], plan: Plan, execution: Execution
) -> Wording:
  """Checks the form and what is said. Raises Unusable."""
  queries = answers.field(data, 'queries', list)
  if len(queries) != len(plan.brief.calls):
    raise Unusable(
        'another number of queries',
        f'wanted {len(plan.brief.calls)}, found {len(queries)}',
    )
  if not all(isinstance(q, str) and q.strip() for q in queries):
    raise Unusable('a query is empty or no text')
  queries = [' '.join(query.split()) for query in queries]
  texts.check(queries)
  _all_said(queries, plan, execution)
  blurs = ()
  if _wants_blurs(plan):
    values = planner.said(plan, execution)
    written = answers.field(data, 'blurs', list, MAX_BLURS)
    blurs = tuple(_blur(blur, values) for blur in written)
    if not blurs:
      raise Unusable('no query leaves a value out')
  return Wording(tuple(queries), blurs)


def _all_said(
    queries: list[str], plan: Plan, execution: Execution
) -> None:
  """Raises Unusable for a value that the user brings and does not say."""
  speech = [Speech(query) for query in queries]
  wanted = planner.said(plan, execution)
  for index, (step, call) in enumerate(zip(plan.steps, execution.calls)):
    heard = speech[: step.turn + 1]
    for argument in arguments_of(step.turn, index, call):
      value = argument.value
      brought = any(value == v for v in wanted[step.turn])
      if not brought or is_documented(argument):
        continue
      if not any(text.says(value) or text.means(value) for text in heard):
        raise Unusable(
            'a query leaves out what the user brings',
            f'query {step.turn}: {shown(value)[:200]}',
        )


def _blur(data: Any, values: tuple[tuple[Any, ...], ...]) -> Blur:
  """Checks one way to leave a value out. Raises Unusable."""
  turn = answers.field(data, 'turn', int)
  if not 0 <= turn < len(values):
    raise Unusable('a blur of no turn')
  value = data.get('value')
  found = [v for v in values[turn] if type(v) is type(value) and v == value]
  if not found:
    raise Unusable('a blur of what the turn does not bring')
  query = answers.field(data, 'query', str)
  supply = answers.field(data, 'supply', str)
  texts.check((query, supply))
  if Speech(query).says(value) or not Speech(supply).says(value):
    raise Unusable('a blur that says the value, or does not supply it')
  return Blur(turn, value, ' '.join(query.split()), ' '.join(supply.split()))
