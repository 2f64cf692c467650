"""Several processes of one run: how they find each other, and how they end.

Each process runs `python main.py` with the same flags, but for its number.
jax.distributed makes one program of their devices; what they tell each other
beside that goes through exchange.py. Here stands the rest: they start together,
and where one is gone all end.

Where a process is missing, or started with a wrong number, JAX would abort with
a dump of its stack. So all meet before: at --coordinator process 0 waits for
the others, at most START_S, and says in one line who did not come; the port is
JAX's afterwards. With 'auto' JAX alone knows the address and comes first.

A collective waits for a process that will never come: without end on a TPU, and
until JAX aborts elsewhere. So each process keeps its connection with process 0.
If one closes without a goodbye, or is silent for SILENCE_S, every other process
says so in one line and exits with status 1. Where process 0 is killed, JAX may
print lines of its own before, as it hosts JAX's service.
"""

from collections.abc import Iterator, Mapping
import contextlib
import logging
import os
import re
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

START_S = 300.0  # to wait for all processes at the start
SILENCE_S = 60.0  # after which a process counts as lost
_HELLO_S = 10.0  # for a connection, and for its first line
_RETRY_S = 1.0  # between two tries to reach process 0
_BEAT_S = 2.0
_VERDICT_S = 10.0  # a failed collective is explained by then, or never
_LOST = 1  # exit status
_GOODBYE = b'goodbye'
_GO, _NO = 'go', 'no: '  # all are there; why one is not taken


class Watch:
  """The connections of this process, each with a thread that reads it.

  A message is a line: empty for a sign of life, `goodbye` before an orderly
  end, `lost K` from process 0 where process K is gone.
  """

  def __init__(
      self, peers: dict[int, socket.socket], number: int, total: int,
      silence_s: float = SILENCE_S,
  ):
    """Begins to watch.

    Args:
      peers: number of a process -> the connection with it.
      number: of this process.
      total: number of processes.
      silence_s: longest time without a line.
    """
    self._peers, self._number, self._total = peers, number, total
    self._closed, self._lock = threading.Event(), threading.Lock()
    for peer, connection in peers.items():
      connection.settimeout(silence_s)
      self._run(self._listen, peer, connection)
    self._run(self._beat)

  def _run(self, target, *args) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()

  def _beat(self) -> None:
    while not self._closed.wait(_BEAT_S):
      self._tell(b'')

  def _tell(self, line: bytes) -> None:
    for connection in self._peers.values():
      # The thread that reads a closed one finds that.
      with contextlib.suppress(OSError):
        connection.sendall(line + b'\n')

  def _listen(self, number: int, connection: socket.socket) -> None:
    found = 'has ended'
    try:
      for line in connection.makefile('rb'):
        words = line.split()
        if words == [_GOODBYE]:
          return
        if words:
          self._lost(int(words[1]), found)
    except TimeoutError:
      found = f'has been silent for {connection.gettimeout():.0f} s'
    except OSError:
      pass  # as where it is closed
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
      if number == self._number:
        message = (
            f'the others have not heard of this process, {number} of '
            f'{self._total}, and have ended, so it stops too.'
        )
      _exit(_LOST, (
          f'Error: {message} The same commands continue from the last '
          'checkpoint.\n'
      ))

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
  if coordinator != 'auto':
    _check(coordinator, num_processes, process_id)
  elif num_processes is not None or process_id is not None:
    raise errors.UserError(
        '--coordinator=auto finds --num_processes and --process_id by itself.'
    )
  try:
    watch = _join(coordinator, num_processes, process_id)
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


def _join(coordinator: str, total: int | None, number: int | None) -> Watch:
  """Makes one program of all; from the last of them on each is watched."""
  if coordinator != 'auto':
    host, _, port = coordinator.rpartition(':')
    watch = Watch(_connect(host, int(port), number, total), number, total)
    _initialize(
        coordinator, coordinator_address=coordinator, num_processes=total,
        process_id=number, cluster_detection_method='deactivate',
    )
    return watch
  _initialize(coordinator)
  number, total = jax.process_index(), jax.process_count()
  server = _listen(0) if number == 0 else None
  host, port = _announce(server)
  return Watch(_connect(host, port, number, total, server), number, total)


def _initialize(coordinator: str, **arguments: Any) -> None:
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # It would take SIGTERM from stop.py.
  jax.config.update('jax_enable_preemption_service', False)
  # JAX itself would abort with a dump of its stack.
  late = threading.Timer(START_S, _exit, (
      1, f'Error: JAX did not bring all processes together by --coordinator='
      f'{coordinator} within {START_S:.0f} s; start all of them.\n',
  ))
  late.daemon = True
  late.start()
  try:
    jax.distributed.initialize(
        initialization_timeout=int(START_S) + 60, **arguments
    )
  except (RuntimeError, ValueError) as error:  # JAX's own are RuntimeErrors
    raise errors.UserError(
        f'The processes did not find each other by --coordinator='
        f'{coordinator}: {str(error).splitlines()[0]}'
    ) from error
  late.cancel()


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


