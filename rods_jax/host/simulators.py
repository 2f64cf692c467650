"""The BFCL simulators of one trajectory, and one bounded call into them.

The official executor evaluates model text; here a parsed call of a documented
tool is dispatched to a method of a fresh instance. What the simulators share
between instances is cut: mutable default arguments, the long-context records,
the precision of mpmath and decimal, lists that a caller passed in, and the
process's hash seed.

Bounds of a call. Time: an alarm on the main thread; on any other thread, where
signals cannot be set, a profile hook that looks at the clock at every Python
and C call. Both act between bytecodes only, so the few arguments that make one
C operation endless (power, precision, rounding) are refused before the call.
Size: the text of a result is cut by the caller, see env.Limits.

A call that was stopped may leave its simulator half changed. The world then
refuses every later call, and the trajectory must end (Status.ENV_TIMEOUT).
"""

import copy
import dataclasses
import decimal
import functools
import inspect
import json
import signal
import sys
import threading
import time
from typing import Any, Callable, Mapping, Sequence

import mpmath

from rods_jax.host import bfcl
from rods_jax.types import Call

MAX_PRECISION = 10_000  # digits, and decimal places, that a tool may be asked
MAX_POWER_BITS = 20_000  # surely above the 4,300 digits that Python prints
# Beginning and end of the messages of book_flight and edit_ticket.
_SET_LISTS = (
    ('Invalid travel class. Must be one of {', '}'),
    ('Invalid fields for update: ', ''),
)
_RING_AGAIN_S = 0.5  # far longer than leaving a call takes
ERROR = 'Error during execution: '
NOT_EXECUTED = 'Not executed: an earlier call timed out.'


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The whole result of one call.

  Attributes:
    text: exactly as the official executor formats it.
    ok: False where the call raised or its result reports an error.
    timeout: True where the call was stopped, or came after one that was.
  """

  text: str
  ok: bool
  timeout: bool = False


class _CallTimeout(BaseException):
  """Not an Exception: simulators catch those."""


class World:
  """Fresh simulators of one task; see the module's docstring."""

  def __init__(
      self,
      classes: Sequence[str],
      initial_config: Mapping[str, Any],
      long_context: bool = False,
  ):
    self.instances = {
        name: _fresh(name, initial_config, long_context) for name in classes
    }
    self.broken = False

  def call(self, call: Call, timeout_s: float) -> Outcome:
    """Runs a call of a documented tool of these classes.

    Never raises for anything the call does; KeyboardInterrupt passes through.

    Args:
      call: its arguments are copied, so that no state is shared through them.
      timeout_s: seconds; 0 or less means no bound.
    """
    if self.broken:
      return Outcome(NOT_EXECUTED, False, True)
    try:
      return _bounded(lambda: self._run(call), timeout_s)
    except _CallTimeout:
      self.broken = True
      return Outcome(
          f'{ERROR}stopped after {timeout_s:g} seconds', False, True
      )

  def _run(self, call: Call) -> Outcome:
    try:
      class_name = bfcl.owner(call.name)
      method = getattr(self.instances[class_name], call.name)
      args, kwargs = _arguments(call)
      _refuse_endless(call.name, args, kwargs)
      if class_name != 'MathAPI':
        return _outcome(_ordered(method(*args, **kwargs)))
      # The text depends on the precision too, so it is made inside.
      with decimal.localcontext(decimal.Context()), mpmath.workdps(15):
        return _outcome(method(*args, **kwargs))
    except Exception as e:  # Whatever the simulator raises is its answer.
      return Outcome(f'{ERROR}{e}', False)


def public_state(instance: Any) -> dict[str, Any]:
  """The attributes that are compared; live objects, not copies."""
  return {k: v for k, v in vars(instance).items() if not k.startswith('_')}


def _fresh(
    class_name: str, initial_config: Mapping[str, Any], long_context: bool
) -> Any:
  instance = bfcl.simulator(class_name)()
  if hasattr(instance, '_load_scenario'):  # MathAPI has no state
    config = copy.deepcopy(initial_config.get(class_name, {}))
    instance._load_scenario(config, long_context=long_context)
  if long_context and class_name == 'TravelAPI':
    # Loading put the module's own records into the instance.
    instance.credit_card_list = copy.deepcopy(instance.credit_card_list)
    instance.booking_record = copy.deepcopy(instance.booking_record)
  return instance


@functools.cache
def _mutable_defaults(name: str) -> tuple[tuple[int, str, Any], ...]:
  """(position, parameter, default) of a tool's list and dict defaults."""
  method = getattr(bfcl.simulator(bfcl.owner(name)), name)
  parameters = list(inspect.signature(method).parameters.values())[1:]
  return tuple(
      (i, p.name, copy.deepcopy(p.default))
      for i, p in enumerate(parameters)
      if isinstance(p.default, (list, dict, set))
  )


