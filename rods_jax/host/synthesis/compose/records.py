"""What the stages of the composer hand to each other."""

import dataclasses
from typing import Any, Mapping

from rods_jax.host.synthesis.compose.tables import Source, Use
from rods_jax.types import Call, Task


@dataclasses.dataclass(frozen=True)
class Gates:
  """How much of its seed's structure, and how much news, a task must have.

  Attributes:
    max_class_distance: edit distance of the calls' classes to the seed's, 0 to
      1.
    min_cross_turn: turns that need an earlier one, as a share of the seed's; at
      most 1.
    min_novelty: distance to every known task, 0 to 1; see quality.Nearest.
  """

  max_class_distance: float = 0.0
  min_cross_turn: float = 0.5
  min_novelty: float = 0.5


@dataclasses.dataclass(frozen=True)
class Brief:
  """What a variant has to look like. C calls, R turns.

  Attributes:
    seed: the seed task.
    base: the seed without turns that are answered by no call.
    calls: [R] calls of each turn.
    links: (i, j): call j depends on call i; i < j.
    tools: [C] the seed's tools.
    offered: tools that may be used.
  """

  seed: Task
  base: Task
  calls: tuple[int, ...]
  links: frozenset[tuple[int, int]]
  tools: tuple[str, ...]
  offered: frozenset[str]

  @property
  def long_context(self) -> bool:
    return self.seed.category == 'long_context'


@dataclasses.dataclass(frozen=True)
class Thing:
  """Something that an argument can name, or a value that a result gives.

  Attributes:
    number: its place among the plan's things.
    kind: in the tables.
    value: its name, where the initial state holds it; else None.
    maker: call that made it or gave it; None where the initial state holds it.
    source: call whose result holds its name, where the user does not say it.
    path: where the maker's result holds the name; '@p' for its parameter p.
    outputs: keys of the source's result that hold the name.
    place: folder that it is in.
    of: things that the maker was asked about.
  """

  number: int
  kind: str
  value: Any = None
  maker: int | None = None
  source: int | None = None
  path: str = ''
  outputs: tuple[str, ...] = ()
  place: str = ''
  of: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Slot:
  """One argument, or several that are drawn together, and its source.

  Attributes:
    params: names.
    source: of the tables.
    thing: index of the thing that it names or, for a new one, makes.
    option: index of the option.
  """

  params: tuple[str, ...]
  source: Source
  thing: int | None = None
  option: int = 0


@dataclasses.dataclass(frozen=True)
class Step:
  """One planned call."""

  turn: int
  use: Use
  slots: tuple[Slot, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
  """A chain of calls without values, and the state that it starts from.

  Attributes:
    brief: what it was made for.
    config: class -> configuration.
    things: all that slots refer to.
    steps: the calls, in order.
    links: the dependencies that the tables promise, or that were measured.
    story: what the dialogue is about, where a language model wrote it.
  """

  brief: Brief
  config: Mapping[str, Any]
  things: tuple[Thing, ...]
  steps: tuple[Step, ...]
  links: frozenset[tuple[int, int]]
  story: str = ''


@dataclasses.dataclass(frozen=True)
class Execution:
  """A plan with values, run.

  Attributes:
    config: the plan's, patched where that was needed.
    calls: the ground truth.
    results: text of each call's result.
    values: per call, parameter -> value.
    names: value of each thing of the plan; None where none was needed.
    patches: names of the patches applied.
  """

  config: Mapping[str, Any]
  calls: tuple[Call, ...]
  results: tuple[str, ...]
  values: tuple[Mapping[str, Any], ...]
  names: tuple[Any, ...]
  patches: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Blur:
  """A turn whose text leaves a value out.

  Attributes:
    turn: its index.
    value: what is missing.
    text: the turn's text without it.
    supply: the sentence that brings it.
  """

  turn: int
  value: Any
  text: str
  supply: str


@dataclasses.dataclass(frozen=True)
class Wording:
  """What the user says.

  Attributes:
    texts: one for each turn.
    blurs: what could be left out at first.
  """

  texts: tuple[str, ...]
  blurs: tuple[Blur, ...] = ()
