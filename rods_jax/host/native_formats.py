"""The chat formats of pretrained families: Qwen2.5, Qwen3, Llama-3.1, SmolLM2.

The beginning of a row is what the folder's own chat template renders. All that
follows is appended: the template would often write the earlier messages anew,
and perhaps in another way (Qwen3 drops the thinking of past turns), but what
was sampled stays as it was sampled. `format_check.check` compares each kind of
piece with the template at start.

Tools that arrive in a later turn stand in front of the user's words, in the
form that the family has for tools, as templates know only one list of them.
"""

from collections.abc import Iterable, Mapping, Sequence
import functools
import json
import pathlib
from typing import Any

from rods_jax import errors
from rods_jax import types
from rods_jax.host import bfcl
from rods_jax.host import chat_template
from rods_jax.host import json_calls
from rods_jax.host import pretrained_tokenizer
from rods_jax.host import tool_schemas

Message = dict[str, Any]
_PROBE = 'Hello.'


class NativeFormat:
  """What the families share; see chat_format.ChatFormat for the pieces.

  Attributes:
    tokenizer: the folder's.
    template: the folder's.
    end_id: ends a message as the template ends it.
    end_ids: these end a sampled message.
    header: text between a piece and the policy's answer.
  """

  NAME: str
  ENDS: tuple[str, ...]  # the first is the template's

  def __init__(
      self,
      tokenizer: pretrained_tokenizer.PretrainedTokenizer,
      template: chat_template.ChatTemplate,
      max_result_tokens: int,
      thinking: bool,
  ):
    self.tokenizer, self.template = tokenizer, template
    found = [tokenizer.control(word) for word in self.ENDS]
    self.end_ids = tuple(i for i in found if i is not None)
    self.end_id = self.end_ids[0]
    self._max_result_tokens = max_result_tokens
    self._thinking = thinking
    self.header = self._header()
    self._opened = self.header.rstrip().endswith(json_calls.THINK)
    self._check_thinking()
    self._prompt = functools.lru_cache(64)(self._make_prompt)
    self._schema = functools.cache(
        lambda name: _protected(tool_schemas.schema(name), tokenizer.protect)
    )

  def _header(self) -> str:
    messages = [{'role': 'user', 'content': _PROBE}]
    without = self.render(messages, (), answer=False)
    whole = self.render(messages, ())
    if not whole.startswith(without) or whole == without:
      raise errors.UserError(
          f'The chat template in {self.template.path} has no header of an '
          'answer: add_generation_prompt changes nothing or too much.'
      )
    return whole[len(without):]

  def _check_thinking(self) -> None:
    if self._thinking and json_calls.THINK not in self.template.source:
      raise errors.UserError(
          f'config.rollout.thinking is True, but the chat template in '
          f'{self.template.path} knows no {json_calls.THINK}.'
      )
    if self._opened and not self._thinking:
      raise errors.UserError(
          f'The chat template in {self.template.path} always thinks; set '
          'config.rollout.thinking=True.'
      )

  def render(self, messages, tools, answer: bool = True) -> str:
    """The template's text; `messages` and `tools` are protected already."""
    return self.template.render(
        messages, tools, answer,
        enable_thinking=self._thinking, date_string=chat_template.DATE,
    )

  def prompt(self, tools: Iterable[str], text: str) -> list[int]:
    return list(self._prompt(frozenset(tools), text))

  def _make_prompt(self, tools: frozenset[str], text: str) -> tuple[int, ...]:
    return tuple(
        self.tokenizer.encode_template(self.render(*self.opening(tools, text)))
    )

  def turn(self, text: str, new_tools: Iterable[str] = ()) -> list[int]:
    content = self.tokenizer.protect(self.announce(text, new_tools))
    return self.tokenizer.encode_template(self._user_text(content))

  def results(self, texts: Sequence[str]) -> list[int]:
    return self.whole_results([self._cut(text) for text in texts])

  def whole_results(self, texts: Sequence[str]) -> list[int]:
    """Tool results of any length."""
    protected = [self.tokenizer.protect(text) for text in texts]
    return self.tokenizer.encode_template(self._results_text(protected))

  def _cut(self, text: str) -> str:
    """The text, or its beginning and how much is missing."""
    head = self.tokenizer.head(text, self._max_result_tokens)
    if len(head) == len(text):
      return text
    return f'{head}... ({len(text) - len(head)} more characters)'

  def calls(self, calls: Sequence[types.Call]) -> list[int]:
    return self.target(calls)

  def target(
      self,
      calls: Sequence[types.Call],
      thought: str | None = '',
      words: str = '',
  ) -> list[int]:
    """A message with thinking, where this format thinks, words and calls.

    With `thought` None it has no thinking, as templates write past messages.
    """
    text = words
    if self._thinking and thought is not None:
      begin = '' if self._opened else f'{json_calls.THINK}\n'
      text = f'{begin}{thought}\n{json_calls.THINK_END}\n\n{words}'
    if calls:
      text += self._calls_text([self._named(call) for call in calls])
    return [*self.tokenizer.encode_template(text), self.end_id]

  def _named(self, call: types.Call) -> tuple[str, str]:
    """Name and JSON arguments; positional ones are written by name."""
    named = dict(zip(bfcl.parameters(call.name), call.args)) | call.kwargs
    text = json.dumps(named, ensure_ascii=False)
    return call.name, self.tokenizer.protect(text)

  def text(self, message: Sequence[int]) -> str:
    if message and message[-1] in self.end_ids:
      message = message[:-1]
    return self.tokenizer.decode(message)

  def opening(
      self, tools: Iterable[str], text: str
  ) -> tuple[list[Message], list[Mapping[str, Any]]]:
    """Messages and tools, protected, of the beginning of a dialogue."""
    names = [s['function']['name'] for s in tool_schemas.schemas(tools)]
    return [self.user_message(text)], [self._schema(name) for name in names]

  def user_message(self, text: str, new_tools: Iterable[str] = ()) -> Message:
    """What `turn` writes, as the template takes it."""
    content = self.tokenizer.protect(self.announce(text, new_tools))
    return {'role': 'user', 'content': content}

  def result_messages(self, texts: Sequence[str]) -> list[Message]:
    """What `results` writes, as the template takes it."""
    protect = self.tokenizer.protect
    return [{'role': 'tool', 'content': protect(text)} for text in texts]

  def answer_message(
      self, calls: Sequence[types.Call], thought: str = '', words: str = ''
  ) -> Message:
    """What `target` writes, as the template takes it."""
    message: Message = {'role': 'assistant', 'content': words}
    if self._thinking:
      message['reasoning_content'] = thought
    if calls:
      message['tool_calls'] = [
          {'type': 'function',
           'function': {'name': call.name, 'arguments': dict(call.kwargs)}}
          for call in calls
      ]
    return message

  def announce(self, text: str, new_tools: Iterable[str]) -> str:
    """A user's words behind the tools that arrive with them."""
    raise NotImplementedError

  def parse(self, text: str) -> list[types.Call]:
    raise NotImplementedError

  def _user_text(self, content: str) -> str:
    raise NotImplementedError

  def _results_text(self, texts: Sequence[str]) -> str:
    raise NotImplementedError

  def _calls_text(self, calls: Sequence[tuple[str, str]]) -> str:
    raise NotImplementedError