def _arguments(call: Call) -> tuple[list[Any], dict[str, Any]]:
  """Private copies of the arguments, mutable defaults filled in."""
  args = [copy.deepcopy(value) for value in call.args]
  kwargs = {name: copy.deepcopy(value) for name, value in call.kwargs.items()}
  for position, name, default in _mutable_defaults(call.name):
    if position >= len(args) and name not in kwargs:
      kwargs[name] = copy.deepcopy(default)
  return args, kwargs


def _refuse_endless(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
  """Raises for arguments whose one C operation no alarm could stop."""
  if name not in ('power', 'logarithm', 'square_root', 'round_number'):
    return
  given = dict(zip(bfcl.parameters(name), args)) | dict(kwargs)
  for key in ('precision', 'decimal_places'):
    value = given.get(key, 0)
    if isinstance(value, (int, float)) and not abs(value) <= MAX_PRECISION:
      raise ValueError(f'{key} must be at most {MAX_PRECISION}')
  if name == 'power':
    base, exponent = given.get('base'), given.get('exponent')
    if isinstance(base, int) and isinstance(exponent, int):
      if (base.bit_length() - 1) * exponent > MAX_POWER_BITS:
        # What printing the result would say, without computing it.
        raise ValueError(
            'Exceeds the limit (4300 digits) for integer string conversion'
        )
  if name == 'logarithm':
    # mpmath also reads strings and tuples, with exponents of any size.
    if not all(isinstance(v, (int, float)) for v in given.values()):
      raise TypeError('logarithm takes numbers')


def _ordered(result: Any) -> Any:
  """Sorts what two error messages list in a set's order.

  That order changes from process to process with Python's hash seed, and a
  resumed run would read other tokens than one that never stopped.
  """
  error = result.get('error') if isinstance(result, dict) else None
  if isinstance(error, str):
    for head, close in _SET_LISTS:
      if error.startswith(head) and error.endswith(close):
        items = error[len(head) : len(error) - len(close)].split(', ')
        return {**result, 'error': head + ', '.join(sorted(items)) + close}
  return result


def _outcome(result: Any) -> Outcome:
  """Formats a result as the official executor does."""
  if isinstance(result, str):
    text = result
  elif isinstance(result, dict):
    try:
      text = json.dumps(result)
    except (TypeError, ValueError):  # such as mpf('2.0') or a giant integer
      text = str(result)
  else:
    text = str(result)
  return Outcome(text, not _reports_error(result))


def _reports_error(result: Any) -> bool:
  """Errors come as {'error': ...}, [{'error': ...}] or ['Error: ...']."""
  if isinstance(result, list) and result:
    result = result[0]
  if isinstance(result, dict):
    return 'error' in result
  return isinstance(result, str) and result.startswith('Error')


def _bounded(function: Callable[[], Outcome], seconds: float) -> Outcome:
  """Runs function; raises _CallTimeout once `seconds` have passed."""
  if seconds <= 0:
    return function()
  if threading.current_thread() is threading.main_thread():
    return _with_alarm(function, seconds)
  return _with_profile(function, seconds)


def _with_alarm(function: Callable[[], Outcome], seconds: float) -> Outcome:
  armed = True

  def on_alarm(signum, frame):
    del signum, frame
    if armed:
      raise _CallTimeout

  handler = signal.signal(signal.SIGALRM, on_alarm)
  start = time.monotonic()
  timer = (0.0, 0.0)
  try:
    try:
      # It rings again: an exception raised inside a destructor is lost.
      timer = signal.setitimer(signal.ITIMER_REAL, seconds, _RING_AGAIN_S)
      return function()
    finally:
      # If it rings before this line the clause below still cleans up.
      armed = False
  finally:
    armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    if handler is None:  # one that was not set from Python
      handler = signal.SIG_DFL
    signal.signal(signal.SIGALRM, handler)
    if timer[0]:  # somebody else's alarm goes on
      left = max(timer[0] - (time.monotonic() - start), 1e-3)
      signal.setitimer(signal.ITIMER_REAL, left, timer[1])


def _with_profile(function: Callable[[], Outcome], seconds: float) -> Outcome:
  deadline = time.monotonic() + seconds

  def hook(frame, event, arg):
    del frame, event, arg
    if time.monotonic() > deadline:
      raise _CallTimeout

  previous = sys.getprofile()
  sys.setprofile(hook)
  try:
    return function()
  finally:
    sys.setprofile(previous)
