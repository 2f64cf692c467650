"""Critique: replays a composed task and looks for whatever is wrong with it.

Gates, the cheap ones first: the form and offer of the released task; no tool is
named; the ground truth is free of errors; the measured dependencies are those
planned, so that the profile has the seed's structure; classes come in the
seed's order and turns refer to earlier ones as often, as far as `Gates` wants
it; every argument has a source. A language model's verdict is a stage of its
own (Stages.judge in stages.py).
"""

import functools
import re

from rods_jax.host import bfcl
from rods_jax.host.synthesis import critique, profile, quality, trace
from rods_jax.host.synthesis.compose.records import Gates, Plan
from rods_jax.host.synthesis.records import Rejection
from rods_jax.types import Task

STAGE = 'critique'
# Shell commands that are no words of English.
_COMMANDS = frozenset(('ls', 'cd', 'pwd', 'mkdir', 'rmdir', 'grep', 'wc', 'du',
                       'cp', 'mv', 'rm'))  # pyformat: disable


def review(
    plan: Plan, task: Task, gates: Gates = Gates()
) -> Rejection | None:
  """None for a good task, else the first fault."""
  reason = (
      critique.form(plan.brief.seed, task)
      or _names_tools(task)
      or _measured(plan, task, gates)
  )
  return Rejection(STAGE, reason) if reason else None


def _names_tools(task: Task) -> str:
  for turn in task.turns:
    if named_tool(turn.user):
      return f'the user names a tool: {named_tool(turn.user)}'
  return ''


def named_tool(text: str) -> str:
  """The first tool that a text names, '' if none."""
  found = _tool_names().search(text)
  return found.group() if found else ''


@functools.cache
def _tool_names() -> re.Pattern:
  """Names that no user would write: of several words, or shell commands."""
  names = [
      name for cls in bfcl.CLASSES for name in bfcl.tool_names(cls)
      if not name.islower() or '_' in name or name in _COMMANDS
  ]  # pyformat: disable
  return re.compile(r'\b(?:' + '|'.join(map(re.escape, names)) + r')\b')


def _measured(plan: Plan, task: Task, gates: Gates) -> str:
  """Faults that only execution shows."""
  executed = trace.run(task)
  if not all(step.ok for step in executed.steps) or not executed.finished:
    return 'the ground truth has errors'
  found = profile.measure(executed)
  if found.links != plan.links:
    return 'other dependencies: ' + _difference(found, plan)
  wanted = profile.of(plan.brief.seed)
  for part in ('num_turns', 'num_empty', 'calls', 'depth', 'fan_out'):
    if getattr(found, part) != getattr(wanted, part):
      return f'another profile: {part}'
  apart = profile.edit_distance(found.classes, wanted.classes)
  if apart > gates.max_class_distance:
    return 'another profile: classes'
  if found.turns_back < gates.min_cross_turn * wanted.turns_back:
    return 'another profile: references to earlier turns'
  unknown = quality.unsourced(executed, discoverable=False)
  if unknown:
    return f'no source of {unknown[0].param} of {unknown[0].tool}'
  return ''


def _difference(found: profile.Profile, plan: Plan) -> str:
  """The first dependency that is missing or too many."""
  i, j = min(found.links ^ plan.links)
  what = 'no' if (i, j) in plan.links else 'but'
  return f'{what} {found.tools[i]} to {found.tools[j]}'
