"""Questions to an OpenAI-compatible server, many at once, and their retries.

A refused connection, a timeout, 408, 409, 429 and 5xx are tried again after a
pause that doubles, or that the server names (Retry-After); other answers of
the server are final. What the server says in an error is not passed on, as it
may quote the key. After GIVE_UP questions in a row without an answer the server
counts as gone, and what is left fails at once.
"""

import asyncio
import datetime
import email.utils
import importlib.util
import os
import random
from typing import Any, Mapping

from rods_jax import errors
from rods_jax.host.synthesis.llm import cache
from rods_jax.host.synthesis.llm.records import (
    Answer,
    Failure,
    Health,
    LlmConfig,
    Question,
    Usage,
)

INSTALL = 'pip install -r third_party/requirements-llm.txt'
KEY_VARIABLE = 'OPENAI_API_KEY'
MAX_WAIT_S = 60.0  # between two tries
GIVE_UP = 8
_TRANSIENT = (408, 409, 429)
_REFUSED = (400, 413, 422)  # it is the question's fault, such as its length


def require() -> None:
  """Raises UserError where the client's package is missing."""
  if importlib.util.find_spec('openai') is None:
    raise errors.UserError(
        "config.synthesis.language is 'openai', but the package openai is "
        f'not installed; run: {INSTALL}'
    )


class _Retry(Exception):
  """A try that failed and may be repeated.

  Attributes:
    reason: one short line.
    wait_s: what the server asks for; None where it does not say.
  """

  def __init__(self, reason: str, wait_s: float | None = None):
    super().__init__(reason)
    self.reason, self.wait_s = reason, wait_s


class _Final(Exception):
  """A try that failed in a way that no repetition mends: with a Failure."""

  def __init__(self, failure: Failure):
    super().__init__(failure.reason)
    self.failure = failure


class Client:
  """One server and its account; used inside one event loop."""

  def __init__(
      self, config: LlmConfig, usage: Usage, health: Health | None = None
  ):
    """Opens no connection yet.

    Args:
      config: of the server.
      usage: is counted up.
      health: is kept up to date.

    Raises:
      UserError: the package openai is missing.
    """
    require()
    import openai  # An optional requirement, and half a second.

    self._openai = openai
    self._config, self._usage = config, usage
    self._cache = cache.Cache(config.cache)
    self._slots = asyncio.Semaphore(config.concurrency)
    self._health = health or Health()
    self._client = openai.AsyncOpenAI(
        base_url=config.base_url,
        api_key=os.environ.get(KEY_VARIABLE, '').strip() or 'none',
        max_retries=0,  # The account counts each try.
        timeout=config.timeout_s,
    )

  async def close(self) -> None:
    await self._client.close()

  async def answer(self, question: Question) -> Answer | Failure:
    """The answer, known or asked for. Raises nothing for a bad server."""
    key, body = question.key(self._config), question.body(self._config)
    found = self._cache.get(key)
    if found is not None:
      self._usage.cached += 1
      return found
    async with self._slots:
      found = await self._persist(question, body)
    if isinstance(found, Failure):
      self._usage.failures += 1
      self._health.note_failure(found, GIVE_UP)
    else:
      self._health.note_answer()
      self._cache.put(key, body, found)
    return found

  async def _persist(
      self, question: Question, body: dict[str, Any]
  ) -> Answer | Failure:
    """Tries until there is an answer or no try is left."""
    for attempt in range(self._config.max_retries + 1):
      if self._health.given_up:
        return Failure('the server has been given up')
      self._usage.requests += 1
      self._usage.retries += attempt > 0
      try:
        return await self._once(body)
      except _Final as failed:
        return failed.failure
      except _Retry as failed:
        reason, wait = failed.reason, failed.wait_s
      if wait is None:
        wait = self._pause(question.seed, attempt)
      if wait > MAX_WAIT_S:
        return Failure(f'{reason}, and asks for a longer pause')
      if attempt < self._config.max_retries:
        await asyncio.sleep(wait)
    return Failure(reason)

  def _pause(self, seed: int, attempt: int) -> float:
    """Doubles, up to the longest; spread, so that not all come at once."""
    pause = min(self._config.backoff_s * 2**attempt, MAX_WAIT_S)
    return pause * random.Random(f'{seed}/{attempt}').uniform(0.5, 1.0)

  async def _once(self, body: dict[str, Any]) -> Answer:
    """One request. Raises _Retry or _Final."""
    openai = self._openai
    try:
      # The client's own limit is per piece of an answer.
      completion = await asyncio.wait_for(
          self._client.chat.completions.create(**body), self._config.timeout_s
      )
    except (asyncio.TimeoutError, openai.APITimeoutError):
      raise _Retry('the server took too long') from None
    except openai.APIStatusError as error:
      code = error.status_code
      if code in _TRANSIENT or code >= 500:
        raise _Retry(
            f'the server answered {code}', _retry_after(error.response.headers)
        ) from None
      raise _Final(
          Failure(f'the server answered {code}', code in _REFUSED)
      ) from None
    except openai.APIConnectionError:
      raise _Retry('no connection to the server') from None
    except (openai.OpenAIError, ValueError, TypeError, AttributeError):
      raise _Retry('the server sent something unreadable') from None
    return self._read(completion)

  def _read(self, completion: Any) -> Answer:
    """The text of a completion; its form is not taken for granted."""
    choices = getattr(completion, 'choices', None)
    if not isinstance(choices, (list, tuple)) or not choices:
      raise _Retry('the server sent something unreadable')
    text = getattr(getattr(choices[0], 'message', None), 'content', None)
    self._count(getattr(completion, 'usage', None))
    if not isinstance(text, str) or not text.strip():
      raise _Retry('the answer is empty')
    # Half a pair of surrogates could neither be kept nor sent again.
    text = text.encode('utf-8', 'replace').decode('utf-8')
    return Answer(text, getattr(choices[0], 'finish_reason', '') == 'length')

  def _count(self, usage: Any) -> None:
    counts = [
        getattr(usage, name, None)
        for name in ('prompt_tokens', 'completion_tokens')
    ]
    if all(type(count) is int and count >= 0 for count in counts):
      self._usage.count(self._config, *counts)
    else:
      self._usage.unmetered += 1


def _retry_after(headers: Mapping[str, str]) -> float | None:
  """Seconds that the server asks to wait: a number, or a date."""
  text = headers.get('retry-after', '')
  try:
    seconds = float(text)
  except ValueError:
    try:
      when = email.utils.parsedate_to_datetime(text)
      now = datetime.datetime.now(datetime.timezone.utc)
      seconds = (when - now).total_seconds()
    except (ValueError, TypeError):  # no date, or one without a zone
      return None
  return max(seconds, 0.0) if seconds == seconds else None
