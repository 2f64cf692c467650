"""The complexity profile of a task, and how far two profiles are apart.

A profile is read off the executed ground truth: what depends on what, where
arguments come from, how deep and how wide the dependencies go. It holds no
names and values of the dialogue, so a variant that keeps the structure of its
seed has the same profile.
"""

import collections
import dataclasses
import functools
from typing import Hashable, Mapping, Sequence

import networkx as nx

from rods_jax.host import bfcl, task_cache
from rods_jax.host.synthesis import flow, trace
from rods_jax.types import Task

VALUE, STATE = 'value', 'state'
# The seed's structure is to be kept; measured, nothing but faults differ.
MAX_DISTANCE = 0.0


@dataclasses.dataclass(frozen=True)
class Profile:
  """The structure of a task. C calls, R turns with calls.

  Attributes:
    category: of the task.
    num_turns: all turns.
    num_empty: turns that are to be answered without a call.
    calls: [R] calls of each turn that has any.
    tools: [C] names, in order.
    edges: (i, j, kind): call j depends on call i. 'value': an argument of j
      comes from the output of i and was not said by the user. 'state': without
      i the result of j is another one, or j fails.
    flows: (call, parameter, kind of origin), one for each scalar argument,
      sorted.
    references: [R] arguments whose value was said or returned last in an
      earlier turn: coreference across turns.
  """

  category: str
  num_turns: int
  num_empty: int
  calls: tuple[int, ...]
  tools: tuple[str, ...]
  edges: frozenset[tuple[int, int, str]]
  flows: tuple[tuple[int, str, str], ...]
  references: tuple[int, ...]

  @functools.cached_property
  def classes(self) -> tuple[str, ...]:
    """[C] The simulator class of each call."""
    return tuple(bfcl.owner(name) for name in self.tools)

  @functools.cached_property
  def graph(self) -> nx.DiGraph:
    """Calls 0 to C-1 with tool and cls, an edge for each dependency."""
    graph = nx.DiGraph()
    for index, (tool, cls) in enumerate(zip(self.tools, self.classes)):
      graph.add_node(index, tool=tool, cls=cls)
    graph.add_edges_from(sorted(self.links))
    return graph

  @functools.cached_property
  def links(self) -> frozenset[tuple[int, int]]:
    """(i, j) where call j depends on call i in any way."""
    return frozenset((i, j) for i, j, _ in self.edges)

  @functools.cached_property
  def depth(self) -> int:
    """Calls on the longest chain of dependencies; 0 without calls."""
    if not self.tools:
      return 0
    return nx.dag_longest_path_length(self.graph, weight=None) + 1

  @functools.cached_property
  def fan_out(self) -> int:
    """The largest number of calls that depend on one call."""
    return max((d for _, d in self.graph.out_degree()), default=0)

  @functools.cached_property
  def turns_back(self) -> int:
    """Turns of which a call needs what was called or said in an earlier one."""
    turn = [t for t, size in enumerate(self.calls) for _ in range(size)]
    linked = {turn[j] for i, j in self.links if turn[i] < turn[j]}
    return len(linked | {t for t, n in enumerate(self.references) if n})


def of(task: Task) -> Profile:
  """The profile of a task; cached by content.

  Raises:
    ParseError: a ground-truth text is not one call of literals.
  """
  return _profiles.get(task, _of)


# One takes a few kilobytes.
_profiles: task_cache.TaskCache[Profile] = task_cache.TaskCache(4096)


def _of(task: Task) -> tuple[Profile, bool]:
  """The profile, and whether no call timed out while it was measured."""
  executed = trace.run(task)
  return measure(executed), executed.finished


def measure(executed: trace.Trace) -> Profile:
  """The profile of an executed ground truth."""
  task, steps = executed.task, executed.steps
  origins = flow.flows(executed)
  edges = {(i, j, STATE) for i, j in executed.needs}
  edges |= {
      (f.source, f.argument.call, VALUE)
      for f in origins
      if f.source is not None
  }
  answered = [i for i, turn in enumerate(task.turns) if turn.ground_truth]
  back = collections.Counter(f.argument.turn for f in origins if f.back)
  return Profile(
      category=task.category,
      num_turns=len(task.turns),
      num_empty=len(task.turns) - len(answered),
      calls=tuple(len(task.turns[i].ground_truth) for i in answered),
      tools=tuple(step.call.name for step in steps),
      edges=frozenset(edges),
      flows=tuple(
          sorted((f.argument.call, f.argument.param, f.kind) for f in origins)
      ),
      references=tuple(back[i] for i in answered),
  )


