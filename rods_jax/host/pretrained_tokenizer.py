"""The tokenizer of a Hugging Face folder, with text that cannot take control.

A folder's tokenizer turns the words of its control tokens, such as
<|im_end|>, into those tokens wherever they stand. In a prompt's template that
is wanted; in what a user or a tool writes it must not happen. So foreign text
is protected before it enters a template: a mark inside each such word breaks
it. The finished text is then cut at the control words that are left, and what
stands between them is encoded, marks removed, by a second tokenizer that knows
no control tokens.
"""

from collections.abc import Sequence
import functools
import hashlib
import json
import pathlib
import re
from typing import Any

import tokenizers

from rods_jax import errors

_MARK = '\ufdd0'  # of the code points that Unicode keeps out of all text


class PretrainedTokenizer:
  """Encodes templates and text, names control tokens, decodes rows.

  Attributes:
    vocab_size: above the largest id of a token.
    pad_id: fills unused places; never read, so it may be an end token too.
    variables: name -> text of the special tokens, for the chat template.
    settings: entries of tokenizer_config.json.
  """

  def __init__(self, folder: pathlib.Path):
    """Reads a folder.

    Raises:
      UserError: tokenizer.json or tokenizer_config.json is missing or
        damaged; names it.
    """
    path = folder / 'tokenizer.json'
    raw = read_json(path, 'the tokenizer of the model')
    self._backend = _backend(path, raw)
    self._plain = _backend(path, raw | {'added_tokens': []})
    added = self._backend.get_added_tokens_decoder()
    self._controls = {token.content: i for i, token in added.items()}
    longest_first = sorted(self._controls, key=len, reverse=True)
    words = '|'.join(map(re.escape, longest_first)) or '(?!)'
    self._word = re.compile(words)
    # Ahead of the match, so that of overlapping words each gets its mark.
    self._inside = re.compile(f'(?=(?:{words}))(.)', re.DOTALL)
    self.vocab_size = 1 + max(self._backend.get_vocab().values(), default=0)
    self.settings = read_json(
        folder / 'tokenizer_config.json', 'the settings of the tokenizer'
    )
    self.variables = _special_tokens(self.settings)
    self.pad_id = self._controls.get(self.variables.get('pad_token'), 0)
    self._check_controls(path)

  def _check_controls(self, path: pathlib.Path) -> None:
    """Text can't be protected from some odd control tokens: refuses them."""
    for word, token_id in self._controls.items():
      reached = set(self.encode(word)) & set(self._controls.values())
      if len(word) < 2 or reached:
        raise errors.UserError(
            f'{path} has the control token {word!r} (id {token_id}), which '
            'plain text can produce; such a tokenizer is not supported.'
        )

  @functools.cached_property
  def digest(self) -> str:
    """16 hex digits that tell tokenizers apart."""
    return hashlib.sha256(self._backend.to_str().encode()).hexdigest()[:16]

  def control(self, word: str) -> int | None:
    """The id of a control token, or None if there is none of that word."""
    return self._controls.get(word)

  def protect(self, text: str) -> str:
    """The text with a mark inside every word that is a control token's."""
    return self._inside.sub(rf'\1{_MARK}', _clean(text))

  def encode(self, text: str) -> list[int]:
    """Ids of text, protected or not; never a control token."""
    plain = _clean(text.replace(_MARK, ''))
    return self._plain.encode(plain, add_special_tokens=False).ids

  def encode_template(self, text: str) -> list[int]:
    """Ids of a rendered template: its control words become control tokens."""
    ids, position = [], 0
    for match in self._word.finditer(text):
      ids += self.encode(text[position : match.start()])
      ids.append(self._controls[match.group()])
      position = match.end()
    return ids + self.encode(text[position:])

  def encode_whole(self, text: str) -> list[int]:
    """Ids as the folder's tokenizer alone makes them of trusted text."""
    return self._backend.encode(text, add_special_tokens=False).ids

  def head(self, text: str, limit: int) -> str:
    """The beginning of the text that is at most `limit` tokens long.

    No more than 32 characters a token are looked at, which bounds the work.
    """
    looked_at = _clean(text[: 32 * limit])
    offsets = self._plain.encode(looked_at, add_special_tokens=False).offsets
    if len(offsets) <= limit:
      return looked_at
    return looked_at[: offsets[limit][0]]

  def decode(self, ids: Sequence[int]) -> str:
    """Text of the ids as sampled, control tokens by their words.

    Never raises: an id without a token, such as those that only fill up the
    embedding, is no text.
    """
    return self._backend.decode(list(ids), skip_special_tokens=False)


def read_json(path: pathlib.Path, what: str) -> dict[str, Any]:
  """The JSON object in a file of the folder.

  Raises:
    UserError: it is missing or holds something else.
  """
  if not path.is_file():
    raise errors.UserError(
        f'{path.parent} has no {path.name}; copy {what} there.'
    )
  try:
    found = json.loads(path.read_text(encoding='utf-8'))
    if not isinstance(found, dict):
      raise ValueError('no JSON object')
  except (OSError, ValueError) as error:
    raise errors.UserError(
        f'Cannot read {path}: {error}; copy it there again.'
    ) from error
  return found


def _backend(path: pathlib.Path, raw: dict[str, Any]) -> tokenizers.Tokenizer:
  try:
    made = tokenizers.Tokenizer.from_str(json.dumps(raw))
  except Exception as error:  # the library raises nothing narrower
    reason = str(error).splitlines()[0] if str(error) else 'unknown reason'
    raise errors.UserError(
        f'Cannot read {path}: {reason}; copy it there again.'
    ) from error
  made.no_truncation()
  made.no_padding()
  return made


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
  """Name -> text; a token is written as text or with its properties."""
  found = {}
  for name, value in settings.items():
    if isinstance(value, dict):
      value = value.get('content')
    if name.endswith('_token') and isinstance(value, str):
      found[name] = value
  return found


def _clean(text: str) -> str:
  """Without what no tokenizer takes, and without marks of its own."""
  return text.encode('utf-8', 'replace').decode().replace(_MARK, '\ufffd')
