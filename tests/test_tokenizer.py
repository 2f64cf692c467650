"""The tokenizer: control tokens by id only, any text in, any ids out."""

from hypothesis import given, settings, strategies as st
import pytest
import tokenizers

from rods_jax import errors
from rods_jax.host import bfcl
from rods_jax.host import tokenizer as tokenizer_lib
from tests import scripted

CONTROL = (
    tokenizer_lib.PAD, tokenizer_lib.END, tokenizer_lib.CUT,
    *tokenizer_lib.ROLES, 'cd(', 'folder=',
)


def test_control_tokens_are_distinct_ids():
  tok = scripted.tokenizer()
  ids = [tok.control(name) for name in CONTROL]
  assert len(set(ids)) == len(CONTROL) == 9
  assert tok.pad_id != tok.end_id  # or padding would hide the end token
  assert max(ids) < tok.vocab_size


def test_every_tool_and_parameter_is_one_token():
  tok = scripted.tokenizer()
  tools = {t for c in bfcl.CLASSES for t in bfcl.tool_names(c)}
  names = [f'{t}(' for t in tools]
  names += [f'{p}=' for t in tools for p in bfcl.parameters(t)]
  assert len({tok.control(name) for name in names}) == len(set(names)) > 200


def test_unknown_control_token_is_named():
  with pytest.raises(KeyError, match='no control token'):
    scripted.tokenizer().control('<nothing>')


@pytest.mark.parametrize('name', CONTROL)
def test_control_words_in_text_are_text(name):
  """A result that says '<end>' could end the message: one id, not several."""
  tok = scripted.tokenizer()
  for text in (name, f'a {name} b', name * 3, f'{name}\n'):
    ids = tok.encode(text)
    assert not {tok.control(c) for c in CONTROL} & set(ids)
    assert tok.decode(ids) == text


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_encoded_and_comes_back(text):
  """Lone surrogates become '?': they cannot be written as UTF-8."""
  tok = scripted.tokenizer()
  clean = text.encode('utf-8', 'replace').decode()
  assert tok.decode(tok.encode(text)) == clean.replace('\ue000', '\ufffd')


@pytest.mark.parametrize('text', [
    'a b', 'a  b', ' a', 'a ', 'a\nb', "don't do", 'x_y.z @x', 'a.b c', 'a. b',
    '1 2', '1.5 2', 'a_ b', 'n\xe9 a', '\xe9 b', "f(x='a b')", 'a/b -c',
])
def test_spaces_between_words_come_back(text):
  """They are not encoded; the start of a word implies them."""
  tok = scripted.tokenizer()
  assert tok.decode(tok.encode(text)) == text


def test_the_mark_of_words_cannot_be_forged():
  """Text with it would come back with a space, or without a character."""
  tok = scripted.tokenizer()
  assert tok.decode(tok.encode('a\ue000b')) == 'a\ufffdb'


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, scripted.tokenizer().vocab_size - 1)))
def test_any_ids_are_decoded(ids):
  assert isinstance(scripted.tokenizer().decode(ids), str)


def test_half_a_character_is_decoded():
  tok = scripted.tokenizer()
  ids = tok.encode('\N{SNOWMAN}')
  assert len(ids) > 1
  assert tok.decode(ids[:1]) == '\N{REPLACEMENT CHARACTER}'


@pytest.mark.parametrize(
    'value', ['report.pdf', 'Boston', 'two words', '2026-04-20', 'a@b.com']
)
def test_a_value_has_the_same_tokens_wherever_it_stands(value):
  """With the space merged in, " Boston" and "'Boston'" shared no token.

  A small policy then could not copy from the sentence into the call.
  """
  texts = [f"go to {value} now, '{value}'," for _ in range(9)]
  tok = tokenizer_lib.train(texts, ['cd'], ['folder'], 400)
  alone = tok.encode(value)
  for text in (f'go to {value} now', f"'{value}',", f'to {value}. And'):
    row = tok.encode(text)
    starts = range(len(row) - len(alone) + 1)
    assert any(row[i : i + len(alone)] == alone for i in starts), text


def test_no_merge_crosses_the_point_of_a_number():
  """The user says 2100, the call takes 2100.0: the same tokens and '.0'."""
  tok = tokenizer_lib.train(['2100.0'] * 99 + ['2100'] * 9, [], [], 400)
  assert len(tok.encode('2100')) == 1
  assert tok.encode('2100.0')[:1] == tok.encode('2100')
  assert [tok.decode([i]) for i in tok.encode('2100.0')] == ['2100', '.0']


def test_training_is_reproducible_and_saved_whole(tmp_path):
  """The same texts give the same file, and the file the same ids."""
  texts = ['the quick brown fox', "'report.pdf',", '12 files'] * 5
  made = [
      tokenizer_lib.train(texts, ['cd', 'ls'], ['folder'], 300)
      for _ in range(2)
  ]
  paths = [tmp_path / 'a.json', tmp_path / 'b.json']
  for tok, path in zip(made, paths):
    tok.save(path)
  assert paths[0].read_bytes() == paths[1].read_bytes()
  # 7 fixed controls, 2 tools, 1 parameter, 256 bytes, and merges.
  assert 266 < made[0].vocab_size <= 300
  loaded = tokenizer_lib.Tokenizer.load(paths[0])
  text = 'the fox cd(<end>'
  assert loaded.encode(text) == made[0].encode(text)
  assert not {loaded.end_id, loaded.control('cd(')} & set(loaded.encode(text))


def test_the_digest_is_of_the_content(tmp_path):
  """Another order of the same merges gives other ids, so another digest."""
  texts = ['the quick brown fox'] * 5
  one = tokenizer_lib.train(texts, ['cd', 'ls'], ['folder'], 300)
  other = tokenizer_lib.train(texts, ['ls', 'cd'], ['folder'], 300)
  one.save(tmp_path / 'one.json')
  loaded = tokenizer_lib.Tokenizer.load(tmp_path / 'one.json')
  assert one.digest == loaded.digest != other.digest
  assert len(one.digest) == 16 and int(one.digest, 16) >= 0
  one.encode('encoding changes nothing')
  assert one.digest == tokenizer_lib.Tokenizer(one._backend).digest


def _missing(path):
  assert not path.exists()


def _cut(path):
  scripted.tokenizer().save(path)
  path.write_text(path.read_text()[:5000])


def _not_text(path):
  path.write_bytes(b'\xff\x00')


def _foreign(path):
  """A valid tokenizer, without our control tokens."""
  tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(path))


@pytest.mark.parametrize(
    'damage', [_missing, _cut, _not_text, _foreign, lambda p: p.mkdir()]
)
def test_a_missing_or_broken_file_is_one_line(tmp_path, damage):
  """A traceback of the library said 'No such file or directory' of no file."""
  path = tmp_path / 'tokenizer.json'
  damage(path)
  with pytest.raises(errors.UserError) as caught:
    tokenizer_lib.Tokenizer.load(path)
  message = str(caught.value)
  assert '\n' not in message and str(path) in message
  assert 'Restore the file' in message and 'configs/warm_start.py' in message