class QwenFormat(NativeFormat):
  """Qwen2.5 and Qwen3: one pair of tags per call, results in a user turn."""

  NAME = 'Qwen'
  ENDS = ('<|im_end|>', '<|endoftext|>')

  def announce(self, text: str, new_tools: Iterable[str]) -> str:
    found = [_json(schema) for schema in tool_schemas.schemas(new_tools)]
    return '\n'.join(['<tools>', *found, '</tools>', '', text]) if found else (
        text
    )

  def parse(self, text: str) -> list[types.Call]:
    return json_calls.parse_tagged(text, self._opened)

  def _user_text(self, content: str) -> str:
    return f'\n<|im_start|>user\n{content}<|im_end|>\n{self.header}'

  def _results_text(self, texts: Sequence[str]) -> str:
    responses = ''.join(
        f'\n<tool_response>\n{text}\n</tool_response>' for text in texts
    )
    return f'\n<|im_start|>user{responses}<|im_end|>\n{self.header}'

  def _calls_text(self, calls: Sequence[tuple[str, str]]) -> str:
    return '\n'.join(
        f'{json_calls.OPEN}\n{{"name": "{name}", "arguments": {arguments}}}\n'
        f'{json_calls.CLOSE}'
        for name, arguments in calls
    )


class SmolFormat(NativeFormat):
  """SmolLM2: a list of calls in one pair of tags.

  Its template has no place for tools, so a system message names them, and a
  result is a message of the role `tool`.
  """

  NAME = 'SmolLM2'
  ENDS = ('<|im_end|>', '<|endoftext|>')

  def opening(self, tools, text):
    tools = list(tools)
    if not tools:
      return [self.user_message(text)], []
    system = (
        'You can call functions to do what the user asks. These are on offer:\n'
        f'{self._tools(tools)}\n\n'
        'To call some, answer with nothing but a list of calls between tags:\n'
        f'{json_calls.OPEN}[{{"name": "function", "arguments": {{"argument": '
        f'"value"}}}}]{json_calls.CLOSE}\n'
        'Their results follow. When nothing is left to call, or a function or '
        'a value that you need is missing, say so in plain words.'
    )
    message = {'role': 'system', 'content': self.tokenizer.protect(system)}
    return [message, self.user_message(text)], []

  def _tools(self, tools: Iterable[str]) -> str:
    return f'<tools>{_json(tool_schemas.schemas(tools))}</tools>'

  def answer_message(self, calls, thought='', words=''):
    named = [self._named(call) for call in calls]
    text = words + (self._calls_text(named) if named else '')
    return {'role': 'assistant', 'content': text}

  def announce(self, text: str, new_tools: Iterable[str]) -> str:
    new_tools = list(new_tools)
    return f'{self._tools(new_tools)}\n\n{text}' if new_tools else text

  def parse(self, text: str) -> list[types.Call]:
    return json_calls.parse_tagged_list(text)

  def _user_text(self, content: str) -> str:
    return f'\n<|im_start|>user\n{content}<|im_end|>\n{self.header}'

  def _results_text(self, texts: Sequence[str]) -> str:
    messages = ''.join(f'\n<|im_start|>tool\n{t}<|im_end|>' for t in texts)
    return f'{messages}\n{self.header}'

  def _calls_text(self, calls: Sequence[tuple[str, str]]) -> str:
    items = ', '.join(
        f'{{"name": "{name}", "arguments": {arguments}}}'
        for name, arguments in calls
    )
    return f'{json_calls.OPEN}[{items}]{json_calls.CLOSE}'


