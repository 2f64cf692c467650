"""Turns Ctrl-C and SIGTERM into a request that the loop answers in peace."""

import logging
import signal


class StopRequest:
  """While open, the first signal only sets a flag; a second Ctrl-C raises.

  Attributes:
    signal: number of the signal that came, or None.
  """

  def __init__(self):
    self.signal: int | None = None

  def __enter__(self) -> 'StopRequest':
    self._previous = {
        number: signal.signal(number, self._handle)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    return self

  def __exit__(self, *exc_info) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def _handle(self, number, frame) -> None:
    del frame
    if self.signal is not None and number == signal.SIGINT:
      raise KeyboardInterrupt
    self.signal = number
    logging.warning(
        'Stopping after this batch, with a checkpoint. Ctrl-C again stops at'
        ' once and loses the batch.'
    )
