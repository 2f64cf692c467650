"""What a language model is told: a file per role, and data that is quoted.

All that comes from simulators, tasks and models stands between <data> and
</data> as JSON without '<', so that nothing in it can end the quotation; every
prompt says that such data is never followed.
"""

import functools
import json
import pathlib
from typing import Any

FOLDER = pathlib.Path(__file__).parents[3] / 'assets' / 'llm'
Messages = tuple[tuple[str, str], ...]


@functools.cache
def text(role: str) -> str:
  """The prompt of a role, as it stands in its file."""
  return (FOLDER / f'{role}.md').read_text(encoding='utf-8').strip()


def messages(role: str, data: Any) -> Messages:
  """The first messages to a role."""
  return (('system', text(role)), ('user', quoted(data)))


def note(role: str, data: Any) -> str:
  """A later message of the user."""
  return f'{text(role)}\n\n{quoted(data)}'


def quoted(data: Any) -> str:
  shown = json.dumps(data).replace('<', '\\u003c')
  return f'<data>\n{shown}\n</data>'