class LlamaFormat(NativeFormat):
  """Llama-3.1: a call is the whole message, results are JSON strings."""

  NAME = 'Llama-3.1'
  ENDS = ('<|eot_id|>', '<|eom_id|>', '<|end_of_text|>')

  def announce(self, text: str, new_tools: Iterable[str]) -> str:
    found = tool_schemas.schemas(new_tools)
    return ''.join(f'{_json(tool, 4)}\n\n' for tool in found) + text

  def parse(self, text: str) -> list[types.Call]:
    return json_calls.parse_bare(text)

  def _user_text(self, content: str) -> str:
    return f'{self._role("user")}{content.strip()}<|eot_id|>{self.header}'

  def _results_text(self, texts: Sequence[str]) -> str:
    messages = (f'{self._role("ipython")}{_json(t)}<|eot_id|>' for t in texts)
    return ''.join(messages) + self.header

  def _calls_text(self, calls: Sequence[tuple[str, str]]) -> str:
    return '; '.join(
        f'{{"name": "{name}", "parameters": {arguments}}}'
        for name, arguments in calls
    )

  def _role(self, name: str) -> str:
    return f'<|start_header_id|>{name}<|end_header_id|>\n\n'


def load(
    folder: pathlib.Path, max_result_tokens: int, thinking: bool = False
) -> NativeFormat:
  """The format of a Hugging Face folder, by its tokenizer and template.

  Args:
    folder: with tokenizer.json, tokenizer_config.json and a chat template.
    max_result_tokens: of one tool result; the rest is cut.
    thinking: whether the policy thinks before it answers, where it can.

  Raises:
    UserError: a file is missing or damaged, or the family is unknown.
  """
  tokenizer = pretrained_tokenizer.PretrainedTokenizer(folder)
  template = chat_template.ChatTemplate(folder, tokenizer)
  if _has(tokenizer, '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>'):
    family = LlamaFormat
  elif not _has(tokenizer, '<|im_start|>', '<|im_end|>'):
    raise errors.UserError(
        f'{folder}: its tokenizer has neither the control tokens of Qwen2.5, '
        'Qwen3 and SmolLM2 nor those of Llama-3.1; no other chat format is '
        'supported.'
    )
  else:
    with_tools = json_calls.OPEN in template.source
    family = QwenFormat if with_tools else SmolFormat
  try:
    return family(tokenizer, template, max_result_tokens, thinking)
  except chat_template.RefusedError as error:
    raise errors.UserError(
        f'The chat template in {template.path} refuses a plain dialogue: '
        f'{error}'
    ) from error


def _has(
    tokenizer: pretrained_tokenizer.PretrainedTokenizer, *words: str
) -> bool:
  return all(tokenizer.control(word) is not None for word in words)


def _json(value: Any, indent: int | None = None) -> str:
  return json.dumps(value, ensure_ascii=False, indent=indent)


def _protected(value: Any, protect) -> Any:
  """A copy with every string, keys too, protected."""
  if isinstance(value, str):
    return protect(value)
  if isinstance(value, Mapping):
    return {protect(k): _protected(v, protect) for k, v in value.items()}
  if isinstance(value, list):
    return [_protected(item, protect) for item in value]
  return value
