"""Signals: the first asks, the second Ctrl-C insists, and all is put back."""

import logging
import signal

import pytest

from rods_jax import stop


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_sets_a_flag(number, caplog):
  with caplog.at_level(logging.WARNING), stop.StopRequest() as request:
    assert request.signal is None
    signal.raise_signal(number)
    assert request.signal == number
  assert 'with a checkpoint' in caplog.text


def test_a_second_ctrl_c_raises():
  with pytest.raises(KeyboardInterrupt), stop.StopRequest():
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)


def test_a_second_sigterm_does_not():
  """Schedulers send it again while the checkpoint is being written."""
  with stop.StopRequest() as request:
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
  assert request.signal == signal.SIGTERM


def test_handlers_are_put_back_also_after_an_error():
  before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
  with pytest.raises(ValueError), stop.StopRequest():
    assert signal.getsignal(signal.SIGINT) != before[0]
    raise ValueError
  assert [
      signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)
  ] == before


def test_the_number_gives_the_usual_exit_status():
  """128 + 15 = 143, as shells report a process that SIGTERM ended."""
  with stop.StopRequest() as request:
    signal.raise_signal(signal.SIGTERM)
  assert 128 + request.signal == 143
