"""Flops of matrix products, and collectives, of a compiled program.

XLA's own cost analysis counts the body of each loop once. Here a loop whose
bound is a constant counts as often as it runs; one whose bound is an input,
such as that over the microbatches in use, counts once.

The text form of the program is read: one computation after another, one
instruction a line. On TPU products are convolutions, batch dimensions included;
a position of a window that falls on padding is no work.
"""

import collections
import dataclasses
import functools
import math
import re
from typing import Any

import numpy as np

_HEAD = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$')
_NAME = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = ')
_SHAPE = re.compile(r'(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]')
_CALLED = re.compile(
    r'(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)'
)
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_COLLECTIVES = (
    'all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all',
    'collective-permute',
)


@dataclasses.dataclass(frozen=True)
class _Op:
  """One instruction.

  Attributes:
    type: of the result.
    code: such as 'convolution'.
    operands: names, or the literal of a constant or parameter.
    attributes: the rest of the line.
  """

  type: str
  code: str
  operands: tuple[str, ...]
  attributes: str

  @property
  def index(self) -> int:
    """Of a parameter."""
    return int(self.operands[0])


def _closing(text: str, start: int) -> int:
  """Index after the parenthesis that closes the one at `start`."""
  depth = 0
  for i in range(start, len(text)):
    depth += (text[i] == '(') - (text[i] == ')')
    if not depth:
      return i + 1
  raise ValueError(f'no closing parenthesis: {text[start : start + 80]}')


def _parse(line: str) -> tuple[str, _Op] | None:
  match = _NAME.match(line)
  if not match:
    return None
  rest = line[match.end() :]
  end = _closing(rest, 0) if rest[0] == '(' else rest.index(' ')
  type_, rest = rest[:end], rest[end:].lstrip()
  open_ = rest.index('(')
  close = _closing(rest, open_)
  inner = rest[open_ + 1 : close - 1]
  if rest[:open_] in ('constant', 'parameter'):
    names = (inner,)
  else:
    names = tuple(re.findall(r'%([\w.\-]+)', inner))
  return match[1], _Op(type_, rest[:open_], names, rest[close:])


def _dims(type_: str) -> list[int]:
  """Of the first array in a type."""
  match = _SHAPE.search(type_)
  return [int(n) for n in match[3].split(',') if n] if match else []


def all_dims(type_: str) -> list[list[int]]:
  """Of each array in a type."""
  found = (match[3] for match in _SHAPE.finditer(type_))
  return [[int(n) for n in dims.split(',') if n] for dims in found]


def _bytes(type_: str) -> int:
  """Of the largest array in a type: what a started collective delivers."""
  sizes = [
      math.prod(int(n) for n in dims.split(',') if n) * int(bits or 8) // 8
      for _, bits, dims in _SHAPE.findall(type_)
  ]
  return max(sizes, default=0)


