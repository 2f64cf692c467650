"""The executor: formats, bounds, leaks, errors.

Each leak test shows the value that the leak would give.
"""

import decimal
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import (
    long_context,
)
import mpmath
import pytest

from rods_jax.host import bfcl
from rods_jax.host import env
from rods_jax.host import simulators
from rods_jax.host import tool_calls
from rods_jax.types import Call
from tests.worlds import TWEETS, endless, make, run, start


# Results are formatted as the official executor formats them.


@pytest.mark.parametrize(
    'class_name, text, result, ok',
    [
        ('GorillaFileSystem', "mkdir(dir_name='e')", 'None', True),
        ('GorillaFileSystem', "cat(file_name='a.txt')",
         '{"file_content": "x\\ny"}', True),
        ('GorillaFileSystem', "cat('d')",
         '{"error": "cat: \'d\': Is a directory"}', False),
        ('GorillaFileSystem', 'cat()',
         "Error during execution: GorillaFileSystem.cat() missing 1 required "
         "positional argument: 'file_name'", False),
        ('GorillaFileSystem', "cat('a', 'b')",
         'Error during execution: GorillaFileSystem.cat() takes 2 positional '
         'arguments but 3 were given', False),
        ('GorillaFileSystem', "cat(name='a')",
         'Error during execution: GorillaFileSystem.cat() got an unexpected '
         "keyword argument 'name'", False),
        ('GorillaFileSystem', 'cat(None)',
         "Error during execution: argument of type 'NoneType' is not iterable",
         False),
        ('MathAPI', 'logarithm(value=20,base=10,precision=2)',
         "{'result': mpf('1.3027')}", True),
        ('MathAPI', 'square_root(2, 5)', "{'result': Decimal('1.4142')}", True),
        ('MathAPI', 'power(9, 2)', '{"result": 81}', True),
        ('TwitterAPI', "post_tweet('a', bogus=1)",
         'Error during execution: TwitterAPI.post_tweet() got an unexpected '
         "keyword argument 'bogus'", False),
        ('TwitterAPI', 'post_tweet()',
         'Error during execution: TwitterAPI.post_tweet() missing 1 required '
         "positional argument: 'content'", False),
        ('TradingBot', 'get_watchlist()',
         "['Error: User not authenticated. Please log in to view the "
         "watchlist.']", False),
        ('TradingBot', 'get_order_history()',
         "[{'error': 'User not authenticated. Please log in to view order "
         "history.'}]", False),
    ],
)
def test_result_text(class_name, text, result, ok):
  assert run(start(class_name), text) == env.ToolResult(result, ok)


# State that must not leak.


def test_default_lists_of_post_tweet_are_not_shared():
  """mention() appends to a default list that all instances share.

  Left alone, the second trajectory's tweet mentions '@bob' at once.
  """
  for _ in range(2):
    episode = start('TwitterAPI')
    tweet = json.loads(run(episode, "post_tweet(content='hi')").text)
    assert tweet['mentions'] == []  # the leak: ['@bob'] in the second round
    run(episode, "mention(tweet_id=0, mentioned_usernames=['@bob'])")
  bug = bfcl.simulator('TwitterAPI')()
  bug._load_scenario(dict(TWEETS))
  bug.post_tweet('hi')
  bug.mention(0, ['@bob'])
  assert bug.post_tweet('new')['mentions'] == ['@bob']
  bfcl.simulator('TwitterAPI').post_tweet.__defaults__[1].clear()


def test_lists_in_a_call_are_not_shared():
  """One Call run twice: the first trajectory's mention reached the second."""
  (post,) = tool_calls.parse("post_tweet(content='hi', mentions=['@ann'])")
  for _ in range(2):
    episode = start('TwitterAPI')
    (result,) = episode.execute([post])
    assert json.loads(result.text)['mentions'] == ['@ann']
    run(episode, "mention(tweet_id=0, mentioned_usernames=['@bob'])")
  assert post.kwargs['mentions'] == ['@ann']  # the leak: ['@ann', '@bob']


def test_long_context_records_are_not_shared():
  """Booking with a long-context card lowered its balance for everyone."""
  card, info = next(iter(long_context.CREDIT_CARD_EXTENSION.items()))
  booking = next(iter(long_context.BOOKING_RECORD_EXTENSION))
  balance = info['balance']
  for _ in range(2):
    episode = start('TravelAPI', category='long_context')
    text = f"get_credit_card_balance(access_token='tok', card_id='{card}')"
    assert json.loads(run(episode, text).text) == {'card_balance': balance}
    episode._world.instances['TravelAPI']._set_card_balance(card, 1.0)
    assert json.loads(run(episode, text).text) == {'card_balance': 1.0}
    episode._world.instances['TravelAPI'].booking_record[booking].clear()
  assert long_context.CREDIT_CARD_EXTENSION[card]['balance'] == balance
  assert long_context.BOOKING_RECORD_EXTENSION[booking]
  bug = bfcl.simulator('TravelAPI')()
  bug._load_scenario({}, long_context=True)
  assert bug.credit_card_list[card] is info


