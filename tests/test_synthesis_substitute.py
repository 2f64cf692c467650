"""One pass over every text; words inside words and enum values stay."""

from rods_jax.host.synthesis import discover_numbers, entities
from rods_jax.host.synthesis.entities import Form, Slot
from rods_jax.host.synthesis.reading import Argument
from rods_jax.host.synthesis.substitute import Writer, complete_messages


def word_slot(kind, value):
  return Slot(kind, value, (Form(entities.word(value)),), exact=True)


def test_never_inside_longer_words():
  """'Rome' is a city, 'Romeo' and 'Rome2Rio' are not."""
  writer = Writer((word_slot('person', 'Rome'),))
  text = 'Rome, Romeo, Rome2Rio, _Rome_ and Rome.'
  assert writer.text(text, {0: 'Oslo'}) == (
      'Oslo, Romeo, Rome2Rio, _Rome_ and Oslo.'
  )


def test_entities_can_trade_places():
  """One after the other would turn both into the same name."""
  writer = Writer((word_slot('person', 'Ann'), word_slot('person', 'Bo')))
  assert writer.text('Ann met Bo.', {0: 'Bo', 1: 'Ann'}) == 'Bo met Ann.'


def test_the_longest_form_wins():
  writer = Writer((word_slot('token', 'abc'), word_slot('token', 'abc 12')))
  assert writer.text('abc 12 abc', {0: 'x', 1: 'y'}) == 'y x'


def test_numbers_need_their_own_parameter():
  """5 shares and priority 5: only the said parameter's 5 changes."""
  slot = Slot(
      'number:shares', 5.0, (Form(r'(?<![\w.])5(?!\w)', 'user', 'number:0'),),
      hint=(('place_order', 'amount'),),
  )  # pyformat: disable
  writer = Writer((slot,))

  def argument(tool, param, value):
    return Argument(0, 0, ('kwargs', param), tool, param, value)

  values = {0: 8.0}
  shares = writer.argument(argument('place_order', 'amount', 5), values)
  assert shares == 8 and isinstance(shares, int)
  priority = argument('create_ticket', 'priority', 5)
  assert writer.argument(priority, values) == 5
  pedal = argument('pressBrakePedal', 'pedalPosition', 1.0)
  assert writer.argument(pedal, values) == 1.0


def test_keys_and_nested_contents_of_the_configuration():
  slot = Slot('folder', 'temp', (Form(r"(?<=')temp(?=')", 'user'),), True)
  writer = Writer((slot,))
  config = {'root': {'temp': {'type': 'directory', 'contents': {'temp': {}}}}}
  assert writer.config(config, {0: 'attic'}) == {
      'root': {'attic': {'type': 'directory', 'contents': {'attic': {}}}}
  }
  assert 'temp' in config['root']


def test_stocks_trade_places_in_the_market():
  """Renaming AAPL to MSFT where MSFT exists would drop a stock."""
  writer = Writer((word_slot('stock', 'AAPL'),))
  config = {'TradingBot': {'stocks': {'AAPL': 1.0, 'MSFT': 2.0},
                           'watch_list': ['MSFT']}}  # pyformat: disable
  assert writer.config(config, {0: 'MSFT'}) == {
      'TradingBot': {'stocks': {'MSFT': 1.0, 'AAPL': 2.0},
                     'watch_list': ['AAPL']}  # pyformat: disable
  }


def test_a_kept_message_gets_its_new_names():
  """The message keeps its words, but not the old name inside it."""
  name = word_slot('person', 'Sam')
  message = Slot(
      'message', 'Hi Sam, I am late.',
      (Form(r'Hi\ Sam,\ I\ am\ late\.', 'user'),), exact=True,
      hint=('own', 'message'),
  )  # pyformat: disable
  writer = Writer((name, message))
  values = complete_messages(writer, {0: 'Ida', 1: ('', '', ' Bye!')})
  text = "Tell Sam 'Hi Sam, I am late.'"
  assert writer.text(text, values) == "Tell Ida 'Hi Ida, I am late. Bye!'"


def test_numbers_in_texts():
  """'30psi', '12/26' and 'USR005' hold no number that stands alone."""
  text = 'Buy 1,500 at $2.50, not 30psi; card 12/26, USR005, 7.'
  found = [n for _, n, _ in discover_numbers.numbers_in(text)]
  assert found == [1500.0, 2.5, 7.0]