@dataclasses.dataclass(frozen=True)
class Distance:
  """How far two profiles are apart.

  Attributes:
    parts: name -> 0 (equal) to 1 (nothing in common).
  """

  parts: Mapping[str, float]

  @property
  def total(self) -> float:
    """The largest part: a bound of it bounds every part."""
    return max(self.parts.values())

  @property
  def worst(self) -> str:
    """Name of the largest part; the first of several."""
    return max(self.parts, key=self.parts.get)


def distance(a: Profile, b: Profile, functions: bool = True) -> Distance:
  """The distance between two profiles, by parts.

  Args:
    a: one profile; b: the other. The distance is symmetric.
    functions: whether the tools called are part of the structure, as they are
      for a variant that exchanges values. Without, a call counts by its class.
  """
  parts = {
      'category': float(a.category != b.category),
      'turns': _counts((a.num_turns,), (b.num_turns,)),
      'empty_turns': _counts((a.num_empty,), (b.num_empty,)),
      'calls': _counts(a.calls, b.calls),
      'classes': edit_distance(a.classes, b.classes),
      'topology': _topology(a, b, functions),
      'depth': _counts((a.depth,), (b.depth,)),
      'fan_out': _counts((a.fan_out,), (b.fan_out,)),
      'flow': _flow(a, b, functions),
      'references': _counts(a.references, b.references),
  }
  if functions:
    parts['functions'] = edit_distance(a.tools, b.tools)
  return Distance(parts)


def _counts(a: Sequence[int], b: Sequence[int]) -> float:
  """Sum of |x - y| over the sum of max(x, y); what is missing is 0."""
  size = max(len(a), len(b))
  pairs = list(zip(
      [*a, *[0] * (size - len(a))], [*b, *[0] * (size - len(b))]
  ))  # pyformat: disable
  whole = sum(max(pair) for pair in pairs)
  return sum(abs(x - y) for x, y in pairs) / whole if whole else 0.0


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
  """Insertions, deletions and exchanges over the longer length: 0 to 1."""
  if a == b:
    return 0.0
  row = list(range(len(b) + 1))
  for i, x in enumerate(a, 1):
    corner, row[0] = row[0], i
    for j, y in enumerate(b, 1):
      best = min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
      corner, row[j] = row[j], best
  return row[-1] / max(len(a), len(b))


def _topology(a: Profile, b: Profile, functions: bool) -> float:
  """0 for isomorphic graphs, else the share of dependencies without partner.

  Partners lie between calls of the same labels; where all have one and the
  graphs differ all the same, one is counted. How a call depends on another is
  not compared: a token that a log-in returns, and that happens to be valid
  before, is a dependency like one that is not.
  """
  label = 'tool' if functions else 'cls'
  labels = [p.tools if functions else p.classes for p in (a, b)]
  if a.links == b.links and labels[0] == labels[1]:
    return 0.0
  if nx.is_isomorphic(
      a.graph, b.graph, node_match=lambda x, y: x[label] == y[label]
  ):
    return 0.0
  ours, theirs = (
      collections.Counter((names[i], names[j]) for i, j in p.links)
      for p, names in zip((a, b), labels)
  )
  whole = (ours | theirs).total()
  alone = (ours - theirs).total() + (theirs - ours).total()
  return max(alone, 1) / whole if whole else 0.0


def _flow(a: Profile, b: Profile, functions: bool) -> float:
  """The share of arguments that come from elsewhere."""
  if not functions:
    ours = collections.Counter(kind for _, _, kind in a.flows)
    theirs = collections.Counter(kind for _, _, kind in b.flows)
  else:
    ours, theirs = collections.Counter(a.flows), collections.Counter(b.flows)
  whole = max(ours.total(), theirs.total())
  return 1 - (ours & theirs).total() / whole if whole else 0.0
