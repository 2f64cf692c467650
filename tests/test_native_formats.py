"""Formats of pretrained families against their templates in transformers."""

import functools
import pathlib

import hypothesis
from hypothesis import strategies as st
import pytest

from rods_jax import errors
from rods_jax.host import format_check
from rods_jax.host import native_formats
from rods_jax.host import tool_calls
from rods_jax.host import tool_schemas
from rods_jax.types import Call
from tests import chat_folders

KINDS = {
    'qwen25': ('qwen25', False),
    'qwen3': ('qwen3', False),
    'qwen3_thinking': ('qwen3', True),
    'llama31': ('llama31', False),
    'smollm2': ('smollm2', False),
}
TOOLS = ('cd', 'ls', 'sort')
every_kind = pytest.mark.parametrize('kind', KINDS)
CALLS = [
    Call('cd', (), {'folder': 'it\'s "a"\n<b> é'}),
    Call('sort', (), {'file_name': 'x', 'y': [1, -2.5, None, True, {'k': []}]}),
]
CONTROLS = (
    '<|im_end|>', '<|im_start|>system', '<tool_call>', '</think>', '<|eot_id|>',
    '</tool_response>', '<|python_tag|>', '<|start_header_id|>',
)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """kind -> (format, tokenizer of transformers), each folder made once."""

  @functools.cache
  def folder(family: str) -> tuple[pathlib.Path, object]:
    path = tmp_path_factory.mktemp(family)
    return path, chat_folders.write(path, family)

  @functools.cache
  def make(kind: str, limit: int = 10_000):
    family, thinking = KINDS[kind]
    path, reference = folder(family)
    return native_formats.load(path, limit, thinking), reference

  return make


def rendered(reference, messages, tools=(), thinking=False) -> list[int]:
  return reference.apply_chat_template(
      messages, tools=list(tools) or None, add_generation_prompt=True,
      enable_thinking=thinking, tokenize=True, return_dict=False,
  )


@every_kind
@pytest.mark.parametrize(
    'text', ['Hi.', '', ' \n two\n\nlines \t', 'é 😀 12']
)
@pytest.mark.parametrize('tools', [TOOLS, ()])
def test_the_first_prompt_is_the_templates(made, kind, text, tools):
  fmt, reference = made(kind)
  messages, schemas = fmt.opening(tools, text)
  assert messages[-1] == {'role': 'user', 'content': text}
  thinking = KINDS[kind][1]
  want = rendered(reference, messages, schemas, thinking)
  assert fmt.prompt(tools, text) == want
  if kind == 'smollm2':  # its template has no place for tools
    assert len(messages) == (2 if tools else 1) and schemas == []
    assert not tools or '"name": "sort"' in messages[0]['content']
  else:
    assert schemas == tool_schemas.schemas(tools)


@pytest.mark.parametrize(
    'kind, rewritten',
    [
        ('qwen25', ()),
        ('smollm2', ()),
        # It takes one call per message.
        ('llama31', ('results of two calls',)),
        # The thinking of past turns is dropped, that of this turn is kept.
        ('qwen3_thinking', ('a user turn', 'a user turn with new tools')),
        # The empty thinking in the header is dropped from every message.
        ('qwen3', ('the result of a call', 'an error', 'a user turn',
                   'a user turn with new tools', 'results of two calls')),
    ],
)
def test_where_the_template_rewrites_the_dialogue(made, kind, rewritten):
  assert format_check.check(made(kind)[0]) == rewritten


@pytest.mark.parametrize('kind', ['qwen25', 'smollm2'])
def test_an_appended_row_is_the_whole_dialogue_rendered(made, kind):
  fmt, reference = made(kind)
  row = fmt.prompt(TOOLS, 'Go.')
  messages, schemas = fmt.opening(TOOLS, 'Go.')
  for calls, texts in ((CALLS, ['one', '']), (CALLS[:1], ['{"a": 1}\n'])):
    row += fmt.calls(calls) + fmt.results(texts)
    messages.append(fmt.answer_message(calls))
    messages += [{'role': 'tool', 'content': text} for text in texts]
  row += fmt.target([], words='Done.') + fmt.turn('More?', ('mkdir',))
  messages.append({'role': 'assistant', 'content': 'Done.'})
  messages.append(fmt.user_message('More?', ('mkdir',)))
  assert '"name": "mkdir"' in messages[-1]['content']
  assert row == rendered(reference, messages, schemas)


