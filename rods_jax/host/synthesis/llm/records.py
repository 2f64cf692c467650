"""What is asked of a language model, what it answers, and what that costs."""

import dataclasses
import hashlib
import json
from typing import Any


@dataclasses.dataclass(frozen=True)
class LlmConfig:
  """Section synthesis.llm of the configuration; see configs/rods.py.

  The key of the server is no field: it is read from the environment and
  written nowhere.
  """

  base_url: str
  model: str
  temperature: float = 1.0
  top_p: float = 0.7
  max_tokens: int = 4096
  json_mode: bool = True
  concurrency: int = 8
  timeout_s: float = 120.0
  max_retries: int = 4
  backoff_s: float = 1.0
  prompt_price: float = 0.0
  completion_price: float = 0.0
  cache: str = ''


@dataclasses.dataclass(frozen=True)
class Question:
  """One request.

  Attributes:
    messages: (role, content), in order.
    seed: of the sampling; another one may get another answer.
  """

  messages: tuple[tuple[str, str], ...]
  seed: int

  def body(self, config: LlmConfig) -> dict[str, Any]:
    """The request's content, in the server's terms."""
    body = {
        'model': config.model,
        'messages': [
            {'role': role, 'content': content}
            for role, content in self.messages
        ],
        'seed': self.seed,
        'temperature': config.temperature,
        'top_p': config.top_p,
        'max_tokens': config.max_tokens,
    }
    if config.json_mode:
      body['response_format'] = {'type': 'json_object'}
    return body

  def key(self, config: LlmConfig) -> str:
    """64 hex digits over all that the answer depends on."""
    text = json.dumps(self.body(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Answer:
  """What the model says.

  Attributes:
    text: as it came.
    cut: whether it ended at the limit of max_tokens.
  """

  text: str
  cut: bool = False


@dataclasses.dataclass(frozen=True)
class Failure:
  """Why there is no answer, after all retries.

  Attributes:
    reason: one short line.
    refused: whether the server is there, but takes no such question.
  """

  reason: str
  refused: bool = False


@dataclasses.dataclass
class Health:
  """Whether a server answers; what is in a cache says nothing of it.

  Attributes:
    answered: whether it ever did.
    unanswered: questions in a row that it gave no answer to, up to the last.
    reason: of the last one of these, '' if there is none.
    refused: whether that one was refused as such.
    given_up: whether it is asked no more.
  """

  answered: bool = False
  unanswered: int = 0
  reason: str = ''
  refused: bool = False
  given_up: bool = False

  def note_answer(self) -> None:
    """Also one that comes after the server was given up revives it."""
    self.answered, self.unanswered = True, 0
    self.reason, self.given_up = '', False

  def note_failure(self, failure: Failure, most: int) -> None:
    """Gives the server up after `most` in a row; none is asked after that."""
    if not self.given_up:
      self.unanswered += 1
      self.reason, self.refused = failure.reason, failure.refused
      self.given_up = self.unanswered >= most


@dataclasses.dataclass
class Usage:
  """The account of a run.

  Attributes:
    requests: sent, retries included.
    cached: answers that were known and sent no request.
    retries: requests that were sent again.
    failures: questions that no retry got an answer to.
    unmetered: answers without a count of tokens; they are in no sum below.
    prompt_tokens: that were read, as the server counts.
    completion_tokens: that were written.
    cost: of both, in the currency of the prices.
  """

  requests: int = 0
  cached: int = 0
  retries: int = 0
  failures: int = 0
  unmetered: int = 0
  prompt_tokens: int = 0
  completion_tokens: int = 0
  cost: float = 0.0

  def count(self, config: LlmConfig, prompt: int, completion: int) -> None:
    """Adds one answer's tokens; prices are per million."""
    self.prompt_tokens += prompt
    self.completion_tokens += completion
    self.cost += prompt * config.prompt_price / 1e6
    self.cost += completion * config.completion_price / 1e6

  def since(self, before: 'Usage') -> dict[str, float]:
    """What came after an earlier state of the account."""
    return {
        field.name: getattr(self, field.name) - getattr(before, field.name)
        for field in dataclasses.fields(self)
    }
