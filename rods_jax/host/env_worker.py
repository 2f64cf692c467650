"""A process that plays episodes for host/env_pool.py.

A fresh interpreter runs this module, so it imports nothing of the training
program, jax least of all (multiprocessing would import the parent's main module
again). Requests and replies go through one socket, whose number is the only
argument. The process leaves when the socket closes, and on Linux the kernel
ends it with its parent even while a call hangs.
"""

from collections.abc import Iterator
import ctypes
from multiprocessing import connection
import signal
import sys
import traceback
from typing import Any

from rods_jax.host import env

READY = 'ready'
_PR_SET_PDEATHSIG = 1


def _replies(
    episodes: dict[int, env.Episode], number: int, kind: str, args: tuple
) -> Iterator[Any]:
  """What one request is answered with, reply by reply."""
  if kind == 'start':
    episodes[number] = env.Episode(*args)
    yield None
  elif kind == 'execute':
    yield from episodes[number].results(*args)
  elif kind == 'end_turn':
    yield episodes[number].end_turn(*args)
  else:
    raise ValueError(f'There is no request of the kind {kind!r}.')


def serve(channel: connection.Connection) -> None:
  """Answers requests until the other end closes.

  A request is (numbers of episodes to forget, number, kind, arguments); a
  reply (True, value), or (False, traceback) after which its request is over.
  """
  episodes: dict[int, env.Episode] = {}
  channel.send(READY)
  while True:
    forgotten, number, kind, args = channel.recv()
    for old in forgotten:
      episodes.pop(old, None)
    replies = _replies(episodes, number, kind, args)
    while True:
      try:
        answer = True, next(replies)
      except StopIteration:
        break
      except Exception:  # The parent raises it.
        answer = False, traceback.format_exc()
      channel.send(answer)


def main() -> None:
  for number in (signal.SIGINT, signal.SIGTERM):  # the parent's business
    signal.signal(number, signal.SIG_IGN)
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  try:
    serve(connection.Connection(int(sys.argv[1])))
  except (EOFError, OSError):
    sys.exit(0)  # the parent has closed the socket, or is gone


if __name__ == '__main__':
  main()
