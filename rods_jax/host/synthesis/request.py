"""What the training loop asks the synthesizer for, as JSON in a file."""

import dataclasses
from typing import Any, Mapping

from rods_jax.host.synthesis import profile
from rods_jax.host.synthesis.compose.records import Gates
from rods_jax.types import Task


@dataclasses.dataclass(frozen=True)
class Request:
  """Work for the synthesizer.

  Attributes:
    epoch: the epoch whose statistics chose the seeds.
    seeds: the seed tasks.
    per_seed: variants wanted of each.
    rng_seed: base of the named random stream.
    attempts: candidates per variant before the synthesizer gives up.
    forbidden: content hashes that must not come again.
    known: further tasks that composed ones must be unlike; their words and
      calls count alone (`bare`).
    stream: name of the random stream.
    heldout: whether the variants are for evaluation, else for training.
    max_profile_distance: from a variant to its seed, 0 to 1.
    planner: 'exchange' changes the values of a seed's calls, 'compose' makes
      new chains of calls with its structure.
    gates: thresholds of composed tasks.
    llm: fields of the LlmConfig whose model writes composed tasks; None for
      programmatic ones.
  """

  epoch: int
  seeds: tuple[Task, ...]
  per_seed: int
  rng_seed: int
  attempts: int = 3
  forbidden: frozenset[str] = frozenset()
  known: tuple[Task, ...] = ()
  stream: str = 'synthesis'
  heldout: bool = False
  max_profile_distance: float = profile.MAX_DISTANCE
  planner: str = 'exchange'
  gates: Gates = Gates()
  llm: Mapping[str, Any] | None = None

  def to_json(self) -> dict[str, Any]:
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return fields | {
        'seeds': [seed.to_json() for seed in self.seeds],
        'known': [task.to_json() for task in self.known],
        'forbidden': sorted(self.forbidden),
        'gates': dataclasses.asdict(self.gates),
    }

  @classmethod
  def from_json(cls, data: Mapping[str, Any]) -> 'Request':
    """Inverse of to_json, also after a round trip through JSON text."""
    seeds = tuple(Task.from_json(seed) for seed in data['seeds'])
    forbidden = frozenset(data['forbidden'])
    # Older checkpoints have neither of these.
    known = tuple(Task.from_json(task) for task in data.get('known', ()))
    gates = Gates(**data.get('gates', {}))
    return cls(**{
        **data, 'seeds': seeds, 'forbidden': forbidden, 'known': known,
        'gates': gates,
    })  # pyformat: disable


def bare(task: Task) -> Task:
  """The task without its initial state: all that novelty looks at."""
  return dataclasses.replace(task, initial_config={})
