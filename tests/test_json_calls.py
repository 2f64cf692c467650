"""Calls in JSON: what each family may write, and what is refused and why."""

import time

import hypothesis
from hypothesis import strategies as st
import pytest

from rods_jax.host import json_calls
from rods_jax.host import tool_calls
from rods_jax.types import Call

CD = '{"name": "cd", "arguments": {"folder": "a"}}'
LS = '{"name": "ls", "arguments": {}}'
BARE_CD = CD.replace('arguments', 'parameters')
BARE_LS = LS.replace('arguments', 'parameters')
CALLS = [Call('cd', (), {'folder': 'a'}), Call('ls', (), {})]
PARSERS = {
    'tagged': json_calls.parse_tagged,
    'thinking': lambda text: json_calls.parse_tagged(text, thinks=True),
    'tagged_list': json_calls.parse_tagged_list,
    'bare': json_calls.parse_bare,
}


def tagged(*bodies: str) -> str:
  return '\n'.join(f'<tool_call>\n{b}\n</tool_call>' for b in bodies)


def reason(parser, text: str) -> str:
  with pytest.raises(tool_calls.ParseError) as error:
    PARSERS[parser](text)
  return str(error.value)


@pytest.mark.parametrize(
    'text',
    [
        tagged(CD, LS),
        'I look around.\n' + tagged(CD) + ' and\n' + tagged(LS) + '\nso.',
        f'<tool_call>{CD}</tool_call><tool_call>{LS}</tool_call>',
        '<think>\nFirst ' + tagged(LS) + '?\n</think>\n\n' + tagged(CD, LS),
        tagged('{"type": "function", ' + CD[1:], LS),
        tagged('{"arguments": {"folder": "a"}, "name": "cd"}', LS),
    ],
)
def test_tagged(text):
  assert json_calls.parse_tagged(text) == CALLS


def test_calls_in_the_thinking_do_not_count():
  """The prompt may have opened the thinking, so no tag shows its start."""
  text = f'Shall I? {tagged(LS)}</think>{tagged(CD)}'
  assert json_calls.parse_tagged(text, thinks=True) == CALLS[:1]
  assert reason('tagged', text.replace('</think>', '</tool_call>')) == (
      '</tool_call> without <tool_call>'
  )


def test_a_tag_inside_a_string_is_text():
  """Cut at the first closing tag, the call would be half a string."""
  value = 'x</tool_call><tool_call>'
  body = CD.replace('"a"', f'"{value}"')
  for parse in (json_calls.parse_tagged, json_calls.parse_tagged_list):
    assert parse(tagged(body)) == [Call('cd', (), {'folder': value})]
  body = BARE_CD.replace('"a"', '"<|python_tag|>"')
  found = json_calls.parse_bare(body)
  assert found == [Call('cd', (), {'folder': '<|python_tag|>'})]


@pytest.mark.parametrize(
    'text',
    [f'<tool_call>[{CD}, {LS}]</tool_call>', tagged(f'[\n{CD},\n{LS}\n]'),
     tagged(CD, LS)],
)
def test_tagged_list(text):
  assert json_calls.parse_tagged_list(text) == CALLS


@pytest.mark.parametrize(
    'text',
    [
        f'{BARE_CD}; {BARE_LS}',
        f'\n{BARE_CD}\n{BARE_LS} ',
        f'[{BARE_CD}, {BARE_LS}]',
        f'<|python_tag|>{BARE_CD};{BARE_LS}',
        f'Done that way: <|python_tag|>{BARE_CD}, {BARE_LS};',
        '{"type": "function", ' + BARE_CD[1:] + BARE_LS,
        '<|python_tag|>cd.call(folder="a"); ls()',
    ],
)
def test_bare(text):
  assert json_calls.parse_bare(text) == CALLS


@pytest.mark.parametrize('parser', sorted(set(PARSERS) - {'thinking'}))
def test_an_answer_has_no_calls(parser):
  for text in ('', ' \n', 'The folder is a.', 'cd(folder="a")', 'x {"a": 1}'):
    assert PARSERS[parser](text) == []
  assert json_calls.parse_tagged_list('<tool_call>[]</tool_call>') == []
  assert json_calls.parse_bare('[1] is the source.') == []
  assert json_calls.parse_tagged('Yes.</think>\n\nNo.', thinks=True) == []


