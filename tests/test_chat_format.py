"""Dialogue pieces as ids: headers, cuts, and calls as targets."""

import pytest

from rods_jax.host import chat_format
from rods_jax.host import tool_calls
from rods_jax.types import Call
from tests import scripted
from tests.scripted import control, ids


def test_pieces_by_hand():
  fmt = scripted.fmt()
  assert fmt.user('hi') == [control('<user>'), *ids('hi'),
                            control('<assistant>')]
  assert fmt.results(['a', 'b']) == [
      control('<tool>'), *ids('a'), control('<tool>'), *ids('b'),
      control('<assistant>'),
  ]
  assert fmt.system({'ls', 'cd'}) == [
      control('<system>'), control('cd('), control('ls(')
  ]
  assert fmt.system(()) == []  # a turn without new tools


def test_empty_content_is_still_a_message():
  """An empty result was once taken for a missing one: 2 tokens, not 1."""
  assert scripted.fmt().results(['']) == [
      control('<tool>'), control('<assistant>')
  ]
  assert len(scripted.fmt().user('')) == 2


def test_a_long_result_is_cut_and_marked():
  fmt = scripted.fmt(3)
  whole = ids('\xe9\xe9')
  assert len(whole) == 4
  assert fmt.results(['\xe9\xe9']) == [
      control('<tool>'), *whole[:3], control('<cut>'), control('<assistant>')
  ]
  short = ids('\xe9!')
  assert len(short) == 3
  assert fmt.results(['\xe9!']) == [
      control('<tool>'), *short, control('<assistant>')
  ]


def test_a_huge_result_is_not_encoded_whole():
  """Its first 32 * 3 characters are; blanks may merge into few tokens."""
  row = scripted.fmt(3).results([' ' * 10**7])
  assert len(row) <= 3 + 3 and control('<cut>') in row


def test_no_token_is_longer_than_the_bound_on_huge_results():
  """Else a result of few, long tokens would be cut although it fits."""
  tok = scripted.tokenizer()
  texts = (tok.decode([i]) for i in range(tok.vocab_size))
  assert max(len(t) for t in texts if not t.endswith(('(', '='))) <= 32


def test_limit_below_one_is_refused():
  with pytest.raises(ValueError, match='max_result_tokens'):
    chat_format.CompactFormat(scripted.tokenizer(), 0)


def test_text_drops_the_end_token_only_at_the_end():
  fmt = scripted.fmt()
  end = control('<end>')
  assert fmt.text([*ids('pwd()'), end]) == 'pwd()'
  assert fmt.text([end]) == fmt.text([]) == ''
  assert fmt.text([end, *ids('a')]) == '<end>a'


@pytest.mark.parametrize(
    'call',
    [
        Call('pwd'),
        Call('cd', (), {'folder': 'a b;c'}),
        Call('cd', (), {'folder': "it's <end> cd("}),
        Call('echo', (), {'content': 'x\ny', 'file_name': None}),
        Call('mean', (), {'numbers': [1, 2.5, -3, 1e-7]}),
        Call('setCruiseControl', (),
             {'speed': 65, 'activate': True, 'distanceToNextVehicle': 1.5}),
        Call('ls', (), {'a': True}),
    ],
)
def test_a_target_reads_as_the_call_it_was_made_from(call):
  fmt = scripted.fmt()
  target = fmt.calls([call, call])
  assert target[-1] == control('<end>') and target.count(target[-1]) == 1
  assert tool_calls.parse(fmt.text(target)) == [call, call]


def test_positional_arguments_are_written_by_name():
  fmt = scripted.fmt()
  assert tool_calls.parse(fmt.text(fmt.calls([Call('mv', ('a', 'b'))]))) == [
      Call('mv', (), {'source': 'a', 'destination': 'b'})
  ]


def test_a_call_is_mostly_names():
  """cd(folder='d') is the tool, the parameter, and the value with marks."""
  row = scripted.fmt().calls([Call('cd', (), {'folder': 'd'})])
  assert row == [
      control('cd('), control('folder='), *ids("'d'"), *ids(')'),
      control('<end>'),
  ]


def test_no_calls_are_the_empty_message():
  assert scripted.fmt().calls([]) == [control('<end>')]
