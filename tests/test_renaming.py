"""Renamed demonstrations: the same dialogue, copied from the same places."""

import numpy as np
import pytest

from rods_jax.host import demonstrate
from rods_jax.host import renaming
from rods_jax.host import tokenizer as tokenizer_lib

WORDS = ['open', 'report', 'please', 'now', 'alpha', 'beta', 'gamma', 'delta']


@pytest.fixture(scope='module')
def tok():
  texts = [' '.join(WORDS) + ' 17 42 2024 55 .pdf x.pdf'] * 50
  return tokenizer_lib.train(texts, ['cat'], ['file_name'], 420)


def shown(tok, before, call):
  """A row: `before` as given, then `call` as sampled."""
  given, sampled = tok.encode(before), tok.encode(call)
  return demonstrate.Demonstration(
      np.array(given + sampled, np.int32),
      np.array([False] * len(given) + [True] * len(sampled)),
  )


def texts(tok, row):
  return (
      tok.decode(row.tokens[~row.loss_mask].tolist()),
      tok.decode(row.tokens[row.loss_mask].tolist()),
  )


def many(tok, row, count=60):
  renamer, random = renaming.Renamer(tok), np.random.default_rng(0)
  return [renamer(row, random) for _ in range(count)]


def test_a_copied_value_is_renamed_wherever_it_stands(tok):
  row = shown(tok, 'open report please, alpha report now', "'report'")
  found = set()
  for new in many(tok, row):
    before, call = texts(tok, new)
    name = call.strip("'")
    assert before == f'open {name} please, alpha {name} now'
    found.add(name)
  assert 'report' in found and len(found) > 10  # renamed by chance


def test_only_what_is_copied_is_renamed(tok):
  """'gamma' is said first by the call: renamed, nothing could predict it."""
  row = shown(tok, 'open report', "'gamma'")
  for new in many(tok, row):
    np.testing.assert_array_equal(new.tokens, row.tokens)


def test_a_token_becomes_one_of_its_kind(tok):
  row = shown(tok, 'open report 17', "'report', 17")
  kinds = [tok.kind(i) for i in row.tokens]
  for new in many(tok, row):
    assert [tok.kind(i) for i in new.tokens] == kinds
    np.testing.assert_array_equal(new.loss_mask, row.loss_mask)


def test_two_tokens_never_become_one(tok):
  row = shown(tok, ' '.join(WORDS), ' '.join(WORDS))
  distinct = len(set(row.tokens.tolist()))
  for new in many(tok, row, 200):
    assert len(set(new.tokens.tolist())) == distinct


def test_kinds(tok):
  kind = lambda text: [tok.kind(i) for i in tok.encode(text)]
  opens, number = True, True
  assert kind('report') == [(opens, not number, '')]
  assert kind('42') == [(opens, number, '')]
  assert kind('x.pdf')[-1] == (not opens, not number, '.')
  assert kind("', '") == [None] * len(kind("', '"))
  controls = [tok.pad_id, tok.end_id, tok.control('cat(')]
  assert [tok.kind(i) for i in controls] == [None] * 3
  literal = tokenizer_lib.train(['True'] * 50, [], [], 300)
  assert [literal.kind(i) for i in literal.encode('True')] == [None]