@pytest.mark.parametrize(
    'body, why',
    [
        ('{"name": "cd"}', 'a call needs "{arguments}"'),
        ('{"{arguments}": {}}', 'a call needs "name"'),
        ('{"name": 3, "{arguments}": {}}', '"name" must be the name of a tool'),
        ('{"name": "a.b", "{arguments}": {}}',
         '"name" must be the name of a tool'),
        ('{"name": "cd", "{arguments}": [1]}',
         '"{arguments}" must be a JSON object'),
        ('{"name": "cd", "{arguments}": {"": 1}}',
         "'' cannot be an argument name"),
        ('{"name": "cd", "{arguments}": {"for": 1}}',
         "'for' cannot be an argument name"),
        ('{"name": "cd", "{arguments}": {}, "id\\ud800": 1}',
         "a call has no 'id\\ud800'"),
        ('{"name": "cd", "name": "ls"}', "'name' given twice"),
        ('{"type": "code", "name": "cd", "{arguments}": {}}',
         '"type" must be "function"'),
        ('{"name": "cd", "{arguments}": {"x": NaN}}', 'NaN is no JSON value'),
        ('{"name": "cd", "{arguments}": {"x": 1e999}}', 'number out of range'),
        ('{"name": "cd", "{arguments}": {"x": %s}}' % ('1' * 301),
         'number longer than 300 digits'),
        ('{"name": "cd", "{arguments}": {"x": "\\ud800"}}',
         'a string holds half a surrogate pair'),
        ('{"name": "cd", "{arguments}": {"x": %s}}' % ('[' * 16 + ']' * 16),
         None),
        ('{"name": "cd", "{arguments}": {"x": %s}}' % ('[' * 17 + ']' * 17),
         'nested deeper than 16'),
        ('{' + '"a": {' * 9000, 'nested deeper than 16'),
        ("{'name': 1}", 'expected a name in double quotes, at "\'name\': 1}'),
    ],
)
def test_refusals_say_why(body, why):
  for parser, key in (
      ('tagged', 'arguments'), ('tagged_list', 'arguments'),
      ('bare', 'parameters'),
  ):
    text = body.replace('{arguments}', key)
    if parser != 'bare':
      text = f'<tool_call>{text}</tool_call>'
    if len(text) > 20_000:
      text = text[:20_000]
    if why is None:
      assert len(PARSERS[parser](text)) == 1
    else:
      found = reason(parser, text)
      assert found.startswith(why.replace('{arguments}', key))


@pytest.mark.parametrize(
    'parser, text, why',
    [
        ('tagged', f'<tool_call>\n{CD}', 'expected </tool_call>, found the end '
         'of the message'),
        ('tagged', f'<tool_call>{CD},{LS}</tool_call>',
         "expected </tool_call>, found ',"),
        ('tagged', tagged(f'[{CD}]'), '<tool_call> must hold one JSON object'),
        ('tagged', '<tool_call>', 'expected a JSON value, at the end of the '
         'message'),
        ('tagged', '<think> and so on', 'thinking without </think>'),
        ('thinking', tagged(CD), 'thinking without </think>'),
        ('tagged_list', tagged('[1]'), 'a call must be a JSON object'),
        ('bare', f'{BARE_CD}; and', "expected a JSON value, at 'and'"),
        ('bare', '<|python_tag|>print(1)',
         'expected a call behind <|python_tag|>'),
        ('bare', '<|python_tag|>cd.call(folder=x)',
         "expected a literal, found 'x'"),
        ('tagged', 'x' * 20_001, 'message longer than 20000 characters'),
        ('tagged', f'<tool_call>{LS}</tool_call>' * 65,
         'more than 64 calls in one message'),
        ('bare', f'{BARE_LS};' * 65, 'more than 64 calls in one message'),
    ],
)
def test_refusals_of_one_form(parser, text, why):
  assert reason(parser, text).startswith(why)


_SCRAPS = st.lists(
    st.sampled_from([
        '<tool_call>', '</tool_call>', '<think>', '</think>', '<|python_tag|>',
        '{"name": "a", "arguments": {', '{"name": "a", "parameters": {', '}}',
        '{', '}', '[', ']', '"', ',', ':', ';', '\\', '\\u', '\ud800', '\0',
        'a.call(', ')', '1', '-', 'e9', ' ', '\n', 'null', 'NaN', 'é',
    ]),
    max_size=30,
).map(''.join)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(st.one_of(st.text(), _SCRAPS))
def test_any_text_gives_calls_or_a_parse_error(text):
  for parse in PARSERS.values():
    try:
      calls = parse(text)
    except tool_calls.ParseError as error:
      assert 0 < len(str(error)) < 120 and '\n' not in str(error)
      str(error).encode()
    else:
      for call in calls:
        # What the compact format can say too: so nothing else is executed.
        assert repr(tool_calls.parse(tool_calls.render(call))) == repr([call])


@pytest.mark.parametrize(
    'piece',
    ['[', '{"a":', '<tool_call>', '</tool_call>', '<think>', '"', '\\u', ' ',
     '<tool_call>{}', '{"name":"a","parameters":{}}', '<|python_tag|>', '1'],
)
def test_long_repeated_pieces_are_quick(piece):
  text = (piece * 20_000)[:20_000]
  start = time.perf_counter()
  for candidate in (text, '<tool_call>' + text[11:], '{"name": ' + text[9:]):
    for parse in PARSERS.values():
      try:
        parse(candidate)
      except tool_calls.ParseError as error:
        assert len(str(error)) < 120
  assert time.perf_counter() - start < 2