class Program:
  """A compiled program: `compiled.as_text()`."""

  def __init__(self, text: str):
    self.computations: dict[str, dict[str, _Op]] = {}
    self.entry = ''
    current: dict[str, _Op] = {}
    for line in text.splitlines():
      head = _HEAD.match(line)
      if head:
        current = self.computations.setdefault(head[2], {})
        self.entry = head[2] if head[1] else self.entry
      elif parsed := _parse(line):
        current[parsed[0]] = parsed[1]

  def flops(self) -> float:
    """Of the matrix products that one device computes."""
    return self._total(self.entry)

  @functools.cache
  def _total(self, name: str) -> float:
    total = 0.0
    ops = self.computations[name]
    for op in ops.values():
      if op.code == 'dot':
        total += _dot_flops(op, _dims(ops[op.operands[0]].type))
      elif op.code == 'convolution':
        total += _convolution_flops(
            op, *(_dims(ops[o].type) for o in op.operands)
        )
      elif op.code == 'conditional':
        total += max(map(self._total, self.called(op)))
      else:
        total += self.times(op) * sum(map(self._total, self.called(op)))
    return total

  def collectives(self) -> list[dict[str, Any]]:
    """Kind, group size, executions and bytes, the largest first.

    Bytes are those of the results on one device, over all executions.
    """
    found: dict[str, tuple[tuple[str, int], int, int]] = {}
    self._collect(self.entry, 1, found)
    counts: collections.Counter[tuple[str, int]] = collections.Counter()
    sizes: collections.Counter[tuple[str, int]] = collections.Counter()
    for key, times, size in found.values():
      counts[key] += times
      sizes[key] += times * size
    return [
        {'kind': kind, 'group': group, 'count': counts[kind, group],
         'bytes': size}
        for (kind, group), size in sizes.most_common()
    ]

  def _collect(self, name: str, times: int, found) -> None:
    """Channel -> (kind and group, executions, bytes).

    One that runs beside other work stands in each part of that work, under the
    same channel: the outermost occurrence says how often it runs.
    """
    for label, op in self.computations[name].items():
      kind = op.code.removesuffix('-start')
      if kind in _COLLECTIVES:
        channel = re.search(r'channel_id=(\d+)', op.attributes)
        channel = channel[1] if channel else f'{name}.{label}'
        entry = (kind, _group_size(op.attributes)), times, _bytes(op.type)
        found[channel] = min(entry, found.get(channel, entry), key=_executions)
      else:
        for called in self.called(op):
          self._collect(called, times * self.times(op), found)

  def called(self, op: _Op) -> list[str]:
    """Computations that run as a part of this instruction."""
    if op.code in ('reduce', 'scatter', 'sort', 'map', 'select-and-scatter',
                   'reduce-window', *_COLLECTIVES, 'all-reduce-start',
                   'async-update', 'async-done'):
      return []  # a scalar function, or counted where it started
    found = _CALLED.findall(op.attributes)
    for group in _BRANCHES.findall(op.attributes):
      found += [name.strip().lstrip('%') for name in group.split(',')]
    return [name for name in found if name in self.computations]

  def times(self, op: _Op) -> int:
    """How often the computations that it calls run."""
    if op.code != 'while':
      return 1
    known = re.search(r'known_trip_count":\{"n":"(\d+)"', op.attributes)
    if known:
      return int(known[1])
    name = re.search(r'condition=%?([\w.\-]+)', op.attributes)[1]
    return self._bound(self.computations[name])

  def _bound(self, ops: dict[str, _Op]) -> int:
    """N where the loop runs while i < N, a constant; else 1."""
    last = list(ops.values())[-1]
    names = [o for o in last.operands if o in ops and o != last]
    constants = [ops[n] for n in names if ops[n].code == 'constant']
    compares = last.code == 'compare' and 'direction=LT' in last.attributes
    if constants and (compares or last.code == 'fusion'):
      return int(constants[0].operands[0])
    if last.code == 'fusion':
      return self._bound(self.computations[self.called(last)[0]])
    return 1


def _executions(entry: tuple[tuple[str, int], int, int]) -> int:
  return entry[1]


def _dot_flops(op: _Op, left: list[int]) -> float:
  found = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', op.attributes)
  summed = [int(n) for n in found[1].split(',') if n] if found else []
  return 2.0 * math.prod(_dims(op.type)) * math.prod(left[i] for i in summed)


def _convolution_flops(op: _Op, left: list[int], right: list[int]) -> float:
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', op.attributes)
  lhs, rhs, out = labels[1], labels[2], labels[3]
  window = re.search(r'window=\{([^}]*)\}', op.attributes)
  fields = dict(f.split('=') for f in window[1].split()) if window else {}
  result = _dims(op.type)
  total = 2.0 * right[rhs.index('i')]
  total *= result[out.index('b')] * result[out.index('f')]
  spatial = sorted(c for c in out if c.isdigit())
  for i, label in enumerate(spatial):
    field = lambda name, default: fields.get(
        name, 'x'.join([default] * len(spatial))
    ).split('x')[i]
    total *= _positions(
        left[lhs.index(label)], right[rhs.index(label)],
        result[out.index(label)], int(field('stride', '1')),
        int(field('pad', '0_0').split('_')[0]),
        int(field('lhs_dilate', '1')), int(field('rhs_dilate', '1')),
    )
  return total


def _positions(
    size: int, window: int, outputs: int, stride: int, pad: int,
    spread: int, reach: int,
) -> int:
  """Pairs of an output and a window position that meet an input."""
  begin = np.arange(outputs) * stride - pad
  total = 0
  for k in range(window):
    at = begin + k * reach
    hit = (at >= 0) & (at <= (size - 1) * spread) & (at % spread == 0)
    total += int(hit.sum())
  return total


def _group_size(attributes: str) -> int:
  """Devices that take part in one collective; 0 where it is not said."""
  found = re.search(r'replica_groups=\[(\d+),(\d+)\]', attributes)
  if found:
    return int(found[2])
  found = re.search(r'replica_groups=\{\{([\d,]+)\}', attributes)
  if found:
    return len(found[1].split(','))
  found = re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", attributes)
  if found:
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
    names = re.findall(r"'(\w+)'", found[2])
    return math.prod(int(sizes[name]) for name in names if name in sizes)
  return 0
