"""Records of the synthesizer: rejections, and counts of what was accepted."""

import dataclasses
from typing import Any, Mapping

# Per planner, in their order. What is dropped as on the other side of the
# held-out split, a 'duplicate' too, never reaches the critique.
STAGES = {
    'exchange': ('substitute', 'execute', 'augment', 'duplicate', 'critique'),
    'compose': (
        'plan', 'execute', 'rewrite', 'augment', 'duplicate', 'critique',
    ),
}  # pyformat: disable


@dataclasses.dataclass(frozen=True)
class Rejection:
  """Why a candidate was dropped.

  Attributes:
    stage: one of those in STAGES.
    reason: one short line; it is counted.
    detail: what else a language model should know of it.
  """

  stage: str
  reason: str
  detail: str = ''


@dataclasses.dataclass
class Report:
  """Counts of a request.

  Attributes:
    attempts: candidates that were begun.
    accepted: variants that passed all stages.
    rejected: stage -> candidates dropped there.
    reasons: 'stage: reason' -> candidates; digits are left out.
    substituted: exchanged entities of the users' texts, summed over the
      accepted variants.
    failed_seeds: requested variants for which no attempt was accepted.
    llm: the account of the language model, summed; empty without one.
  """

  attempts: int = 0
  accepted: int = 0
  rejected: dict[str, int] = dataclasses.field(
      default_factory=lambda: dict.fromkeys(sum(STAGES.values(), ()), 0)
  )
  reasons: dict[str, int] = dataclasses.field(default_factory=dict)
  substituted: int = 0
  failed_seeds: int = 0
  llm: dict[str, float] = dataclasses.field(default_factory=dict)

  def reject(self, rejection: Rejection) -> None:
    """Counts one candidate as dropped."""
    self.rejected[rejection.stage] += 1
    reason = ''.join(c for c in rejection.reason if not c.isdigit())[:60]
    key = f'{rejection.stage}: {reason}'
    self.reasons[key] = self.reasons.get(key, 0) + 1

  def add(self, other: 'Report') -> None:
    """Counts what another report counts."""
    for name in ('attempts', 'accepted', 'substituted', 'failed_seeds'):
      setattr(self, name, getattr(self, name) + getattr(other, name))
    for name in ('rejected', 'reasons', 'llm'):
      mine = getattr(self, name)
      for key, count in getattr(other, name).items():
        mine[key] = mine.get(key, 0) + count

  def metrics(self, planner: str) -> dict[str, float]:
    """Per stage of a planner: synthesis/<stage>_attempts, _accepted, _rejected.

    And synthesis/llm/<name> for the account of a language model.

    A candidate reaches the stages in order; each rejects or passes it on. The
    few known contents that are found after the critique count as duplicates
    before it.
    """
    found = {f'synthesis/llm/{name}': n for name, n in self.llm.items()}
    left = self.attempts
    for stage in STAGES[planner]:
      rejected = self.rejected[stage]
      found[f'synthesis/{stage}_attempts'] = left
      found[f'synthesis/{stage}_rejected'] = rejected
      left -= rejected
      found[f'synthesis/{stage}_accepted'] = left
    return found

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, data: Mapping[str, Any]) -> 'Report':
    return cls(**data)