def _connect(
    host: str, port: int, number: int, total: int,
    server: socket.socket | None = None,
) -> dict[int, socket.socket]:
  """Connections with all others (process 0) or with process 0; all are there.

  Args:
    host: of process 0.
    port: where it listens.
    number: of this process.
    total: number of processes.
    server: of process 0, if it listens already.

  Raises:
    UserError: one did not come within START_S, or has a wrong number.
  """
  if number:
    return {0: _reach(host, port, number, total)}
  return _accept(server or _listen(port), f'{host}:{port}', total)


def _listen(port: int) -> socket.socket:
  """Process 0's server; any free port for 0."""
  dual = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if dual else socket.AF_INET
  try:
    return socket.create_server(
        ('', port), family=family, backlog=128, dualstack_ipv6=dual
    )
  except OSError as error:
    raise errors.UserError(
        f'Process 0 cannot listen at port {port}: {os.strerror(error.errno)}; '
        'end what listens there, such as an earlier run, or name another port '
        'in --coordinator.'
    ) from error


def _accept(
    server: socket.socket, place: str, total: int
) -> dict[int, socket.socket]:
  """Number -> connection of all processes but 0; strays are left."""
  peers, deadline = {}, time.monotonic() + START_S
  with server:
    while len(peers) < total - 1:
      server.settimeout(max(deadline - time.monotonic(), 0.01))
      try:
        connection, _ = server.accept()
      except TimeoutError:
        missing = [str(k) for k in range(1, total) if k not in peers]
        raise errors.UserError(
            f'of {total} processes these did not come to process 0 at {place} '
            f'within {START_S:.0f} s: {", ".join(missing)}. Start all with the '
            'same --coordinator; if they were, their output says why they did '
            'not come.'
        ) from None
      number = _greet(connection, peers, total)
      if number is None:
        connection.close()
      else:
        peers[number] = connection
  for connection in peers.values():
    _send(connection, _GO)
  return peers


def _greet(
    connection: socket.socket, peers: Mapping[int, socket.socket], total: int
) -> int | None:
  """The number of a process that comes; a wrong one is told so."""
  hello = re.fullmatch(r'process (\d+) of (\d+)', _line(connection, _HELLO_S))
  if hello is None:
    return None  # a stray
  number, claimed = map(int, hello.groups())
  if claimed != total:
    why = (
        f'--num_processes is {claimed} in process {number} and {total} in '
        'process 0; start all with the same.'
    )
  elif number in peers and not _gone(peers[number]):
    why = (
        f'two processes have --process_id={number}; give each its own, from 0 '
        f'to {total - 1}.'
    )
  else:
    return number if 0 < number < total else None
  _send(connection, _NO + why)
  return None


def _gone(connection: socket.socket) -> bool:
  """Whether who has come has ended since, and may be started again."""
  connection.setblocking(False)
  try:
    return connection.recv(1, socket.MSG_PEEK) == b''
  except BlockingIOError:
    return False
  except OSError:
    return True


def _reach(host: str, port: int, number: int, total: int) -> socket.socket:
  """A connection with process 0, when all others have one too."""
  deadline = time.monotonic() + START_S
  while True:
    try:
      connection = socket.create_connection((host.strip('[]'), port), _HELLO_S)
      if connection.getsockname() != connection.getpeername():
        break
      connection.close()  # TCP lets a connection reach itself
    except OSError as error:
      if time.monotonic() >= deadline:
        raise errors.UserError(
            f'process {number} of {total} could not reach process 0 at {host}:'
            f'{port} within {START_S:.0f} s: {error.strerror or error}; start '
            'process 0 there, or mend --coordinator.'
        ) from error
    time.sleep(_RETRY_S)
  _send(connection, f'process {number} of {total}')
  # Process 0 gives up at about the same time, and knows more.
  answer = _line(connection, START_S + 2 * _HELLO_S)
  if answer == _GO:
    return connection
  # What another server answers, JAX's of a run that has begun too, is no text.
  raise errors.UserError(
      answer.removeprefix(_NO) if answer.startswith(_NO) else
      f'process 0 of {total} at {host}:{port} has ended, has begun already, or '
      f'is none of this run, so process {number} stops too; the output of that '
      'one says why.'
  )


def _send(connection: socket.socket, line: str) -> None:
  with contextlib.suppress(OSError):  # who reads finds the connection closed
    connection.sendall(line.encode() + b'\n')


def _line(connection: socket.socket, timeout_s: float) -> str:
  """The next line, byte by byte: more may follow; '' without one."""
  line = b''
  connection.settimeout(timeout_s)
  try:
    while len(line) < 200 and (byte := connection.recv(1)) not in (b'', b'\n'):
      line += byte
  except OSError:  # silent or gone
    return ''
  return line.decode('ascii', 'replace')


def _announce(server: socket.socket | None) -> tuple[str, int]:
  """Where the server of process 0 is, in every process."""
  address = np.zeros(5, np.int32)
  if server is not None:
    own = [int(part) for part in _own_address().split('.')]
    address = np.array([*own, server.getsockname()[1]], np.int32)
  *host, port = map(int, multihost_utils.broadcast_one_to_all(address))
  return '.'.join(map(str, host)), port


def _own_address() -> str:
  """The IPv4 address by which this machine reaches others."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(('10.255.255.255', 1))  # sends nothing
      return probe.getsockname()[0]
    except OSError:
      logging.info('No network; the processes must be on this machine.')
      return '127.0.0.1'
