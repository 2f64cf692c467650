"""Errors that a user can act on: main.py prints them as one line."""

import contextlib


class UserError(Exception):
  """Says in one line what is wrong and what to do."""


@contextlib.contextmanager
def as_user_error(*kinds: type[Exception]):
  """Turns the kinds that a set-up step raises for bad input into UserError."""
  try:
    yield
  except kinds as error:
    raise UserError(str(error)) from error
