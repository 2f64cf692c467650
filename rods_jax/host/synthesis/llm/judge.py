"""The judge: a language model's verdict on a whole task.

It counts only as one JSON object with all five criteria and with a code that is
a hash of the task: nothing inside the task can hold it, so a verdict that is
quoted from a tool's result is none. No verdict is a rejection.
"""

import dataclasses
import hashlib
from typing import Any

from rods_jax.host import env
from rods_jax.host.synthesis.compose.critique import STAGE
from rods_jax.host.synthesis.llm import answers, prompts
from rods_jax.host.synthesis.llm.answers import Unusable
from rods_jax.host.synthesis.records import Rejection
from rods_jax.types import Task

# The JSON's key -> what it is about, in a rejection.
CRITERIA = {
    'alignment': 'the queries ask for other calls',
    'consistency': 'a call does not fit the state',
    'coherence': 'the turns do not fit each other',
    'naturalness': 'no user talks like this',
    'ambiguity': 'what is missing is not clear, or is not missing',
}
MAX_RESULT = 1000  # characters of a result that are shown
MAX_REASON = 500


@dataclasses.dataclass(frozen=True)
class Verdict:
  """Criteria that the task does not meet, and the judge's words."""

  failed: tuple[str, ...]
  reason: str


class Judge:
  """Asks for verdicts."""

  def __init__(self, ask: answers.Ask):
    self._ask = ask

  def judge(self, task: Task) -> Rejection | None:
    """None for a good task, else the first criterion that it fails."""
    code = code_of(task)
    found = answers.obtain(
        self._ask,
        STAGE,
        prompts.messages('judge', _data(task, code)),
        int(task.content_hash()[:7], 16),
        lambda data: _verdict(data, code),
    )
    if isinstance(found, Rejection):
      return dataclasses.replace(found, reason=f'no verdict: {found.reason}')
    verdict, _ = found
    if not verdict.failed:
      return None
    reason = CRITERIA[verdict.failed[0]]
    return Rejection(STAGE, f'judge: {reason}', verdict.reason)


def code_of(task: Task) -> str:
  """Eight hex digits that the task cannot hold."""
  text = f'verdict on {task.content_hash()}'
  return hashlib.sha256(text.encode()).hexdigest()[:8]


def _data(task: Task, code: str) -> dict[str, Any]:
  results = env.replay(task).results
  return {
      'code': code,
      'category': task.category,
      'turns': [
          {
              'user': turn.user,
              'new_tools': list(turn.new_tools),
              'calls': [
                  {'call': call, 'result': result[:MAX_RESULT]}
                  for call, result in zip(turn.ground_truth, shown)
              ],
          }
          for turn, shown in zip(task.turns, results)
      ],
  }


def _verdict(data: dict[str, Any], code: str) -> Verdict:
  """Checks the form. Raises Unusable."""
  if answers.field(data, 'code', str) != code:
    raise Unusable('a verdict without the code')
  failed = tuple(
      name for name in CRITERIA if not answers.field(data, name, bool)
  )
  reason = data.get('reason')
  return Verdict(failed, reason[:MAX_REASON] if isinstance(reason, str) else '')
