"""The client against a real server: failures, retries, the account, the cache.

Pauses are a thousandth of what they are by default, see Server.config.
"""

import asyncio
import datetime
import email.utils
import json
import socket
import subprocess
import sys

import pytest

from rods_jax import errors
from rods_jax.host.synthesis.llm import client as client_lib
from rods_jax.host.synthesis.llm.records import (
    Answer,
    Failure,
    LlmConfig,
    Question,
    Usage,
)
from tests.llm_server import Reply, serve

QUESTION = Question((('system', 'Be brief.'), ('user', 'Well?')), seed=5)


@pytest.fixture(autouse=True)
def no_key_and_no_proxy(monkeypatch):
  for name in ('OPENAI_API_KEY', 'HTTP_PROXY', 'http_proxy', 'ALL_PROXY'):
    monkeypatch.delenv(name, raising=False)


def ask(config, *questions):
  """(answers, account) of questions that are asked together."""
  usage = Usage()

  async def go():
    client = client_lib.Client(config, usage)
    try:
      return await asyncio.gather(*map(client.answer, questions))
    finally:
      await client.close()

  return asyncio.run(go()), usage


def numbered(*replies):
  """A script that sends these, and the last one for ever."""
  left = list(replies)
  return lambda body: left.pop(0) if len(left) > 1 else left[0]


def test_a_question_is_sent_and_its_answer_counted():
  """1,000 tokens read at 2 a million and 10 written at 30 a million make
  0.0020 + 0.0003; with the prices exchanged it would be 0.03002."""
  with serve(numbered(Reply('Yes.'))) as server:
    config = server.config(
        temperature=0.5, max_tokens=7, prompt_price=2.0, completion_price=30.0
    )
    (answer,), usage = ask(config, QUESTION)
  assert answer == Answer('Yes.', cut=False)
  assert server.requests == [{
      'model': 'm', 'seed': 5, 'temperature': 0.5, 'top_p': 0.7,
      'max_tokens': 7, 'response_format': {'type': 'json_object'},
      'messages': [
          {'role': 'system', 'content': 'Be brief.'},
          {'role': 'user', 'content': 'Well?'},
      ],
  }]  # pyformat: disable
  assert usage.cost == pytest.approx(0.0023)
  assert (usage.prompt_tokens, usage.completion_tokens) == (1000, 10)
  assert (usage.requests, usage.retries, usage.failures) == (1, 0, 0)


@pytest.mark.parametrize(
    'first',
    [
        Reply('busy', 429),
        Reply('oops', 500),
        Reply('gone', 503),
        Reply('late', 408),
        Reply(b'{"choices": [{"mess'),
        Reply(b'<html>Welcome</html>', headers={'Content-Type': 'text/html'}),
        Reply(b'{"choices": []}'),
        Reply(b'[]'),
        Reply(b'null'),
        Reply(''),
        Reply('slow', delay_s=1.5),
    ],
    ids=lambda r: f'{r.status}-{r.text[:12]}-{r.delay_s}',
)
def test_what_may_pass_is_tried_again(first):
  with serve(numbered(first, Reply('Yes.'))) as server:
    config = server.config(timeout_s=1.0 if first.delay_s else 20.0)
    (answer,), usage = ask(config, QUESTION)
  assert answer == Answer('Yes.')
  assert (usage.requests, usage.retries, usage.failures) == (2, 1, 0)


@pytest.mark.parametrize(
    ('reply', 'reason', 'requests'),
    [
        (Reply('x', 500), 'the server answered 500', 3),
        (Reply('x', 429), 'the server answered 429', 3),
        (Reply('x', 401), 'the server answered 401', 1),
        (Reply('x', 404), 'the server answered 404', 1),
        (Reply(''), 'the answer is empty', 3),
        (Reply(b'{'), 'the server sent something unreadable', 3),
        (Reply('x', delay_s=0.6), 'the server took too long', 3),
    ],
    ids=lambda value: str(getattr(value, 'status', value)),
)
def test_what_does_not_pass_is_a_failure(reply, reason, requests):
  """One try and max_retries more, 2; a wrong key gets no better."""
  with serve(numbered(reply)) as server:
    config = server.config(timeout_s=0.2 if reply.delay_s else 20.0)
    (answer,), usage = ask(config, QUESTION)
  assert answer == Failure(reason)
  assert usage.requests == len(server.requests) == requests
  assert (usage.retries, usage.failures) == (requests - 1, 1)
  assert usage.prompt_tokens == (3000 if reason.endswith('empty') else 0)


