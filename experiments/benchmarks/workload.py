"""The dialogues of the rollout benchmark: the same for every engine.

Pieces are random token ids, and each message has a length that was drawn
before, instead of an end token: whatever an engine samples, it feeds and
samples the same number of tokens at the same places. rods_jax plays them with
its own rollout loop; the format and the environment here stand for a family's
and for BFCL's.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import time

import numpy as np

from rods_jax import types
from rods_jax.device import model
from rods_jax.host import env
from rods_jax.host import env_pool
from rods_jax.host import rollout

_SMOLLM2 = dict(
    d_model=576, num_heads=9, num_kv_heads=3, head_dim=64, mlp_dim=1536,
    rms_eps=1e-5, rope_theta=1e5, qk_norm=False,
)


@dataclasses.dataclass(frozen=True)
class Scale:
  """Sizes of a run; lengths in tokens.

  Attributes:
    tasks, samples: trajectories are tasks * samples.
    turns: of a trajectory; a turn is a user's words, a message that calls a
      tool, its result, and a message.
    prompt, user, result: mean lengths of the pieces.
    mean, most: of the messages.
    slots: rows that are decoded together, and the batch of the others.
    buckets, chunks: see rods_jax.engine.Engine.
    config: shape of the decoder.
    few: trajectories of the slowest baseline.
  """

  tasks: int
  samples: int
  turns: int
  prompt: int
  user: int
  result: int
  mean: float
  most: int
  slots: int
  buckets: tuple[int, ...]
  chunks: tuple[int, ...]
  config: model.ModelConfig
  few: int

  @property
  def total(self) -> int:
    return self.tasks * self.samples

  @property
  def messages(self) -> int:
    return 2 * self.turns

  @property
  def extend_rows(self) -> int:
    """Pieces per prefill step."""
    return min(4, self.slots)


SCALES = {
    # SmolLM2-135M's shape.
    'full': Scale(
        tasks=16, samples=8, turns=4, prompt=128, user=16, result=24, mean=12,
        most=48, slots=16, buckets=(128, 256, 384, 512, 640),
        chunks=(8, 12, 16, 24, 32),
        config=model.ModelConfig(vocab_size=49_152, num_layers=30, **_SMOLLM2),
        few=4,
    ),
    # A look on a busy machine: few trajectories through some of its layers.
    'short': Scale(
        tasks=8, samples=4, turns=2, prompt=128, user=16, result=24, mean=12,
        most=48, slots=8, buckets=(128, 256, 384), chunks=(16, 32, 128),
        config=model.ModelConfig(vocab_size=49_152, num_layers=4, **_SMOLLM2),
        few=2,
    ),
    'tiny': Scale(
        tasks=2, samples=3, turns=2, prompt=9, user=4, result=5, mean=4,
        most=8, slots=4, buckets=(32, 128), chunks=(4, 8),
        config=model.ModelConfig(
            vocab_size=96, d_model=32, num_layers=2, num_heads=4,
            num_kv_heads=2, head_dim=8, mlp_dim=48, rms_eps=1e-5,
            rope_theta=1e5, qk_norm=False,
        ),
        few=2,
    ),
}


class Clock:
  """Time since it was made, on the wall and on processors.

  On a shared machine the second is the fairer one, if threads that wait do not
  spin: set OMP_WAIT_POLICY=passive for PyTorch.
  """

  def __init__(self):
    self._wall, self._cpu = time.perf_counter(), time.process_time()

  def measured(self, sampled: int) -> dict[str, float]:
    """The times, and rates of `sampled` tokens."""
    seconds = time.perf_counter() - self._wall
    cpu_s = time.process_time() - self._cpu
    return {
        'seconds': seconds,
        'cpu_s': cpu_s,
        'sampled_tokens': int(sampled),
        'tokens_per_s': sampled / seconds,
        'tokens_per_cpu_s': sampled / cpu_s,
    }


class Dialogues:
  """What every engine is fed with, and when its messages end.

  Attributes:
    scale: its sizes.
    lengths: int [total, messages], tokens of each message.
  """

  def __init__(self, scale: Scale, deviation: float, seed: int = 0):
    """`deviation` is that of the logarithm of the messages' lengths."""
    self.scale = scale
    random = np.random.default_rng(seed)
    drawn = random.lognormal(
        np.log(scale.mean) - deviation**2 / 2, deviation,
        (scale.total, scale.messages),
    )
    self.lengths = np.clip(np.rint(drawn).astype(int), 1, scale.most)

  def piece(self, uid: int, message: int) -> list[int]:
    """The ids that stand before a message of a trajectory."""
    return self.ids(self.text(uid, message))

  def text(self, uid: int, message: int) -> str:
    """A name for the piece; all of a task share prompt and user's words."""
    if message % 2:
      return f'result {uid} {message}'
    name = 'user' if message else 'prompt'
    return f'{name} {uid // self.scale.samples} {message}'

  def ids(self, text: str) -> list[int]:
    """The tokens of such a name; their number varies around the mean."""
    name, owner, message = text.split()
    mean = getattr(self.scale, name)
    kind = ('prompt', 'user', 'result').index(name)
    random = np.random.default_rng([kind, int(owner), int(message)])
    size = int(random.integers(max(2, mean * 3 // 4), mean * 5 // 4 + 1))
    return random.integers(2, self.scale.config.vocab_size, size).tolist()

  def jobs(self) -> list[rollout.Job]:
    s = self.scale
    return [
        rollout.Job(self._task(uid // s.samples), uid % s.samples, uid)
        for uid in range(s.total)
    ]

  def _task(self, index: int) -> types.Task:
    uid = index * self.scale.samples
    turns = tuple(
        types.Turn(self.text(uid, 2 * turn), ())
        for turn in range(self.scale.turns)
    )
    return types.Task(f'task {index}', 'base', index, (), {}, turns)

  @property
  def budgets(self) -> rollout.Budgets:
    """One round in each turn: the second message closes it."""
    return rollout.Budgets(
        self.scale.most, env.Limits(max_rounds=1), refill_below=0.9
    )


class Format:
  """Reads the names of pieces; finds one call in each message."""

  end_id, end_ids = 0, (0,)

  def __init__(self, dialogues: Dialogues):
    self._ids = dialogues.ids

  def prompt(self, tools, text: str) -> list[int]:
    return self._ids(text)

  def turn(self, text: str, new_tools=()) -> list[int]:
    return self._ids(text)

  def results(self, texts: Sequence[str]) -> list[int]:
    return self._ids(texts[0])

  def text(self, message: Sequence[int]) -> str:
    return ''

  def parse(self, text: str) -> list[types.Call]:
    return [types.Call('tool')]


class _Episode(env.Book):
  """Answers each message with the piece that is due."""

  broken = False

  def __init__(self, task, limits, dialogues: Dialogues, uid: int):
    super().__init__(task, limits)
    self._dialogues, self._uid = dialogues, uid

  def execute(self, calls: Sequence[types.Call]) -> list[env.ToolResult]:
    self._count_message()
    self._count_result(True)
    text = self._dialogues.text(self._uid, 2 * self.turn + 1)
    return [env.ToolResult(text, True)]

  def end_turn(self, forced: bool = False) -> types.TurnScore:
    score = types.TurnScore(True, True)
    self._close_turn(score, forced)
    return score


class Environments(env_pool.InProcess):
  """Episodes are started in the order of the jobs, which gives their uid."""

  def __init__(self, dialogues: Dialogues, first: int = 0, tool_s: float = 0.0):
    self._dialogues, self._uid, self._tool_s = dialogues, first, tool_s

  def start(self, task: types.Task, limits: env.Limits) -> _Episode:
    self._uid += 1
    return _Episode(task, limits, self._dialogues, self._uid - 1)

  def execute(self, batch):
    if self._tool_s and batch:
      time.sleep(self._tool_s * len(batch))
    return super().execute(batch)


@dataclasses.dataclass
class _Part:
  """What a slot sampled; its message ends where its length says."""

  tokens: np.ndarray
  logprobs: np.ndarray
  finished: bool


class Planned:
  """A generator that ends messages at their lengths, and counts.

  Attributes:
    steps: decode steps, of which each computes all slots.
    sampled: tokens; of all slots, with what was sampled in `steps`.
    busy_steps, busy_sampled: the same while trajectories still waited.
  """

  def __init__(self, engine, dialogues: Dialogues, last: int):
    """`last` is the uid of the trajectory that starts last."""
    self._engine, self._lengths, self._last = engine, dialogues.lengths, last
    self.num_slots, self.capacity = engine.num_slots, engine.capacity
    self.copy = engine.copy
    self.extend = engine.extend
    self._uids: dict[int, int] = {}
    self._message: dict[int, int] = {}
    self._left: dict[int, int] = {}
    self._busy = True
    self.steps = self.sampled = self.busy_steps = self.busy_sampled = 0

  def start(self, slot: int, uid: int) -> None:
    self._engine.start(slot, uid)
    self._uids[slot], self._message[slot] = uid, -1
    self._next(slot)
    self._busy = self._busy and uid != self._last

  def _next(self, slot: int) -> None:
    self._message[slot] += 1
    lengths = self._lengths[self._uids[slot]]
    if self._message[slot] < len(lengths):
      self._left[slot] = int(lengths[self._message[slot]])

  def begin_decode(
      self, budgets: Mapping[int, int], min_running: int
  ) -> Callable[[], dict[int, _Part]]:
    capped = {s: min(n, self._left[s]) for s, n in budgets.items()}
    finish = self._engine.begin_decode(capped, min_running)
    return lambda: self._take(finish())

  def _take(self, completions) -> dict[int, _Part]:
    counts = [len(done.tokens) for done in completions.values()]
    steps, sampled = max(counts), sum(counts)
    self.steps, self.sampled = self.steps + steps, self.sampled + sampled
    if self._busy:
      self.busy_steps += steps
      self.busy_sampled += sampled
    parts = {}
    for slot, done in completions.items():
      self._left[slot] -= len(done.tokens)
      ended = not self._left[slot]
      parts[slot] = _Part(done.tokens, done.logprobs, ended)
      if ended:
        self._next(slot)
    return parts
