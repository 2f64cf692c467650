"""Several processes of one run: how they find each other, and how they end.

Each process runs `python main.py` with the same flags, but for its number.
jax.distributed makes one program of their devices; what they tell each other
beside that goes through exchange.py. Here stands the rest: they start together,
and where one is gone all end.

A collective waits for a process that will never come: without end on a TPU, and
until JAX aborts with a dump of its stack elsewhere. So each process holds a
connection to process 0. If one closes without a goodbye, or is silent for
SILENCE_S, every other process says so in one line and exits with status 1.
"""

from collections.abc import Iterator
import contextlib
import logging
import os
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils
import numpy as np

from rods_jax import errors

START_S = 300  # to wait for all processes at the start
SILENCE_S = 60.0  # after which a process counts as lost
_REACH_S = 60.0  # to connect with process 0; shorter than START_S, to say so
_HELLO_S = 10.0  # for the first line of a new connection
_BEAT_S = 2.0
_VERDICT_S = 10.0  # a failed collective is explained by then, or never
_LOST = 1  # exit status
_GOODBYE = b'goodbye'


class Watch:
  """The connections of this process, each with a thread that reads it.

  A message is a line: empty for a sign of life, `goodbye` before an orderly
  end, `lost K` from process 0 where process K is gone.
  """

  def __init__(
      self, peers: dict[int, socket.socket], total: int,
      silence_s: float = SILENCE_S,
  ):
    """Begins to watch.

    Args:
      peers: number of a process -> the connection with it.
      total: number of processes.
      silence_s: longest time without a line.
    """
    self._peers, self._total = peers, total
    self._closed, self._lock = threading.Event(), threading.Lock()
    for number, connection in peers.items():
      connection.settimeout(silence_s)
      self._run(self._listen, number, connection)
    self._run(self._beat)

  def _run(self, *target) -> None:
    threading.Thread(target=target[0], args=target[1:], daemon=True).start()

  def _beat(self) -> None:
    while not self._closed.wait(_BEAT_S):
      self._tell(b'')

  def _tell(self, line: bytes) -> None:
    for connection in self._peers.values():
      try:
        connection.sendall(line + b'\n')
      except OSError:
        pass  # the thread that reads it finds the connection closed

  def _listen(self, number: int, connection: socket.socket) -> None:
    try:
      for line in connection.makefile('rb'):
        words = line.split()
        if words == [_GOODBYE]:
          return
        if words:
          self._lost(int(words[1]), 'has ended')
      found = 'has ended'
    except TimeoutError:
      found = f'has been silent for {connection.gettimeout():.0f} s'
    except OSError:
      found = 'has ended'
    if not self._closed.is_set():
      self._lost(number, found)

  def _lost(self, number: int, what: str) -> NoReturn:
    """Ends this process; the first that finds something says what."""
    with self._lock:  # never released
      self._tell(b'lost %d' % number)
      message = (
          f'process {number} of {self._total} {what}, so this one stops too; '
          'the output of that one says why.'
      )
      if number == jax.process_index():
        message = (
            f'the others have not heard of this process, {number} of '
            f'{self._total}, and have ended, so it stops too.'
        )
      _exit(
          _LOST,
          f'Error: {message} The same commands continue from the last '
          'checkpoint.\n',
      )

  def close(self) -> None:
    """Says goodbye; from now on nobody is missed."""
    self._closed.set()
    self._tell(_GOODBYE)


def _exit(status: int, message: str = '') -> NoReturn:
  """Ends at once: an orderly exit would wait for the other processes."""
  sys.stderr.write(message)
  sys.stderr.flush()
  sys.stdout.flush()
  os._exit(status)


