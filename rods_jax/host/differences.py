"""Where two simulator states first differ, in one short line for a reader.

Bounded, because a policy made one of the two: depth, length of values, length
of the line. A folder copied into itself contains itself.
"""

from typing import Any

_MAX_DEPTH = 12
_SHOWN = 40  # characters of a value
_MAX_CHARS = 240  # of the line
_PLAIN = (str, int, float, bool, type(None))


def describe(path: str, found: Any, expected: Any) -> str:
  """Such as 'VehicleControlAPI.fuelLevel is 49.0, not 45.0'.

  Args:
    path: what the two are called.
    found: of the trajectory.
    expected: of the ground truth; the two are known to differ.
  """
  for _ in range(_MAX_DEPTH):
    found, expected = _inside(found), _inside(expected)
    step = _step(found, expected)
    if step is None:
      break
    key, problem = step
    path = f'{path}.{key}'
    if problem:
      return _cut(f'{path} {problem}', _MAX_CHARS)
    found, expected = found[key], expected[key]
  one, other = _shown(found), _shown(expected)
  what = 'differs' if one == other else f'is {one}, not {other}'
  return _cut(f'{path} {what}', _MAX_CHARS)


def _inside(value: Any) -> Any:
  """What a folder or a file holds; anything else as it is."""
  for name in ('contents', 'content'):
    value = getattr(value, name, value)
  return value


def _step(found: Any, expected: Any) -> tuple[Any, str] | None:
  """(key, what is wrong there); '' leads on, None: compare these two."""
  if isinstance(found, dict) and isinstance(expected, dict):
    for key in expected:
      if key not in found:
        return key, 'is missing'
    for key in found:
      if key not in expected:
        return key, 'should not be there'
    keys = list(expected)
  elif isinstance(found, list) and isinstance(expected, list):
    if len(found) != len(expected):
      return None
    keys = list(range(len(expected)))
  else:
    return None
  for key in keys:
    if differs(found[key], expected[key]):
      return key, ''
  return None


def differs(one: Any, other: Any) -> bool:
  """Not equal, or too deep to tell; no ground truth is."""
  try:
    return bool(one != other)
  except RecursionError:
    return True


def _shown(value: Any) -> str:
  if isinstance(value, _PLAIN):
    return _cut(repr(value), _SHOWN)
  if isinstance(value, (list, dict)) and all(
      isinstance(item, _PLAIN) for item in value
  ):
    shown = ', '.join(_cut(repr(item), _SHOWN) for item in list(value)[:5])
    more = f' and {len(value) - 5} more' if len(value) > 5 else ''
    return f'[{shown}{more}]'
  return type(value).__name__


def _cut(text: str, limit: int) -> str:
  return text if len(text) <= limit else text[:limit] + '...'