def test_precision_is_not_shared():
  """mpmath and decimal keep their precision for the whole process."""
  before = mpmath.mp.dps, decimal.getcontext().prec
  episode = start('MathAPI')
  run(episode, 'logarithm(2, 10, 50)')
  run(episode, 'square_root(2, 50)')
  assert (mpmath.mp.dps, decimal.getcontext().prec) == before  # leak: 50, 50
  # And a precision set elsewhere does not change a result.
  with mpmath.workdps(3), decimal.localcontext(prec=3):
    assert run(episode, 'square_root(2, 6)').text == (
        "{'result': Decimal('1.41421')}"
    )
    assert run(episode, "logarithm(2, 10, 'x')").ok is False
    assert mpmath.mp.dps == 3


def test_random_numbers_belong_to_the_trajectory():
  """The first booking of every trajectory is 3426812, whatever ran before."""
  book = (
      "book_flight(access_token='tok', card_id='c1', travel_date='2026-12-15',"
      " travel_from='SFO', travel_to='LAX', travel_class='economy')"
  )
  first, second = start('TravelAPI'), start('TravelAPI')
  for episode in (first, second):  # a shared generator: another id for second
    assert json.loads(run(episode, book).text)['booking_id'] == '3426812'
  # A booking draws its own id, then the transaction's; 141053 is the seed.
  draws = random.Random(141053)
  ids = [draws.randint(10**k, 10 ** (k + 1) - 1) for k in (6, 7, 6)]
  assert ids == [3426812, 45451592, 7223063]
  run(first, "set_budget_limit(access_token='tok', budget_limit=0)")
  assert json.loads(run(first, book).text)['booking_id'] == '7223063'


def test_results_do_not_depend_on_the_hash_seed():
  """Two messages list a set: its order differed between a run and its resume.

  Of 3 classes there are 6 orders; the eight processes of a trial showed three.
  """
  code = (
      'from rods_jax.host import simulators\n'
      'from rods_jax.types import Call\n'
      "world = simulators.World(['TravelAPI', 'TicketAPI'], {'TravelAPI': "
      "{'access_token': 't', 'token_expires_in': 9, 'credit_card_list': "
      "{'c': {'balance': 1}}}, 'TicketAPI': {'current_user': 'u', "
      "'ticket_queue': [{'id': 1, 'created_by': 'u'}]}})\n"
      "print(world.call(Call('book_flight', ('t', 'c', '2026-12-15', 'SFO', "
      "'LAX', 'x')), 0).text)\n"
      "print(world.call(Call('edit_ticket', (1, dict(zip('dbca', 'xxxx')))), "
      '0).text)\n'
  )
  for seed in '0123':
    out = subprocess.run(
        [sys.executable, '-c', code], check=True, capture_output=True,
        text=True, cwd=pathlib.Path(__file__).parent.parent,
        env={**os.environ, 'PYTHONHASHSEED': seed},
    ).stdout
    assert out.splitlines() == [
        '{"booking_status": false, "error": "Invalid travel class. Must be one '
        "of {'business', 'economy', 'first'}\"}",
        '{"error": "Invalid fields for update: a, b, c, d"}',
    ]


# Bounds.


@pytest.mark.parametrize(
    'text, reason',
    [
        ('power(base=9, exponent=200000000)', 'Exceeds the limit (4300'),
        ('power(' + '9' * 300 + ', ' + '9' * 300 + ')', 'Exceeds the limit'),
        ('power(-7, exponent=10000000000)', 'Exceeds the limit'),
        ('power(10, 5000)', 'Exceeds the limit (4300 digits)'),
        ('logarithm(2, 10, 1000000000)', 'precision must be at most 10000'),
        ("logarithm('1e1000000000', 10, 5)", 'logarithm takes numbers'),
        ('logarithm((1, 99999999999), 10, 5)', 'logarithm takes numbers'),
        ('square_root(2, 1000000000)', 'precision must be at most 10000'),
        ('square_root(2, precision=-1000000000)', 'precision must be'),
        ('round_number(5, -1000000000)', 'decimal_places must be at most'),
        ('round_number(5, decimal_places=1e300)', 'decimal_places must be'),
    ],
)
def test_one_operation_that_nothing_can_stop_is_refused(text, reason):
  """power(9, 200000000) is one C call: no signal gets in for minutes."""
  begin = time.perf_counter()
  result = run(start('MathAPI'), text)
  assert time.perf_counter() - begin < 2
  assert not result.ok and not result.timeout
  assert result.text.startswith(f'Error during execution: {reason}')


@pytest.mark.parametrize(
    'text',
    ['power(2, 14000)', 'power(1, 99999999999)', 'power(0, 99999999999)',
     'power(2.0, -5)', 'power(9, -200000000)', 'logarithm(2, 10, 10000)',
     'square_root(2, 10000)', 'round_number(12345, -2)', 'power(True, 9)'],
)
def test_the_refusals_leave_the_rest_alone(text):
  assert run(start('MathAPI'), text).ok


