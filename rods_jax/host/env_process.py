"""A process of host/env_pool.py, seen from the parent: start, send, kill.

The child is a fresh interpreter that runs host/env_worker.py; they share one
socket. It is in a process group of its own: Ctrl-C is the parent's business.
"""

import collections
import dataclasses
from multiprocessing import connection
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from rods_jax import errors
from rods_jax.host import env_worker

_MODULE = 'rods_jax.host.env_worker'
_ROOT = pathlib.Path(__file__).resolve().parents[2]  # holds rods_jax
_START_S = 60.0  # for a process to start; it takes a fifth of a second
_NUM_STARTS = 3
_CLOSE_S = 0.5  # for an idle process to leave by itself


@dataclasses.dataclass(eq=False)
class Request:
  """One request, before, while and after it is worked on.

  Attributes:
    episode: whose it is.
    kind, args: see env_worker.
    num_replies: how many are due.
    timeout_s: for each of them.
    again: played after a process was replaced; nobody waits for it.
    replies: those that came.
    done: nothing more comes.
  """

  episode: Any
  kind: str
  args: tuple
  num_replies: int
  timeout_s: float
  again: bool = False
  replies: list[Any] = dataclasses.field(default_factory=list)
  done: bool = False

  def fresh(self, again: bool) -> 'Request':
    """The same request, unanswered."""
    return dataclasses.replace(self, again=again, replies=[], done=False)


class Process:
  """One process, its queue, and the episodes that live in it.

  Attributes:
    queue: requests, the one at work first.
    sent: whether the first of the queue is being worked on.
    deadline: on time.monotonic, of its next reply.
    live: number -> episode, in the order of their start.
    forgotten: numbers of episodes that the process may drop.
    num_lost: processes in a row that ended before they answered.
  """

  def __init__(self):
    self.queue: collections.deque[Request] = collections.deque()
    self.sent = False
    self.deadline = 0.0
    self.live: dict[int, Any] = {}
    self.forgotten: list[int] = []
    self.num_lost = 0
    self._ready = False
    self.spawn()

  def spawn(self) -> None:
    """Starts the process; `send` waits until it is ready."""
    self.channel, other = connection.Pipe()
    path = os.environ.get('PYTHONPATH')
    with other:
      self.process = subprocess.Popen(
          [sys.executable, '-m', _MODULE, str(other.fileno())],
          stdin=subprocess.DEVNULL,
          stdout=subprocess.DEVNULL,
          pass_fds=(other.fileno(),),
          process_group=0,
          env={
              **os.environ,
              'PYTHONPATH': os.pathsep.join(filter(None, (str(_ROOT), path))),
          },
      )
    self._ready = False

  def send(self) -> None:
    """Sends the first of the queue. OSError: the process is gone."""
    self._wait_until_ready()
    request = self.queue[0]
    forgotten, self.forgotten = self.forgotten, []
    number = request.episode.number
    self.channel.send((forgotten, number, request.kind, request.args))
    self.sent = True
    self.deadline = time.monotonic() + request.timeout_s

  def _wait_until_ready(self) -> None:
    for _ in range(_NUM_STARTS):
      if self._ready or self._is_up():
        self._ready = True
        return
      self.kill()
      self.spawn()
    raise errors.UserError(
        'The processes of the environment do not start (exit code '
        f'{self.process.poll()}); see their messages above, or set '
        '--config.rollout.env_workers=0.'
    )

  def _is_up(self) -> bool:
    try:
      return (
          self.channel.poll(_START_S)
          and self.channel.recv() == env_worker.READY
      )
    except (EOFError, OSError):
      return False

  def kill(self) -> None:
    self.channel.close()
    self.process.kill()
    self.process.wait()

  def close(self) -> None:
    """Ends the process, politely first."""
    self.channel.close()
    try:
      self.process.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
      self.process.kill()
      self.process.wait()
