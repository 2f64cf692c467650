"""The language model of experiments/synthesize.py: its flags, its silence."""

import argparse
from typing import Iterable, Iterator

from configs import rods
from rods_jax import errors
from rods_jax import settings
from rods_jax.host.synthesis.corpus import Attempted
from rods_jax.host.synthesis.llm import client
from rods_jax.host.synthesis.llm.records import Health, LlmConfig

# Fields of synthesis.llm that decide the tasks, with the server that answers;
# `concurrency` says which earlier ones a task knows of.
DECISIVE = (
    'model', 'temperature', 'top_p', 'max_tokens', 'json_mode', 'concurrency'
)  # pyformat: disable


def add_flags(parser: argparse.ArgumentParser) -> None:
  """A flag for the language, and one for each field of synthesis.llm."""
  parser.add_argument(
      '--language', default='programmatic', help="or 'openai'"
  )
  group = parser.add_argument_group('the server of --language=openai')
  for name, value in rods.get_config().synthesis.llm.items():
    kind = _switch if isinstance(value, bool) else type(value)
    group.add_argument(
        f'--{name}', type=kind, default=value, help=f'default: {value!r}'
    )


def _switch(text: str) -> bool:
  if text not in ('True', 'False'):
    raise argparse.ArgumentTypeError(f'True or False, not {text!r}')
  return text == 'True'


def config_of(args: argparse.Namespace) -> LlmConfig | None:
  """The server that the flags name; None for programmatic synthesis.

  Raises:
    UserError: a flag is out of its range, or the package openai is missing.
  """
  config = rods.get_config()
  synthesis = config.synthesis
  synthesis.update(planner=args.planner, language=args.language)
  synthesis.llm.update({name: getattr(args, name) for name in synthesis.llm})
  settings.validate(config)
  if synthesis.language == 'programmatic':
    return None
  client.require()
  return LlmConfig(**synthesis.llm.to_dict())


def answered(
    made: Iterable[Attempted], health: Health, llm: LlmConfig | None
) -> Iterator[Attempted]:
  """Holds back what came while the server was silent, until it speaks again.

  Raises:
    UserError: it has been given up, or is silent at the end. What is held is
      lost then, and made when the command is given again; but a server that
      has answered and refuses the last question would do so again.
  """
  held: list[Attempted] = []
  for attempted in made:
    held.append(attempted)
    if health.given_up:
      break
    if not health.unanswered:
      yield from held
      held = []
  refused = health.answered and health.refused
  if health.given_up or (health.unanswered and not refused):
    raise errors.UserError(
        f'The language model at {llm.base_url} does not answer: '
        f'{health.reason}. Check --base_url, --model and {client.KEY_VARIABLE},'
        ' and give the same command again.'
    )
  yield from held
