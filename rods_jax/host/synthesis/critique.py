"""The last gates of a variant: well-formed, solvable, not trivial, its seed's
equal in structure as far as a profile measures it.

'Not trivial' has a short proof instead of two more episodes. The empty policy
fails the first turn that asks for a call. The policy that repeats the previous
turn's calls has none to repeat there, or repeats the none of an earlier empty
turn, so it fails the same turn. One turn with a ground truth is enough.
"""

from typing import Any, Sequence

from rods_jax.host import env, tool_calls
from rods_jax.host.synthesis import augment, profile, trace
from rods_jax.host.synthesis.reading import scalars
from rods_jax.host.synthesis.records import Rejection
from rods_jax.types import Call, Task

STAGE = 'critique'
MAX_STRING = 200  # characters of a generated argument
MAX_LIST = 5  # items of a generated argument


def review(
    seed: Task, variant: Task, max_distance: float = profile.MAX_DISTANCE
) -> Rejection | None:
  """None for a good variant, else the first gate that it fails.

  Args:
    seed: what the variant was made from.
    variant: executed.
    max_distance: of their profiles, 0 to 1; the dearest gate, so the last.
  """
  reason = form(seed, variant) or _profile(seed, variant, max_distance)
  return Rejection(STAGE, reason) if reason else None


def form(seed: Task, variant: Task) -> str:
  """The gates that need no execution: '' or what is wrong."""
  for gate in (_offers, _sizes, _texts, _not_trivial):
    reason = gate(seed, variant)
    if reason:
      return reason
  return ''


def _name(text: str) -> str:
  return text.partition('(')[0]


def _profile(seed: Task, variant: Task, max_distance: float) -> str:
  if seed.category == 'base' and variant.category in augment.CATEGORIES:
    merged = augment.base_form(variant)
    if isinstance(merged, Rejection):
      return merged.reason
    if len(merged.turns) == len(variant.turns):
      return 'nothing is missing'
    variant = merged
  if max_distance >= 1:
    return ''  # nothing is further away
  found = profile.distance(
      profile.of(seed), profile.measure(trace.run(variant))
  )
  if found.total <= max_distance:
    return ''
  return f'another profile: {found.worst}'


def _offers(seed: Task, variant: Task) -> str:
  del seed
  for turn, offer in zip(variant.turns, env.offered(variant)):
    for text in turn.ground_truth:
      if _name(text) not in offer:
        return f'{_name(text)} is not on offer'
  return ''


def _sizes(seed: Task, variant: Task) -> str:
  """Bounds of arguments; what the seed has already may stay."""
  old = {
      value
      for call in _calls(seed)
      for _, value in scalars((call.args, call.kwargs))
      if isinstance(value, str)
  }
  longest = max((len(value) for value in old), default=0)
  for call in _calls(variant):
    for _, value in scalars((call.args, call.kwargs)):
      if not isinstance(value, str) or len(value) <= MAX_STRING:
        continue
      if value not in old and len(value) > longest:
        return f'a string of more than {MAX_STRING} characters'
  biggest = max((_longest_list(call) for call in _calls(seed)), default=0)
  for call in _calls(variant):
    if _longest_list(call) > max(MAX_LIST, biggest):
      return f'a list of more than {MAX_LIST} items'
  return ''


def _calls(task: Task) -> list[Call]:
  return [
      tool_calls.parse_ground_truth(text)
      for turn in task.turns
      for text in turn.ground_truth
  ]


def _longest_list(value: Any) -> int:
  """Items of the longest list anywhere in a call's arguments."""
  if isinstance(value, Call):
    return max(map(_longest_list, (*value.args, *value.kwargs.values())),
               default=0)  # pyformat: disable
  if isinstance(value, dict):
    return max(map(_longest_list, value.values()), default=0)
  if isinstance(value, Sequence) and not isinstance(value, str):
    return max([len(value), *map(_longest_list, value)])
  return 0


def _texts(seed: Task, variant: Task) -> str:
  for old, new in zip(seed.turns, variant.turns):
    if old.user and not new.user:
      return 'a turn lost its text'
  return ''


def _not_trivial(seed: Task, variant: Task) -> str:
  del seed
  if not any(turn.ground_truth for turn in variant.turns):
    return 'no turn asks for a call'
  return ''
