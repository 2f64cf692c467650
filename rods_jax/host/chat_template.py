"""The chat template of a Hugging Face folder, rendered as its family does.

A template is a Jinja program that comes with the model, so it runs in Jinja's
sandbox. The environment is the one that templates are written for: blocks
leave no blank lines, and `tojson` escapes nothing for HTML. The date is always
the same, else a run that is continued tomorrow would see another prompt.
"""

from collections.abc import Mapping, Sequence
import json
import pathlib
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from rods_jax import errors
from rods_jax.host import pretrained_tokenizer

DATE = '26 Jul 2024'  # what Llama-3.1's template has where none is given


class RefusedError(ValueError):
  """The template has no form for these messages, and says so."""


class ChatTemplate:
  """A compiled template.

  Attributes:
    source: its text.
    path: the file that it stands in.
  """

  def __init__(
      self,
      folder: pathlib.Path,
      tokenizer: pretrained_tokenizer.PretrainedTokenizer,
  ):
    """Reads chat_template.jinja, or the entry of tokenizer_config.json.

    Raises:
      UserError: there is neither, or it is no Jinja template.
    """
    self.path, self.source = _find(folder, tokenizer.settings)
    self._variables = dict(tokenizer.variables)
    try:
      self._template = _environment().from_string(self.source)
    except jinja2.TemplateError as error:
      raise errors.UserError(
          f'The chat template in {self.path} is damaged ({error}); copy it '
          'there again.'
      ) from error

  def render(
      self,
      messages: Sequence[Mapping[str, Any]],
      tools: Sequence[Mapping[str, Any]],
      answer: bool = True,
      **options: Any,
  ) -> str:
    """The text of a dialogue.

    Args:
      messages: in the form that all templates take: role, content, and
        tool_calls where there are some.
      tools: JSON schemas; none is the same as no tools.
      answer: add the header that the model answers after.
      **options: variables of the family, such as enable_thinking.

    Raises:
      RefusedError: the template does not take such messages.
    """
    try:
      return self._template.render(
          messages=list(messages),
          tools=list(tools) or None,
          documents=None,
          add_generation_prompt=answer,
          **self._variables,
          **options,
      )
    except (jinja2.TemplateError, TypeError, ValueError) as error:
      raise RefusedError(str(error)) from error


def _find(
    folder: pathlib.Path, settings: Mapping[str, Any]
) -> tuple[pathlib.Path, str]:
  """The file and the text of the template."""
  path = folder / 'chat_template.jinja'
  if path.is_file():
    try:
      return path, path.read_text(encoding='utf-8')
    except (OSError, ValueError) as error:
      raise errors.UserError(
          f'Cannot read {path}: {error}; copy it there again.'
      ) from error
  found = settings.get('chat_template')
  if isinstance(found, list):  # several by name; one is for tools
    named = {
        item.get('name'): item.get('template')
        for item in found
        if isinstance(item, dict)
    }
    found = named.get('tool_use') or named.get('default')
  if isinstance(found, str):
    return folder / 'tokenizer_config.json', found
  raise errors.UserError(
      f'{folder} has no chat template: neither {path.name} nor an entry '
      'chat_template in tokenizer_config.json. Take the folder of the '
      'instruction-tuned model.'
  )


def _environment() -> jinja2.Environment:
  made = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True,
      lstrip_blocks=True,
      extensions=[jinja2.ext.loopcontrols],
  )
  made.filters['tojson'] = _to_json
  made.globals['raise_exception'] = _refuse
  made.globals['strftime_now'] = lambda form: DATE
  return made


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
  return json.dumps(
      value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
      sort_keys=sort_keys,
  )


def _refuse(message: str) -> NoReturn:
  raise RefusedError(message)
