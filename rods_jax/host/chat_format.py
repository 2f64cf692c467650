"""What rollouts need of a chat format, and the small policy's compact one.

A compact row is  <system> tools <user> text <assistant> calls <end> <tool>
result <tool> result <assistant> <end> <user> ... : every piece is tokenized
once and appended; nothing is decoded and encoded again. The policy samples
what follows <assistant>, up to and with <end>; a message without calls ends the
turn.
The formats of pretrained families are in native_formats.py.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from rods_jax import types
from rods_jax.host import bfcl
from rods_jax.host import tokenizer as tokenizer_lib
from rods_jax.host import tool_calls


class Tokenizer(Protocol):
  """What a run needs to know of the tokenizer behind a format."""

  vocab_size: int
  pad_id: int
  digest: str

  def decode(self, ids: Sequence[int]) -> str:
    """The text of any ids, control tokens included. Never raises."""
    ...


class ChatFormat(Protocol):
  """Pieces of a dialogue as ids, and sampled ids as text and calls.

  A row is prompt, sampled message, results or turn, sampled message, and so
  on: each piece is appended once, and ends with the header that the policy
  answers after.

  Attributes:
    tokenizer: the policy's.
    end_id: written where a message is cut.
    end_ids: each of these ends a message that is sampled.
  """

  tokenizer: Tokenizer
  end_id: int
  end_ids: tuple[int, ...]

  def prompt(self, tools: Iterable[str], text: str) -> list[int]:
    """The beginning of a row: the tools on offer and the first user turn."""
    ...

  def turn(self, text: str, new_tools: Iterable[str] = ()) -> list[int]:
    """A later user turn, perhaps with tools that come on offer."""
    ...

  def results(self, texts: Sequence[str]) -> list[int]:
    """Tool results; what is too long is cut, visibly."""
    ...

  def calls(self, calls: Sequence[types.Call]) -> list[int]:
    """A message that makes these calls, end token included: a target."""
    ...

  def text(self, message: Sequence[int]) -> str:
    """The text of a sampled message, without its end token. Never raises."""
    ...

  def parse(self, text: str) -> list[types.Call]:
    """The calls in that text; none ends the turn.

    Raises:
      ParseError: it is malformed; the reason is for the policy.
    """
    ...


class CompactFormat:
  """Renders pieces of a dialogue for one tokenizer.

  Attributes:
    tokenizer: the policy's tokenizer.
    end_id: the token that ends an assistant message.
    end_ids: that one.
  """

  def __init__(
      self, tokenizer: tokenizer_lib.Tokenizer, max_result_tokens: int
  ):
    if max_result_tokens < 1:
      raise ValueError(
          'rollout.max_result_tokens must be at least 1, not '
          f'{max_result_tokens}.'
      )
    self.tokenizer = tokenizer
    self.end_id = tokenizer.end_id
    self.end_ids = (tokenizer.end_id,)
    self._max_result_tokens = max_result_tokens
    self._cut = tokenizer.control(tokenizer_lib.CUT)
    system, user, assistant, tool = map(
        tokenizer.control, tokenizer_lib.ROLES
    )
    self._system, self._user = system, user
    self._assistant, self._tool = assistant, tool

  def prompt(self, tools: Iterable[str], text: str) -> list[int]:
    """The tools, and a user turn."""
    return self.system(tools) + self.user(text)

  def turn(self, text: str, new_tools: Iterable[str] = ()) -> list[int]:
    """The new tools, and a user turn."""
    return self.system(new_tools) + self.user(text)

  def system(self, tools: Iterable[str]) -> list[int]:
    """Announces tools, in sorted order; nothing for no tools."""
    names = [self.tokenizer.control(f'{name}(') for name in sorted(tools)]
    return [self._system, *names] if names else []

  def user(self, text: str) -> list[int]:
    """A user turn and the header that the policy answers after."""
    return [self._user, *self.tokenizer.encode(text), self._assistant]

  def results(self, texts: Sequence[str]) -> list[int]:
    """Tool results and the header; a long result is cut and marked so."""
    row = []
    limit = self._max_result_tokens
    for text in texts:
      # Bounds the work on a huge result; no token is 32 characters long.
      ids = self.tokenizer.encode(text[: 32 * limit])
      cut = len(ids) > limit or len(text) > 32 * limit
      row += [self._tool, *ids[:limit], *([self._cut] if cut else [])]
    return [*row, self._assistant]

  def text(self, message: Sequence[int]) -> str:
    """The text of a sampled message, without its end token."""
    if message and message[-1] == self.end_id:
      message = message[:-1]
    return self.tokenizer.decode(message)

  def parse(self, text: str) -> list[types.Call]:
    """Calls as Python writes them: see tool_calls.py."""
    return tool_calls.parse(text)

  def calls(self, calls: Sequence[types.Call]) -> list[int]:
    """A message that makes these calls, end token included: a target.

    Positional arguments are written by name, as the policy is to learn one
    form only.
    """
    row = []
    for i, call in enumerate(calls):
      if i:
        row += self.tokenizer.encode(';')
      row.append(self.tokenizer.control(f'{call.name}('))
      named = dict(zip(bfcl.parameters(call.name), call.args))
      named.update(call.kwargs)
      last = len(named) - 1
      for j, (name, value) in enumerate(named.items()):
        row.append(self.tokenizer.control(f'{name}='))
        row += self.tokenizer.encode(repr(value) + (',' if j < last else ''))
      row += self.tokenizer.encode(')')
    return [*row, self.end_id]