@pytest.mark.parametrize(
    'text',
    ["power('a', 2)", 'power(None, None)', 'power([1], {})', 'power(2.0, 9999)',
     'power()', "round_number('x')", "square_root('2', 5)", 'mean(5)',
     'mean([[1]])', "sum_values(['a'])", 'min_value([1, None])',
     "logarithm(2, 10, 'x')", "absolute_value({'a': 1})",
     'divide(1, 0)', 'standard_deviation([1e308, -1e308])'],
)
def test_wrong_types_are_tool_errors(text):
  episode = start('MathAPI')
  assert not run(episode, text).ok
  assert (episode.num_calls, episode.num_tool_errors) == (0, 1)


def test_a_hanging_call_is_stopped_on_other_threads_too():
  """Signals reach the main thread only: a clock in the profile hook there."""
  results = []

  def work():
    sys.setprofile(None)
    episode = env.Episode(
        make('GorillaFileSystem'), env.Limits(call_timeout_s=0.3)
    )
    results.append(run(episode, "cat('a.txt')"))
    endless(episode)
    results.append(run(episode, 'du()'))
    results.append(sys.getprofile())

  thread = threading.Thread(target=work)
  begin = time.perf_counter()
  thread.start()
  thread.join(20)
  assert time.perf_counter() - begin < 10
  assert results[0].ok and results[1].timeout and results[2] is None


def test_the_alarm_is_given_back():
  """Whoever uses SIGALRM or its timer meanwhile gets both back."""
  fired = []
  previous = signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
  signal.setitimer(signal.ITIMER_REAL, 30.0, 7.0)
  try:
    handler = signal.getsignal(signal.SIGALRM)
    episode = env.Episode(
        make('GorillaFileSystem'), env.Limits(call_timeout_s=0.3)
    )
    assert run(episode, "cat('a.txt')").ok
    endless(episode)
    assert run(episode, 'du()').timeout
    assert signal.getsignal(signal.SIGALRM) is handler
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert 20.0 < left < 30.0 and interval == 7.0
    assert not fired
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


def test_an_alarm_that_a_destructor_swallows_rings_again(monkeypatch):
  """Python drops exceptions raised inside __del__: one alarm can be lost."""

  class Slow:
    def __del__(self):
      time.sleep(0.6)

  def hang(self, file_name):
    del self, file_name
    Slow()
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
      pass

  monkeypatch.setattr(bfcl.simulator('GorillaFileSystem'), 'cat', hang)
  monkeypatch.setattr(sys, 'unraisablehook', lambda unraisable: None)
  episode = env.Episode(
      make('GorillaFileSystem'), env.Limits(call_timeout_s=0.3)
  )
  assert run(episode, "cat('a')").timeout


def test_an_alarm_at_the_very_end_of_a_call():
  """Bounds about as long as the call: it ends or is stopped, nothing else.

  An alarm between the call and its disarming would escape from the executor,
  or leave its handler behind for the next alarm of somebody else.
  """
  handler = signal.getsignal(signal.SIGALRM)
  outcomes = set()
  for i in range(3000):
    world = simulators.World(['MathAPI'], {})
    outcome = world.call(Call('add', (1, 2)), 1e-6 * (1 + i % 200))
    outcomes.add(outcome.timeout)
    assert outcome.timeout or outcome.text == '{"result": 3}'
    assert signal.getsignal(signal.SIGALRM) is handler
  assert outcomes == {True, False}


def test_no_timer_stays_behind():
  run(start('GorillaFileSystem'), "cat('a.txt')")
  assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize('error', [RecursionError, MemoryError, ValueError])
def test_errors_inside_a_simulator_are_tool_errors(monkeypatch, error):
  def fail(self, file_name):
    raise error('deep')

  monkeypatch.setattr(bfcl.simulator('GorillaFileSystem'), 'cat', fail)
  episode = start('GorillaFileSystem')
  assert run(episode, "cat('a')").text == 'Error during execution: deep'
  assert episode.num_tool_errors == 1


def test_a_directory_inside_itself_recurses_into_a_tool_error():
  episode = start('GorillaFileSystem')
  run(episode, "cp(source='d', destination='d')")
  result = run(episode, 'find()')
  assert result.text.startswith(
      'Error during execution: maximum recursion depth exceeded'
  )
  assert run(episode, "cat('a.txt')").ok  # and the world goes on


def test_ctrl_c_passes_through(monkeypatch):
  def interrupt(self, file_name):
    raise KeyboardInterrupt

  monkeypatch.setattr(bfcl.simulator('GorillaFileSystem'), 'cat', interrupt)
  before = signal.getsignal(signal.SIGALRM)
  with pytest.raises(KeyboardInterrupt):
    run(start('GorillaFileSystem'), "cat('a')")
  assert signal.getsignal(signal.SIGALRM) is before


def test_world_without_a_time_bound():
  world = simulators.World(['MathAPI'], {})
  assert world.call(Call('add', (1, 2)), 0).text == '{"result": 3}'