def closed_port():
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return s.getsockname()[1]


def test_nobody_listens():
  url = f'http://127.0.0.1:{closed_port()}/v1'
  config = LlmConfig(url, 'm', max_retries=2, backoff_s=0.001, timeout_s=20.0)
  (answer,), usage = ask(config, QUESTION)
  assert answer == Failure('no connection to the server')
  assert (usage.requests, usage.failures) == (3, 1)


def pauses(monkeypatch):
  """The client's pauses, which then take no time."""
  taken, sleep = [], asyncio.sleep

  async def note(seconds):
    taken.append(seconds)
    await sleep(0)

  monkeypatch.setattr(client_lib.asyncio, 'sleep', note)
  return taken


def test_pauses_double(monkeypatch):
  """backoff_s 10: between half and all of 10, 20, 40, and then of 60."""
  taken = pauses(monkeypatch)
  with serve(numbered(Reply('x', 500))) as server:
    ask(server.config(max_retries=4, backoff_s=10.0), QUESTION)
  assert len(taken) == 4
  for pause, whole in zip(taken, (10, 20, 40, 60)):
    assert whole / 2 <= pause <= whole


def date(seconds):
  now = datetime.datetime.now(datetime.timezone.utc)
  return email.utils.format_datetime(
      now + datetime.timedelta(seconds=seconds), usegmt=True
  )


@pytest.mark.parametrize('header', ['7', '7.0', lambda: date(7.5)])
def test_the_server_says_how_long_to_wait(header, monkeypatch):
  """By itself the client would wait a thousandth of a second."""
  taken = pauses(monkeypatch)
  value = header() if callable(header) else header
  first = Reply('x', 429, {'Retry-After': value})
  with serve(numbered(first, Reply('Yes.'))) as server:
    (answer,), _ = ask(server.config(), QUESTION)
  assert answer == Answer('Yes.')
  assert taken == [pytest.approx(7, abs=1.5)]


@pytest.mark.parametrize('header', ['soon', 'nan', '', '12 May'])
def test_a_wait_that_says_nothing_is_ones_own(header, monkeypatch):
  taken = pauses(monkeypatch)
  first = Reply('x', 503, {'Retry-After': header})
  with serve(numbered(first, Reply('Yes.'))) as server:
    ask(server.config(), QUESTION)
  assert len(taken) == 1 and taken[0] <= 0.001


def test_a_wait_of_an_hour_is_a_failure():
  with serve(numbered(Reply('x', 429, {'Retry-After': '3600'}))) as server:
    (answer,), usage = ask(server.config(), QUESTION)
  assert answer == Failure(
      'the server answered 429, and asks for a longer pause'
  )
  assert usage.requests == 1


def others(count):
  return [
      Question(QUESTION.messages, seed) for seed in range(100, 100 + count)
  ]


def test_a_dead_server_is_given_up():
  """Eight questions of three tries each; the other 12 send nothing."""
  with serve(numbered(Reply('x', 500))) as server:
    found, usage = ask(server.config(concurrency=1), *others(20))
  assert usage.requests == 3 * client_lib.GIVE_UP == 24
  assert usage.failures == 20
  assert found[-1] == Failure('the server has been given up')


def test_so_many_at_once_and_no_more():
  with serve(lambda body: Reply(str(body['seed']), delay_s=0.05)) as server:
    found, _ = ask(server.config(concurrency=3), *others(12))
  assert server.most == 3
  assert [a.text for a in found] == [str(n) for n in range(100, 112)]


