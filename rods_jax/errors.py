"""Errors that a user can act on: main.py prints them as one line."""

import contextlib
import os
import re


class UserError(Exception):
  """Says in one line what is wrong and what to do."""


@contextlib.contextmanager
def as_user_error(*kinds: type[Exception]):
  """Turns the kinds that a set-up step raises for bad input into UserError."""
  try:
    yield
  except kinds as error:
    raise UserError(str(error)) from error


def one_line(error: Exception) -> str:
  """The message's first line; the system's own words where it has an errno."""
  code = re.search(r"os_error_code='(\d+)'", str(error))
  if code:
    return os.strerror(int(code.group(1)))
  lines = str(error).strip().splitlines()
  return lines[0][:300] if lines else type(error).__name__
