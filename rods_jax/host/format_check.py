"""Compares what a native format appends with what the chat template renders.

A dialogue of all kinds of pieces is played at start. Where the template, given
one message more, only goes on writing (it preserves the prefix), the appended
ids must be its ids. Where it rewrites what stands before, its text must still
end with the policy's message, without the thinking, and the appended piece; the
rule then is that the row keeps what was sampled and shown, and the place is
returned, to be told and tested.
"""

from collections.abc import Iterator, Sequence
import dataclasses

from rods_jax import errors
from rods_jax.host import chat_template
from rods_jax.host import native_formats
from rods_jax.types import Call

_TOOLS = ('cd', 'ls', 'pwd')
_NEW_TOOL = 'mkdir'
_CD = Call('cd', (), {'folder': 'a "b"'})
_LS = Call('ls', (), {'a': True})


@dataclasses.dataclass(frozen=True)
class _Step:
  """One message of the policy, and the piece that follows it.

  Attributes:
    what: in words.
    target: ids of the policy's message.
    past: those of the message without the thinking.
    answer: that message for the template.
    piece: the appended ids.
    messages: those of the piece for the template.
  """

  what: str
  target: list[int]
  past: list[int]
  answer: native_formats.Message
  piece: list[int]
  messages: list[native_formats.Message]


def check(fmt: native_formats.NativeFormat) -> tuple[str, ...]:
  """The kinds of piece before which the template rewrites the dialogue.

  Raises:
    UserError: an appended piece is another than the template's, so the folder
      has a template that this format doesn't know.
  """
  messages, tools = fmt.opening(_TOOLS, 'Go to a.')
  shown = _ids(fmt, messages, tools)
  if fmt.prompt(_TOOLS, 'Go to a.') != shown:
    raise _differs(fmt, 'the first prompt')
  rewritten = []
  steps = list(_steps(fmt))
  for step in steps:
    messages = [*messages, step.answer, *step.messages]
    before = [*shown, *step.target]
    try:
      shown = _ids(fmt, messages, tools)
    except chat_template.RefusedError as error:
      if step is not steps[-1]:
        raise _differs(fmt, step.what) from error
      return (*rewritten, step.what)  # Llama-3.1 takes one call a message
    if shown[: len(before)] == before:
      same = shown[len(before):] == step.piece
    else:
      rewritten.append(step.what)
      end = [*step.past, *step.piece]
      same = shown[-len(end):] == end
    if not same:
      raise _differs(fmt, step.what)
  return tuple(rewritten)


def _steps(fmt: native_formats.NativeFormat) -> Iterator[_Step]:
  yield _step(fmt, 'the result of a call', [_CD], '', ['ok'])
  yield _step(fmt, 'an error', [_LS], '', ['Error: "no"\n  <b> é'])
  yield _step(fmt, 'a user turn', [], 'Done.', 'And now?')
  yield _step(fmt, 'a user turn with new tools', [], 'Done.', 'New.', _NEW_TOOL)
  yield _step(fmt, 'results of two calls', [_CD, _LS], '', ['ok', ''])


def _step(
    fmt: native_formats.NativeFormat,
    what: str,
    calls: Sequence[Call],
    words: str,
    then: str | list[str],
    *new_tools: str,
) -> _Step:
  """With results as `then`, or with what the user says."""
  thought = 'So be it.'
  if isinstance(then, str):
    piece = fmt.turn(then, new_tools)
    messages = [fmt.user_message(then, new_tools)]
  else:
    piece, messages = fmt.whole_results(then), fmt.result_messages(then)
  return _Step(
      what,
      fmt.target(calls, thought, words),
      fmt.target(calls, None, words),
      fmt.answer_message(calls, thought, words),
      piece,
      messages,
  )


def _ids(fmt, messages, tools) -> list[int]:
  """As the folder's own tokenizer makes them of the template's text."""
  return fmt.tokenizer.encode_whole(fmt.render(messages, tools))


def _differs(fmt: native_formats.NativeFormat, what: str) -> errors.UserError:
  return errors.UserError(
      f'The chat template in {fmt.template.path} is not the one of '
      f'{fmt.NAME}: it writes {what} in another way than this program would. '
      'Use the template that the family was trained with.'
  )