def test_known_answers_cost_nothing(tmp_path):
  """Also those that were cut; another seed or temperature is not known."""
  script = numbered(Reply('{"a": ', finish='length'), Reply('Yes.'))
  with serve(script) as server:
    config = server.config(cache=str(tmp_path / 'c'))
    first, _ = ask(config, QUESTION, *others(1))
    again, usage = ask(config, QUESTION, *others(1))
    assert again == first and {a.cut for a in again} == {True, False}
    assert (usage.requests, usage.cached, usage.cost) == (0, 2, 0.0)
    assert len(server.requests) == 2
    _, usage = ask(server.config(cache=config.cache, temperature=0.9), QUESTION)
    assert (usage.requests, usage.cached) == (1, 0)


def test_failures_are_not_kept(tmp_path):
  with serve(numbered(Reply('x', 401), Reply('Yes.'))) as server:
    config = server.config(cache=str(tmp_path))
    assert ask(config, QUESTION)[0] == [Failure('the server answered 401')]
    assert ask(config, QUESTION)[0] == [Answer('Yes.')]


@pytest.mark.parametrize('damage', ['', '{"text": "Ye', '{"text": 3}', '[1]'])
def test_a_damaged_file_is_asked_for_again(damage, tmp_path):
  with serve(numbered(Reply('Yes.'))) as server:
    config = server.config(cache=str(tmp_path))
    ask(config, QUESTION)
    (path,) = tmp_path.rglob('*.json')
    path.write_text(damage)
    assert ask(config, QUESTION)[0] == [Answer('Yes.')]
    assert json.loads(path.read_text())['text'] == 'Yes.'


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, caplog):
  (tmp_path / 'file').write_text('')
  with serve(numbered(Reply('Yes.'))) as server:
    config = server.config(cache=str(tmp_path / 'file' / 'c'))
    found, _ = ask(config, *others(2))
  assert found == [Answer('Yes.')] * 2
  assert caplog.text.count('cannot be written') == 1


def test_the_key_comes_from_the_environment_and_stays_there(
    tmp_path, monkeypatch
):
  monkeypatch.setenv('OPENAI_API_KEY', ' sk-secret\n')
  script = numbered(Reply('bad key sk-secret', 401), Reply('Yes.'))
  with serve(script) as server:
    config = server.config(cache=str(tmp_path))
    (failed,), _ = ask(config, QUESTION)
    ask(config, QUESTION)
  assert server.keys == ['Bearer sk-secret'] * 2
  assert 'secret' not in str(failed)
  kept = ''.join(p.read_text() for p in tmp_path.rglob('*.json'))
  assert 'Yes.' in kept and 'secret' not in kept


def test_answers_without_a_count_are_told_apart():
  body = json.loads(Reply('Yes.').body())
  for usage in (None, {'prompt_tokens': None, 'completion_tokens': 3}):
    body['usage'] = usage
    with serve(numbered(Reply(json.dumps(body).encode()))) as server:
      (answer,), counted = ask(server.config(), QUESTION)
    assert answer == Answer('Yes.')
    assert (counted.unmetered, counted.prompt_tokens) == (1, 0)


def test_half_characters_are_replaced(tmp_path):
  """They could neither be written to the cache nor sent again."""
  body = Reply('x').body().replace(b'"x"}', b'"a\\ud800b"}')
  with serve(numbered(Reply(body))) as server:
    (answer,), _ = ask(server.config(cache=str(tmp_path)), QUESTION)
  assert answer == Answer('a?b')


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
  find = client_lib.importlib.util.find_spec
  monkeypatch.setattr(
      client_lib.importlib.util, 'find_spec',
      lambda name: None if name == 'openai' else find(name),
  )
  with pytest.raises(errors.UserError) as caught:
    ask(LlmConfig('http://localhost/v1', 'm'), QUESTION)
  assert 'third_party/requirements-llm.txt' in str(caught.value)
  assert '\n' not in str(caught.value)


def test_the_package_is_imported_where_it_is_used_only():
  code = (
      'import sys, rods_jax.host.synthesis.background; '
      "print('openai' in sys.modules)"
  )
  run = subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert run.stdout.strip() == 'False'
