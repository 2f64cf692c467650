"""Bytes that a compiled TPU program moves to and from its main memory (HBM).

XLA's own summary counts an array that is prefetched into on-chip memory up to
three times, and each buffer that is written in part as a whole. Here an array
counts where its layout places it in HBM, and only in the part that is touched:
slices and gathers read what they deliver, updates in place write what is new.

A loop whose bound is an input counts once; of a conditional the branch that
moves most counts. hlo_costs.py reads the program.
"""

import functools
import math
import re

from experiments import hlo_costs

_ARRAY = re.compile(r'(pred|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^}]*\})?')
_FREE = (
    'parameter', 'get-tuple-element', 'tuple', 'bitcast', 'constant', 'iota',
    'after-all', 'partition-id', 'replica-id', 'opt-barrier',
)
_PARTIAL = ('dynamic-slice', 'slice', 'gather')
_IN_PLACE = {'dynamic-update-slice': 1, 'scatter': 2}  # operand: what is new


def array_bytes(type_: str) -> list[int]:
  """Of each array of a type: 0 where it lies in on-chip memory."""
  sizes = []
  for _, bits, dims, layout in _ARRAY.findall(type_):
    on_chip = re.search(r'S\([1-9]\)', layout)
    count = math.prod(int(n) for n in dims.split(',') if n)
    sizes.append(0 if on_chip else count * int(bits or 8) // 8)
  return sizes


class Traffic:
  """Bytes of a program, or of one of its computations."""

  def __init__(self, program: hlo_costs.Program):
    self._program = program

  def per_step(self) -> int:
    """Of one execution of the body of the entry's loop that moves most."""
    ops = self._program.computations[self._program.entry]
    bodies = [
        self._of(name)
        for op in ops.values() if op.code == 'while'
        for name in self._program.called(op)
    ]
    return max(bodies)

  def once(self) -> int:
    """Of what stands outside of the entry's loops."""
    ops = self._program.computations[self._program.entry]
    return sum(
        self._of_op(ops, op) for op in ops.values() if op.code != 'while'
    )

  @functools.cache
  def _of(self, name: str) -> int:
    ops = self._program.computations[name]
    return sum(self._of_op(ops, op) for op in ops.values())

  def _of_op(self, ops, op) -> int:
    code = op.code
    if code in _FREE or code.endswith('-done'):
      return 0
    called = self._program.called(op)
    if code == 'while':
      return self._program.times(op) * sum(map(self._of, called))
    if code == 'conditional':
      return max(map(self._of, called))
    if code == 'call' or code == 'async-start':
      return sum(map(self._of, called))
    if code == 'custom-call' and 'ConcatBitcast' in op.attributes:
      return 0
    if code == 'fusion':
      inner = called[0]
      read = sum(
          self._read(inner, index, ops[name].type)
          for index, name in enumerate(op.operands)
      )
      return read + self._written(inner, op.type)
    operands = [sum(array_bytes(ops[name].type)) for name in op.operands]
    if code in _IN_PLACE:
      return sum(operands[1:]) + operands[_IN_PLACE[code]]
    if code in ('copy-start', 'slice-start'):
      return self._moved(ops, op)
    result = sum(array_bytes(op.type))
    if code in _PARTIAL:
      in_hbm = operands[0] > 0
      size = _sizes(op.type)[0]
      return size * in_hbm + result + sum(operands[1:])
    return sum(operands) + result

  def _moved(self, ops, op) -> int:
    """A copy in the background: its type has target, source and a flag."""
    arrays = zip(_sizes(op.type), array_bytes(op.type))
    arrays = [pair for pair in arrays if pair[0] > 4]
    size = min(whole for whole, _ in arrays)
    return sum(size for _, in_hbm in arrays[:2] if in_hbm)

  def _read(self, name: str, index: int, type_: str) -> int:
    """Bytes that a fusion reads of one of its operands."""
    whole = sum(array_bytes(type_))
    if not whole:
      return 0
    ops = self._program.computations[name]
    used = self._used(ops, _parameter(ops, index))
    return whole if used is None else min(used, whole)

  def _used(self, ops, label: str) -> int | None:
    """Bytes of a value that a fusion's operations use; None: all of it."""
    if label == list(ops)[-1]:
      return None
    total = 0
    for name, user in ops.items():
      for position, operand in enumerate(user.operands):
        if operand != label or user.code == 'parameter':
          continue
        if user.code == 'bitcast':
          more = self._used(ops, name)
        elif user.code in _PARTIAL and position == 0:
          more = _sizes(user.type)[0]
        elif user.code in _IN_PLACE and position == 0:
          more = 0 if name == list(ops)[-1] else self._used(ops, name)
        elif user.code == 'fusion':
          more = self._used_inside(ops, name, position)
        else:
          more = None
        if more is None:
          return None
        total += more
    return total

  def _used_inside(self, ops, name: str, position: int) -> int | None:
    """`_used` of an operand of a fusion within a fusion."""
    inner = self._program.computations[self._program.called(ops[name])[0]]
    label = _parameter(inner, position)
    root = list(inner)[-1]
    while inner[root].code == 'bitcast':
      root = inner[root].operands[0]
    passed_on = root == label
    return self._used(ops, name) if passed_on else self._used(inner, label)

  def _written(self, name: str, type_: str) -> int:
    """Bytes that a fusion writes."""
    ops = self._program.computations[name]
    root = list(ops.values())[-1]
    roots = [root]
    if root.code == 'tuple':
      roots = [ops[label] for label in root.operands]
    sizes = array_bytes(type_)
    return sum(
        size and min(size, self._new(ops, op))
        for size, op in zip(sizes, roots)
    )

  def _new(self, ops, op) -> int:
    """Bytes of a value that are not those of an operand."""
    while op.code == 'bitcast':
      op = ops[op.operands[0]]
    if op.code in _IN_PLACE:
      return _sizes(ops[op.operands[_IN_PLACE[op.code]]].type)[0]
    if op.code == 'fusion':
      return self._written(self._program.called(op)[0], _plain(op.type))
    return sum(_sizes(op.type))


def _plain(type_: str) -> str:
  """A type without its layouts: as if all of it were in HBM."""
  return re.sub(r'\{[^}]*\}', '', type_)


def _sizes(type_: str) -> list[int]:
  return array_bytes(_plain(type_))


def _parameter(ops, index: int) -> str:
  return next(
      label for label, op in ops.items()
      if op.code == 'parameter' and op.index == index
  )