@contextlib.contextmanager
def joined(
    coordinator: str, num_processes: int | None, process_id: int | None
) -> Iterator[None]:
  """Makes this process one of the run's; before anything else uses a device.

  Where the block raises, the process ends at once, so that the others notice.

  Args:
    coordinator: host:port of process 0, or 'auto' where JAX knows of all
      processes by itself: on TPU pods, under SLURM and Open MPI.
    num_processes: of the run; None with 'auto'.
    process_id: of this one, from 0; None with 'auto'.

  Raises:
    UserError: arguments that make no sense, or processes that do not come.
  """
  arguments = {}
  if coordinator != 'auto':
    _check(coordinator, num_processes, process_id)
    arguments = dict(
        coordinator_address=coordinator, num_processes=num_processes,
        process_id=process_id, cluster_detection_method='deactivate',
    )
  elif num_processes is not None or process_id is not None:
    raise errors.UserError(
        '--coordinator=auto finds --num_processes and --process_id by itself.'
    )
  # JAX itself would abort with a dump of its stack.
  late = threading.Timer(START_S, _exit, (
      1, f'Error: not all processes came to --coordinator={coordinator} within '
      f'{START_S} s; start all of them.\n',
  ))
  late.daemon = True
  late.start()
  _initialize(coordinator, arguments)
  try:
    watch = Watch(_connect(), jax.process_count())
    late.cancel()
    yield
  except errors.UserError as error:
    _exit(1, f'Error: {error}\n')
  except KeyboardInterrupt:  # the second Ctrl-C
    _exit(130, 'Stopped; the last batch is lost.\n')
  except Exception:  # such as a collective that another did not come to
    time.sleep(_VERDICT_S)
    _exit(1, traceback.format_exc())
  multihost_utils.sync_global_devices('the end')
  watch.close()
  jax.distributed.shutdown()


def _initialize(coordinator: str, arguments: dict[str, Any]) -> None:
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # It would take SIGTERM from stop.py.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
        initialization_timeout=START_S + 60, **arguments
    )
  except (RuntimeError, ValueError) as error:  # JAX's own are RuntimeErrors
    raise errors.UserError(
        f'The processes did not find each other by --coordinator='
        f'{coordinator}: {str(error).splitlines()[0]}'
    ) from error


def _check(
    coordinator: str, num_processes: int | None, process_id: int | None
) -> None:
  host, _, port = coordinator.rpartition(':')
  if not (host and port.isdigit() and 0 < int(port) < 2**16):
    raise errors.UserError(
        f'--coordinator is {coordinator!r}; it must be host:port of process '
        "0, or 'auto'."
    )
  if num_processes is None or process_id is None:
    raise errors.UserError(
        f'--coordinator={coordinator} needs --num_processes and --process_id.'
    )
  if not 0 <= process_id < num_processes:
    raise errors.UserError(
        f'--process_id is {process_id}; it must be from 0 to below '
        f'--num_processes, {num_processes}.'
    )


def _connect() -> dict[int, socket.socket]:
  """Connections with all others (process 0) or with process 0."""
  number, total = jax.process_index(), jax.process_count()
  server = None
  address = np.zeros(5, np.int32)
  if number == 0:
    server = socket.create_server(('', 0), backlog=total)
    server.settimeout(START_S)
    own = [int(part) for part in _own_address().split('.')]
    address = np.array([*own, server.getsockname()[1]], np.int32)
  *host, port = map(int, multihost_utils.broadcast_one_to_all(address))
  if server is None:
    return {0: _reach('.'.join(map(str, host)), port)}
  return _accept(server, total)


def _reach(host: str, port: int) -> socket.socket:
  """A connection with process 0, which knows the number of this one."""
  number = jax.process_index()
  try:
    connection = socket.create_connection((host, port), _REACH_S)
    connection.sendall(b'%d\n' % number)
  except OSError as error:
    raise errors.UserError(
        f'Process {number} cannot reach process 0 at {host}:{port}: '
        f'{error.strerror or error}; let the machines connect to each other '
        'at every port.'
    ) from error
  return connection


def _accept(server: socket.socket, total: int) -> dict[int, socket.socket]:
  """Number -> connection of all processes but 0; whoever else comes is left."""
  peers = {}
  with server:
    while len(peers) < total - 1:
      connection, _ = server.accept()
      number = _number(connection)
      if 1 <= number < total and number not in peers:
        peers[number] = connection
      else:
        connection.close()
  return peers


def _number(connection: socket.socket) -> int:
  """What the first line says, byte by byte: more may follow; 0 without one."""
  line = b''
  connection.settimeout(_HELLO_S)
  try:
    while len(line) < 8 and (byte := connection.recv(1)) not in (b'', b'\n'):
      line += byte
  except OSError:  # silent or gone
    return 0
  return int(line) if line.isdigit() else 0


def _own_address() -> str:
  """The IPv4 address by which this machine reaches others."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(('10.255.255.255', 1))  # sends nothing
      return probe.getsockname()[0]
    except OSError:
      logging.info('No network; the processes must be on this machine.')
      return '127.0.0.1'