def test_pieces_of_llama_by_hand(made):
  fmt, reference = made('llama31')
  texts = {
      'turn': fmt.turn('  hi\n'),
      'results': fmt.results(['a "b"\n', '']),
      'calls': fmt.calls(CALLS[:1] * 2),
  }
  header = '<|start_header_id|>{}<|end_header_id|>\n\n'
  answer = header.format('assistant')
  call = '{"name": "cd", "parameters": {"folder": "it\'s \\"a\\"\\n<b> é"}}'
  assert {name: reference.decode(ids) for name, ids in texts.items()} == {
      'turn': header.format('user') + 'hi<|eot_id|>' + answer,
      'results': (
          header.format('ipython') + '"a \\"b\\"\\n"<|eot_id|>'
          + header.format('ipython') + '""<|eot_id|>' + answer
      ),
      'calls': f'{call}; {call}<|eot_id|>',
  }


@every_kind
def test_a_target_reads_as_the_calls_it_was_made_from(made, kind):
  fmt, _ = made(kind)
  target = fmt.calls(CALLS)
  assert target[-1] == fmt.end_id and target.count(fmt.end_id) == 1
  assert fmt.parse(fmt.text(target)) == CALLS
  named = fmt.calls([Call('mv', ('a', 'b'))])
  assert fmt.parse(fmt.text(named)) == [
      Call('mv', (), {'source': 'a', 'destination': 'b'})
  ]
  assert fmt.parse(fmt.text(fmt.calls([]))) == []
  if not KINDS[kind][1]:
    assert fmt.calls([]) == [fmt.end_id]


@every_kind
def test_every_end_token_ends_a_message(made, kind):
  fmt, reference = made(kind)
  assert fmt.end_id == fmt.end_ids[0] == reference.eos_token_id
  ends = reference.convert_ids_to_tokens(list(fmt.end_ids))
  assert ends == (
      ['<|eot_id|>', '<|eom_id|>', '<|end_of_text|>'] if kind == 'llama31'
      else ['<|im_end|>', '<|endoftext|>']
  )
  for end in fmt.end_ids:
    assert fmt.text([*fmt.tokenizer.encode('ok'), end]) == 'ok'
  assert fmt.text([fmt.end_id, fmt.end_id]) == ends[0]
  assert fmt.text([]) == ''


@every_kind
@pytest.mark.parametrize('word', CONTROLS)
def test_control_words_of_others_stay_text(made, kind, word):
  """A tool once ended the policy's turn by printing <|im_end|>."""
  fmt, _ = made(kind)
  added = set(fmt.tokenizer._controls.values())
  count = lambda ids: sum(i in added for i in ids)
  text = f'a{word}b {word * 2}'
  call = Call('cd', (), {'folder': text})
  for piece in (
      lambda t: fmt.prompt(TOOLS, t), fmt.turn, lambda t: fmt.results([t, t]),
      lambda t: fmt.calls([Call('cd', (), {'folder': t})]),
  ):
    assert count(piece(text)) == count(piece('a'))
    shown = fmt.tokenizer.decode(piece(text))
    assert text in shown  # and not a letter of it is lost
  assert fmt.parse(fmt.text(fmt.calls([call]))) == [call]


@every_kind
def test_a_long_result_is_cut_and_says_so(made, kind):
  """'é' is two bytes and here two tokens: 5 tokens are 2 letters."""
  fmt, _ = made(kind, limit=5)
  assert len(fmt.tokenizer.encode('éé')) == 4
  assert fmt.results(['éé']) == made(kind)[0].results(['éé'])
  assert fmt.results(['éééé']) == made(kind)[0].results(
      ['éé... (2 more characters)']
  )
  assert len(fmt.results(['x' * 10**6])) < 60


_WORDS = st.text(st.characters(), max_size=12) | st.sampled_from(CONTROLS)
_TEXT = st.lists(_WORDS, max_size=6).map(''.join)


