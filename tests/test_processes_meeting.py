"""How processes find each other, and what they say where one is missing."""

from concurrent import futures
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from rods_jax import errors
from rods_jax import processes

_ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  """Short waits, of which a test that must not wait in vain changes one."""
  monkeypatch.setattr(processes, 'START_S', 0.5)
  monkeypatch.setattr(processes, '_HELLO_S', 0.2)
  monkeypatch.setattr(processes, '_RETRY_S', 0.02)


@pytest.fixture
def port():
  """One where nobody listens."""
  with socket.socket() as s:
    s.bind(('localhost', 0))
    return s.getsockname()[1]


def meet(port, *claims):
  """What each process, (number, total), finds: connections or an error."""

  def come(claim):
    try:
      return processes._connect('localhost', port, *claim)
    except errors.UserError as error:
      return str(error)

  with futures.ThreadPoolExecutor(len(claims)) as pool:
    return list(pool.map(come, claims))


def test_all_wait_for_the_last(port, monkeypatch):
  """Process 0 comes when the others have tried before."""
  monkeypatch.setattr(processes, 'START_S', 30.0)
  monkeypatch.setattr(processes, '_HELLO_S', 10.0)
  late = threading.Event()
  threading.Timer(0.2, late.set).start()
  with futures.ThreadPoolExecutor(1) as pool:
    others = pool.submit(meet, port, (2, 3), (1, 3))
    late.wait()
    assert not others.done()
    peers = processes._connect('localhost', port, 0, 3)
  for number, found in zip((2, 1), others.result()):
    with peers[number] as there, found[0] as here:
      assert there.getpeername()[1] == here.getsockname()[1]
      there.sendall(b'first\n')
      assert processes._line(here, 1.0) == 'first'
  assert peers.keys() == {1, 2}


def test_process_0_never_comes(port):
  begin = time.monotonic()
  assert meet(port, (1, 2)) == [
      f'process 1 of 2 could not reach process 0 at localhost:{port} within '
      '0 s: Connection refused; start process 0 there, or mend --coordinator.'
  ]
  assert 0.5 <= time.monotonic() - begin < 10


def test_one_never_comes(port):
  """Who has come ends with process 0, which knows who has not."""
  begin = time.monotonic()
  assert meet(port, (0, 4), (2, 4)) == [
      f'of 4 processes these did not come to process 0 at localhost:{port} '
      'within 0 s: 1, 3. Start all with the same --coordinator; if they were, '
      'their output says why they did not come.',
      f'process 0 of 4 at localhost:{port} has ended, has begun already, or is '
      'none of this run, so process 2 stops too; the output of that one says '
      'why.',
  ]
  assert 0.5 <= time.monotonic() - begin < 10


def test_numbers_that_do_not_fit(port, monkeypatch):
  """JAX aborted with a dump of its stack, or began with two."""
  monkeypatch.setattr(processes, 'START_S', 2.0)  # process 0 waits in vain
  first, *others = meet(port, (0, 3), (1, 3), (1, 3), (2, 4))
  assert ': 2. Start' in first
  assert sorted(others)[0] == (
      '--num_processes is 4 in process 2 and 3 in process 0; start all with '
      'the same.'
  )
  assert sorted(others)[2] == (
      'two processes have --process_id=1; give each its own, from 0 to 2.'
  )


@pytest.mark.parametrize(
    'answer', [b'\0\0\x18\4\0\0\0\0\0\n', b'HTTP/1.1 400 Bad Request\r\n']
)
def test_what_another_server_answers_is_not_shown(answer):
  """JAX's, where a run has begun, answers in bytes that were the message."""
  with socket.create_server(('localhost', 0)) as server:
    port = server.getsockname()[1]
    with futures.ThreadPoolExecutor(1) as pool:
      found = pool.submit(meet, port, (1, 3))
      connection, _ = server.accept()
      with connection:
        assert processes._line(connection, 10.0) == 'process 1 of 3'
        connection.sendall(answer)
        assert found.result() == [
            f'process 0 of 3 at localhost:{port} has ended, has begun already, '
            'or is none of this run, so process 1 stops too; the output of '
            'that one says why.'
        ]


def has_ipv6():
  try:
    with socket.create_server(('::1', 0), family=socket.AF_INET6):
      return socket.has_dualstack_ipv6()
  except OSError:
    return False


@pytest.mark.skipif(not has_ipv6(), reason='this machine has no IPv6')
def test_an_address_of_ipv6(monkeypatch):
  """JAX wants brackets around it, with which Python looks for a name."""
  monkeypatch.setattr(processes, 'START_S', 30.0)
  with processes._listen(0) as server:
    port = server.getsockname()[1]
    with futures.ThreadPoolExecutor(1) as pool:
      here = pool.submit(processes._connect, '[::1]', port, 1, 2)
      there = processes._accept(server, '', 2)
    here.result()[0].close()
    there[1].close()


