"""The small policy's own tokenizer: byte-level BPE plus control tokens.

Tool names ("cd(") and parameter names ("folder=") are single control tokens:
a task offers 16 to 39 tools, and a call is mostly such names. Text is encoded
without any control token, so that nothing a user or a tool writes can act as
one; control tokens enter a row only by id.
"""

from collections.abc import Iterable, Sequence
import functools
import hashlib
import pathlib
import re

import tokenizers

from rods_jax import errors

ROLES = ('<system>', '<user>', '<assistant>', '<tool>')
PAD, END, CUT = '<pad>', '<end>', '<cut>'
# Opens every word; a private-use character, which no text needs.
_MARK = '\ue000'
_JOINTS = '._@/:-'  # inside a word, between letters or digits
_WORD = re.compile(f'[A-Za-z0-9]+(?:[{_JOINTS}][A-Za-z0-9]+)*')
# What no merge crosses: 12 is the same token in 12, 12.0 and 12/26.
_PIECE = f'{_MARK}[A-Za-z0-9]+|[{_JOINTS}][A-Za-z0-9]+'
_SPACE = re.compile(f'(?<=[A-Za-z0-9]) (?={_MARK})')
_NO_SPACE = re.compile(f'(?<=[A-Za-z0-9])(?={_MARK})')
_LITERALS = ('True', 'False', 'None')
ASSET = pathlib.Path(__file__).parents[1] / 'assets' / 'tokenizer.json'


class Tokenizer:
  """Encodes text, names control tokens, decodes rows.

  Attributes:
    vocab_size: number of ids, control tokens included.
    pad_id: padding; never inside a row.
    end_id: ends an assistant message.
  """

  def __init__(self, backend: tokenizers.Tokenizer):
    backend.encode_special_tokens = True  # control words in text stay text
    self._backend = backend
    self.vocab_size = backend.get_vocab_size()
    self.pad_id = self.control(PAD)
    self.end_id = self.control(END)

  @classmethod
  def load(cls, path: str | pathlib.Path = ASSET) -> 'Tokenizer':
    """Reads what `save` wrote.

    Raises:
      UserError: there is no such file, or it holds something else.
    """
    try:
      return cls(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises nothing narrower
      reason = str(error).splitlines()[0] if str(error) else 'unknown reason'
      raise errors.UserError(
          f'no tokenizer can be read from {path} ({reason}). Restore the file, '
          'or make it and its policy with `python main.py '
          '--config=configs/warm_start.py`.'
      ) from error

  def save(self, path: str | pathlib.Path) -> None:
    self._backend.save(str(path))

  @functools.cached_property
  def digest(self) -> str:
    """16 hex digits that tell tokenizers apart: of all that `save` writes."""
    return hashlib.sha256(self._backend.to_str().encode()).hexdigest()[:16]

  def control(self, name: str) -> int:
    """The id of a control token; KeyError if there is none of that name."""
    token_id = self._backend.token_to_id(name)
    if token_id is None:
      raise KeyError(f'The tokenizer has no control token {name!r}.')
    return token_id

  def encode(self, text: str) -> list[int]:
    """Ids of the text; never a control token. Any str is accepted."""
    return self._backend.encode(_mark(text), add_special_tokens=False).ids

  def decode(self, ids: Sequence[int]) -> str:
    """Text of the ids as sampled, control tokens by name. Never raises."""
    text = self._backend.decode(list(ids), skip_special_tokens=False)
    return _NO_SPACE.sub(' ', text).replace(_MARK, '')


  def kind(self, token_id: int) -> tuple[bool, bool, str] | None:
    """What a piece of a word has in common with those that could replace it.

    Whether it opens the word, whether it is a number, and what it starts with,
    if not a letter or a digit. None for control tokens, punctuation, the words
    of Python's literals, and parts of characters.
    """
    piece = self._backend.id_to_token(token_id)
    if piece in self._controls:
      return None
    text = self._backend.decode([token_id], skip_special_tokens=False)
    word = text.removeprefix(_MARK)
    body = word.lstrip(_JOINTS)
    if not (body.isascii() and body.isalnum()) or body in _LITERALS:
      return None
    return word != text, body.isdigit(), word[: len(word) - len(body)]

  @functools.cached_property
  def _controls(self) -> frozenset[str]:
    added = self._backend.get_added_tokens_decoder()
    return frozenset(token.content for token in added.values())


def _mark(text: str) -> str:
  """Marks words and drops the single spaces between them; `decode` undoes it.

  Lone surrogates, and the mark itself, become replacement characters.
  """
  clean = text.encode('utf-8', 'replace').decode().replace(_MARK, '\ufffd')
  return _SPACE.sub('', _WORD.sub(_MARK + r'\g<0>', clean))


def train(
    texts: Iterable[str],
    tools: Sequence[str],
    parameters: Sequence[str],
    vocab_size: int,
) -> Tokenizer:
  """Learns the merges from the texts.

  Args:
    texts: user turns, argument values and tool results.
    tools: tool names, each a control token with its parenthesis.
    parameters: parameter names, each a control token with its equals sign.
    vocab_size: ids in all.
  """
  backend = tokenizers.Tokenizer(tokenizers.models.BPE())
  backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
      tokenizers.pre_tokenizers.Split(
          tokenizers.Regex(_PIECE), 'isolated'
      ),
      tokenizers.pre_tokenizers.ByteLevel(
          add_prefix_space=False, use_regex=False
      ),
  ])
  backend.decoder = tokenizers.decoders.ByteLevel()
  control = [PAD, END, CUT, *ROLES]
  control += [f'{name}(' for name in tools]
  control += [f'{name}=' for name in parameters]
  backend.train_from_iterator(
      map(_mark, texts),
      tokenizers.trainers.BpeTrainer(
          vocab_size=vocab_size,
          special_tokens=control,
          initial_alphabet=sorted(
              tokenizers.pre_tokenizers.ByteLevel.alphabet()
          ),
          show_progress=False,
      ),
  )
  return Tokenizer(backend)