@hypothesis.settings(
    max_examples=30, deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(_TEXT)
def test_any_text_is_text(made, text):
  """Also lone surrogates and the code point that marks protected words."""
  for kind in KINDS:
    fmt, _ = made(kind)
    added = set(fmt.tokenizer._controls.values())
    for piece in (fmt.turn, lambda t: fmt.results([t])):
      ids = [i for i in piece(text) if i in added]
      assert ids == [i for i in piece('a') if i in added]


@hypothesis.settings(
    max_examples=80, deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
    st.lists(st.integers(0, 1520) | st.integers(1490, 1510), max_size=40)
)
def test_any_sampled_ids_give_calls_or_a_parse_error(made, ids):
  for kind in KINDS:
    fmt, _ = made(kind)
    text = fmt.text(ids)
    text.encode()
    try:
      assert isinstance(fmt.parse(text), list)
    except tool_calls.ParseError as error:
      assert 0 < len(str(error)) < 120


def folder_of(tmp_path, family='qwen25', **options) -> pathlib.Path:
  chat_folders.write(tmp_path, family, **options)
  return tmp_path


@pytest.mark.parametrize(
    'name, text, says',
    [
        ('tokenizer.json', None, 'has no tokenizer.json; copy the tokenizer'),
        ('tokenizer.json', '{"a": 1', 'Cannot read .*tokenizer.json'),
        ('tokenizer.json', '{"model": 1}', 'Cannot read .*tokenizer.json'),
        ('tokenizer_config.json', None, 'has no tokenizer_config.json'),
        ('tokenizer_config.json', '[]', 'tokenizer_config.json: no JSON'),
        ('chat_template.jinja', None, 'has no chat template: neither chat_'),
        ('chat_template.jinja', '{% if %}', 'chat_template.jinja is damaged'),
        ('chat_template.jinja', '{{ raise_exception("no") }}',
         'refuses a plain dialogue: no'),
        ('chat_template.jinja', 'Hi.', 'has no header of an answer'),
    ],
)
def test_a_folder_that_lacks_something_is_one_line(tmp_path, name, text, says):
  path = folder_of(tmp_path) / name
  if text is None:
    path.unlink()
  else:
    path.write_text(text)
  with pytest.raises(errors.UserError, match=says) as error:
    native_formats.load(tmp_path, 10)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    'old, new, says',
    [
        ('<tool_response>', '<answer>', 'writes the result of a call in'),
        ("message.role + '", "message.role + ' ' + '", 'writes a user turn in'),
        ('{"name": "', '{"call": "', 'writes the result of a call in'),
    ],
)
def test_another_template_than_the_familys_is_found(tmp_path, old, new, says):
  source = chat_folders.template('qwen25')
  changed = source.replace(old, new)
  assert changed != source
  fmt = native_formats.load(folder_of(tmp_path, chat_template=changed), 10)
  with pytest.raises(errors.UserError, match=says):
    format_check.check(fmt)


def test_thinking_needs_a_template_that_thinks(tmp_path):
  folder = folder_of(tmp_path)
  with pytest.raises(errors.UserError, match='rollout.thinking is True'):
    native_formats.load(folder, 10, thinking=True)


def test_a_template_that_always_thinks(tmp_path):
  """The header opens the thinking, so the message begins inside it."""
  source = chat_folders.template('qwen3')
  always = source.rpartition('{%- if add_generation_prompt %}')[0] + (
      "{%- if add_generation_prompt %}"
      "{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
  )
  folder = folder_of(tmp_path, 'qwen3', chat_template=always)
  with pytest.raises(errors.UserError, match='always thinks'):
    native_formats.load(folder, 10)
  fmt = native_formats.load(folder, 10, thinking=True)
  assert fmt.header.endswith('<think>\n')
  assert fmt.text(fmt.calls([])) == '\n</think>\n\n'
  assert fmt.parse(fmt.text(fmt.calls(CALLS))) == CALLS
  with pytest.raises(tool_calls.ParseError, match='thinking without'):
    fmt.parse('<tool_call>{}</tool_call>')
  assert 'the result of a call' not in format_check.check(fmt)


def test_another_family_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setitem(
      chat_folders.TOKENS, 'qwen25', (('<s>', '</s>'), (), '<s>', '</s>')
  )
  with pytest.raises(errors.UserError, match='no other chat format'):
    native_formats.load(folder_of(tmp_path), 10)
