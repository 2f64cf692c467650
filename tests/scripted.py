"""A rollout without a model: a generator that says what a script tells it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools

import numpy as np

from rods_jax import types
from rods_jax.host import bfcl
from rods_jax.host import chat_format
from rods_jax.host import demonstrate
from rods_jax.host import env
from rods_jax.host import env_pool
from rods_jax.host import rollout
from rods_jax.host import tokenizer as tokenizer_lib
from tests import worlds

# (uid, number of the message in its row, the row) -> ids of the message.
Say = Callable[[int, int, Sequence[int]], Iterable[int]]


@functools.cache
def tokenizer() -> tokenizer_lib.Tokenizer:
  """A small one, from the text of a few tasks."""
  tasks = bfcl.load_tasks(('base',))
  tools = sorted({t for c in bfcl.CLASSES for t in bfcl.tool_names(c)})
  parameters = sorted({p for t in tools for p in bfcl.parameters(t)})
  texts = []
  for name in list(tasks)[::20]:
    texts += demonstrate.texts(tasks[name])
  return tokenizer_lib.train(texts, tools, parameters, 1200)


@functools.cache
def fmt(max_result_tokens: int = 10_000) -> chat_format.CompactFormat:
  return chat_format.CompactFormat(tokenizer(), max_result_tokens)


def spoken(text: str) -> list[int]:
  """A message as the policy samples it: plain text and the end token."""
  return [*tokenizer().encode(text), tokenizer().end_id]


def script(*messages: str | Sequence[int]) -> Say:
  """Says the messages one by one, the same for each uid; then nothing."""
  ids = [spoken(m) if isinstance(m, str) else list(m) for m in messages]
  end = [tokenizer().end_id]
  return lambda uid, number, row: ids[number] if number < len(ids) else end


def logprob(uid: int, position: int) -> float:
  """Exact in float32, and another one for each place of each row."""
  return -(uid + 1) - position / 4096


@dataclasses.dataclass
class Generated:
  tokens: np.ndarray
  logprobs: np.ndarray
  finished: bool


class Generator:
  """Strict where rods_jax.engine.Engine is: a misuse fails the test.

  Attributes:
    rows: uid -> ids, as the device side holds them; kept after the end.
    log: (name, details) of each call, in order.
  """

  def __init__(self, say: Say, num_slots: int = 4, capacity: int = 100_000):
    self.num_slots, self.capacity = num_slots, capacity
    self.rows: dict[int, list[int]] = {}
    self.log: list[tuple] = []
    self._say = say
    self._at_work = False
    self._uids: dict[int, int] = {}
    self._message = {}  # slot -> what is left of its message
    self._number: dict[int, int] = {}

  def start(self, slot: int, uid: int) -> None:
    assert not self._at_work
    assert 0 <= slot < self.num_slots
    assert uid not in self.rows, 'a random stream is used twice'
    self._uids[slot], self.rows[uid] = uid, []
    self._message[slot], self._number[slot] = None, 0
    self.log.append(('start', slot, uid))

  def extend(self, rows: Mapping[int, np.ndarray]) -> None:
    for slot, ids in rows.items():
      row = self._row(slot)
      row += [int(i) for i in ids]
      assert len(row) <= self.capacity, 'a row longer than the capacity'
      self._message[slot] = None
    self.log.append(('extend', {s: len(ids) for s, ids in rows.items()}))

  def copy(self, src: int, dsts: Sequence[int], length: int) -> None:
    assert length <= len(self._row(src))
    for slot in dsts:
      assert not self._row(slot) and slot != src
      self._row(slot).extend(self._row(src)[:length])
    self.log.append(('copy', src, tuple(dsts), length))

  def begin_decode(
      self, budgets: Mapping[int, int], min_running: int
  ) -> Callable[[], dict[int, Generated]]:
    self.log.append(('decode', dict(budgets), min_running))
    self._at_work = True
    return lambda: self._decode(budgets, min_running)

  def _decode(self, budgets, min_running) -> dict[int, Generated]:
    self._at_work = False
    self.log.append(('taken',))
    made = {slot: Generated([], [], False) for slot in budgets}
    running = set(budgets)
    for slot, budget in budgets.items():
      assert self._row(slot), 'decode of an empty row'
      assert budget >= 1 and len(self._row(slot)) + budget <= self.capacity
    while running and (len(running) > min_running or not self._any(made)):
      for slot in sorted(running):
        self._sample(slot, made[slot])
        if made[slot].finished or len(made[slot].tokens) == budgets[slot]:
          running.remove(slot)
    for part in made.values():
      part.tokens = np.array(part.tokens, np.int32)
      part.logprobs = np.array(part.logprobs, np.float32)
    return made

  def count(self, name: str) -> int:
    return sum(entry[0] == name for entry in self.log)

  def _any(self, made) -> bool:
    return any(part.tokens for part in made.values())

  def _sample(self, slot: int, part: Generated) -> None:
    uid, row = self._uids[slot], self._row(slot)
    if self._message[slot] is None:
      said = self._say(uid, self._number[slot], list(row))
      self._message[slot] = iter(said)
      self._number[slot] += 1
    token = next(self._message[slot])
    part.tokens.append(token)
    part.logprobs.append(logprob(uid, len(row)))
    part.finished = token == tokenizer().end_id
    row.append(token)

  def _row(self, slot: int) -> list[int]:
    assert not self._at_work
    return self.rows[self._uids[slot]]


def play(
    task,
    say: Say,
    *,
    samples: int = 1,
    num_slots: int = 4,
    capacity: int = 100_000,
    max_message_tokens: int = 500,
    refill_below: float = 0.25,
    overlap_tokens: int = 0,
    max_result_tokens: int = 10_000,
    environments=env_pool.InProcess(),
    **limits,
):
  """Plays one task; (trajectories, generator)."""
  generator = Generator(say, num_slots, capacity)
  result = rollout.rollout(
      [rollout.Job(task, i, i) for i in range(samples)],
      generator,
      fmt(max_result_tokens),
      rollout.Budgets(
          max_message_tokens, env.Limits(**limits), refill_below, overlap_tokens
      ),
      environments=environments,
  )
  return result.trajectories, generator


def sampled(trajectory) -> list[list[int]]:
  """The runs of sampled tokens: the messages."""
  messages, inside = [], False
  for token, mask in zip(trajectory.tokens, trajectory.loss_mask):
    if mask and not inside:
      messages.append([])
    if mask:
      messages[-1].append(int(token))
    inside = bool(mask)
  return messages


def files(*truths, **kwargs):
  """A task in the file system of tests/worlds.py; truths turn by turn."""
  return worlds.make('GorillaFileSystem', truths=truths, **kwargs)


def ids(text: str) -> list[int]:
  return tokenizer().encode(text)


def control(name: str) -> int:
  return tokenizer().control(name)


def prompt(task):
  """The first piece of every row of the task."""
  offer = env.Episode(task).on_offer()
  return fmt().system(offer) + fmt().user(task.turns[0].user)


def check_row(trajectory, generator, uid=0):
  """What holds for every row, however it ended."""
  n = len(trajectory.tokens)
  assert len(trajectory.loss_mask) == len(trajectory.logprobs) == n
  assert n <= generator.capacity
  assert trajectory.tokens.tolist() == generator.rows[uid]
  expected = [
      logprob(uid, i) if mask else 0
      for i, mask in enumerate(trajectory.loss_mask)
  ]
  assert trajectory.logprobs.tolist() == expected
  assert isinstance(trajectory.status, types.Status)
  assert trajectory.turn_scores
  assert trajectory.num_parse_errors <= trajectory.num_rounds
  assert trajectory.num_rounds == sum(
      e.role == 'assistant' for e in trajectory.events
  )


@functools.cache
def sound_tasks() -> tuple[types.Task, ...]:
  """BFCL tasks whose ground truths have no known fault."""
  faults = bfcl.known_faults()
  return tuple(
      task
      for name, task in bfcl.load_tasks().items()
      if name not in faults and str(task.scenario) not in faults
  )