def test_a_port_that_is_taken():
  with processes._listen(0) as server:
    taken = server.getsockname()[1]
    assert meet(taken, (0, 2)) == [
        f'Process 0 cannot listen at port {taken}: Address already in use; end '
        'what listens there, such as an earlier run, or name another port in '
        '--coordinator.'
    ]


def come(server, line):
  """A connection that has said a line, and its port."""
  address = 'localhost', server.getsockname()[1]
  client = socket.create_connection(address)
  client.sendall(line)
  return client, client.getsockname()[1]


def accepted(server, total):
  """Number of a process -> the port that it came from, and what it says."""
  found = {}
  for number, peer in processes._accept(server, '', total).items():
    found[number] = peer.getpeername()[1], processes._line(peer, 0.1)
    peer.close()
  return found


def test_strays_are_not_taken_for_processes():
  """A scan of the ports ended the run, or a silent one held it up."""
  said = (b'', b'GET / HTTP/1.1\n', b'process 0 of 3\n', b'process 3 of 3\n',
          b'process -1 of 3\n', b'\n', b'process 2 of 3\nmore\n',
          b'process 2 of 3\n', b'process 1 of 3\n')
  server = processes._listen(0)
  clients = [come(server, line) for line in said]
  found = accepted(server, 3)
  assert found == {1: (clients[8][1], ''), 2: (clients[6][1], 'more')}
  for client, _ in clients:
    client.close()


def test_who_ended_while_it_waited_may_come_again():
  """It was told that two processes have its number."""
  server = processes._listen(0)
  come(server, b'process 1 of 3\n')[0].close()
  clients = [come(server, b'process %d of 3\n' % k) for k in (1, 2)]
  found = accepted(server, 3)
  assert found == {1: (clients[0][1], ''), 2: (clients[1][1], '')}
  for client, _ in clients:
    client.close()


@pytest.mark.parametrize('number', [0, 1])
def test_who_waits_in_vain_ends(number, port, monkeypatch):
  """In one line, and before JAX begins."""

  def leave(status, message):
    raise SystemExit(status, message)

  monkeypatch.setattr(processes, '_exit', leave)
  with pytest.raises(SystemExit) as end:
    with processes.joined(f'localhost:{port}', 2, number):
      raise AssertionError('together')
  status, message = end.value.args
  assert status == 1 and message.count('\n') == 1
  assert message.startswith(
      ('Error: of 2 processes', 'Error: process 1 of 2')[number]
  )


_JOINED = """
import sys, time
from jax.experimental import multihost_utils
from rods_jax import processes
with processes.joined(sys.argv[1], 2, int(sys.argv[2])):
  print('together', flush=True)
  if sys.argv[2] == '0':
    time.sleep(600)
  multihost_utils.sync_global_devices('never')
"""


def test_when_process_0_is_killed_the_other_ends(port):
  """JAX notices as soon, and may print lines of its own before ours."""
  pair = [
      subprocess.Popen(
          [sys.executable, '-c', _JOINED, f'localhost:{port}', str(number)],
          cwd=_ROOT, env=os.environ | {'JAX_PLATFORMS': 'cpu'}, text=True,
          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
      )
      for number in (0, 1)
  ]
  try:
    for child in pair:
      assert any('together' in line for line in child.stdout)
    pair[0].kill()
    error = pair[1].communicate(timeout=60)[1]
  finally:
    for child in pair:
      child.kill()
      child.communicate()
  # Where JAX's abort comes between our line and our exit, the status is its.
  assert pair[1].returncode in (1, -signal.SIGABRT)
  assert 'Error: process 0 of 2 has ended, so this one stops too' in error


_JAX = """
from rods_jax import processes
processes.START_S = 2
where = 'localhost:9'
processes._initialize(
    where, coordinator_address=where, num_processes=2, process_id=1,
    cluster_detection_method='deactivate')
print('together')
"""


def test_jax_that_waits_in_vain_is_ended():
  """It would abort with a dump of its stack."""
  run = subprocess.run(
      [sys.executable, '-c', _JAX], cwd=_ROOT, text=True,
      env=os.environ | {'JAX_PLATFORMS': 'cpu'}, capture_output=True,
      timeout=120,
  )
  assert (run.returncode, run.stdout) == (1, '')
  assert run.stderr == (
      'Error: JAX did not bring all processes together by --coordinator='
      'localhost:9 within 2 s; start all of them.\n'
  )
