"""The rollout engine: slots with append-only rows and a cache behind them.

Numpy in, numpy out; the only stateful thing on the device side. It keeps each
slot's row on the host, cuts what is to be prefilled into pieces, and holds the
cache of exactly one policy version. The programs are those of programs.py.
"""

import dataclasses
from typing import Any, Callable, Mapping, Sequence

from flax import nnx
import jax
import numpy as np

from rods_jax import programs as programs_lib
from rods_jax.device import cache as cache_lib
from rods_jax.device import generate
from rods_jax.device import model
from rods_jax.device import sampling

# What a prefill step costs beside its tokens, in tokens: measured 22 to 24 on
# CPU, for the small policy and for SmolLM2-135M's shape. An accelerator's is
# larger, but small beside the pieces that are used there.
_STEP_TOKENS = 24


@dataclasses.dataclass(frozen=True)
class Completion:
  """What one slot sampled in one call of decode.

  Attributes:
    tokens: int32 [n], appended to the slot's row; the end token included.
    logprobs: float32 [n], at the sampling temperature.
    finished: the last token is the end token. False where the budget or the
      capacity ran out, or the slot was left running.
  """

  tokens: np.ndarray
  logprobs: np.ndarray
  finished: bool


class Engine:
  """Slots that are extended with given tokens and with sampled ones.

  Attributes:
    lengths: int32 [num_slots], tokens in each row. Read only.
    capacity: most tokens of a row.
  """

  def __init__(
      self,
      graphdef: nnx.GraphDef,
      mesh: jax.sharding.Mesh,
      model_config: model.ModelConfig,
      *,
      num_slots: int,
      cache_buckets: Sequence[int],
      extend_buckets: Sequence[int],
      extend_rows: int,
      max_new: int,
      end_id: int | tuple[int, ...],
      pad_id: int,
      programs: programs_lib.Programs | None = None,
  ):
    """Makes an engine without parameters; call `reset` before anything else.

    Args:
      graphdef: of model.create.
      mesh: of sharding.make_mesh.
      model_config: shape of the decoder.
      num_slots: rows that are decoded together.
      cache_buckets: context lengths, rising: attention reads up to the next
        one of them. The last is the most tokens of a row.
      extend_buckets: tokens per prefilled piece, rising.
      extend_rows: pieces per prefill step: a step's cost is that of
        extend_rows * piece tokens and a constant, whatever num_slots is.
      max_new: most tokens of one decode call per slot.
      end_id: token that ends a message, or all that do.
      pad_id: fills unused places; never read.
      programs: of an engine made with the same arguments; compiled once then.

    Raises:
      ValueError: a size or list that makes no sense; says which.
    """
    _check_rising('rollout.cache_buckets', cache_buckets)
    _check_rising('rollout.extend_buckets', extend_buckets)
    for name, value in (('num_slots', num_slots), ('extend_rows', extend_rows),
                        ('max_new', max_new)):
      if value < 1:
        raise ValueError(f'rollout.{name} is {value}; it must be at least 1.')
    self._config = model_config
    self._buckets = tuple(cache_buckets)
    self._chunks = tuple(extend_buckets)
    self._block_rows = extend_rows
    self._max_lanes = -(-num_slots // extend_rows) * extend_rows
    self._max_new, self._pad_id = max_new, pad_id
    self.num_slots = num_slots
    self.capacity = self._buckets[-1]
    self._clear()
    self._params = None
    self._sampler = None
    self._programs = programs or programs_lib.Programs(
        graphdef, mesh, model_config,
        programs_lib.Sizes(
            num_slots, self._buckets, extend_rows, self._max_lanes, max_new
        ),
        end_id=end_id, pad_id=pad_id,
    )

  def _clear(self) -> None:
    self.lengths = np.zeros(self.num_slots, np.int32)
    shape = (self.num_slots, self.capacity)
    self._rows = np.full(shape, self._pad_id, np.int32)
    self._uids = np.zeros(self.num_slots, np.uint32)
    self._started = np.zeros(self.num_slots, bool)
    self._cache: cache_lib.Cache | None = None
    self._at_work = False  # a begun decode was not taken yet

  @property
  def num_programs(self) -> int:
    """Programs compiled so far."""
    return self._programs.num_traces

  def reset(
      self,
      params: Any,
      key: jax.Array,
      *,
      temperature: float,
      greedy: bool = False,
      top_k: int = 0,
      top_p: float = 1.0,
  ) -> None:
    """Takes a new policy version: empties all slots and drops the cache.

    Args:
      params: of model.create; placed on the mesh if they are not yet.
      key: base of the sampling streams of this version.
      temperature: above 0.
      greedy: take the most likely tokens; logprobs are at temperature 1.
      top_k: sample among the k most likely tokens; 0 for all.
      top_p: among the fewest tokens with this share; 1 for all. Logprobs are
        of what top_k and top_p leave.

    Raises:
      ValueError: a value that makes no sense; says which.
    """
    if not temperature > 0:
      raise ValueError(
          f'rollout.temperature is {temperature}; it must be above 0.'
      )
    if top_k < 0 or not 0 < top_p <= 1:
      raise ValueError(
          f'rollout.top_k is {top_k} and top_p is {top_p}; they must be at '
          'least 0, and above 0 and at most 1.'
      )
    self.release()  # or the copy of the policy before would stand beside
    self._take(self._programs.place(params), sampling.Sampler(
        key, np.float32(temperature), np.bool_(greedy), np.int32(top_k),
        np.float32(top_p),
    ))

  def follow(self, leader: 'Engine') -> None:
    """`reset` to the policy version of an engine with the same programs."""
    self.release()
    self._take(leader._params, leader._sampler)

  def _take(self, placed: Any, sampler: sampling.Sampler) -> None:
    self._params, self._sampler = placed, sampler
    self._cache = self._programs.empty_cache()

  @property
  def programs(self) -> programs_lib.Programs:
    """The programs, for those who want to look at them."""
    return self._programs

  def release(self) -> None:
    """Frees cache and parameters for the update; `reset` makes them anew."""
    self._clear()
    self._params = None

  def start(self, slot: int, uid: int) -> None:
    """Empties a slot for a new row with the random stream `uid` (uint32)."""
    self._check_slot(slot, started=False)
    self.lengths[slot] = 0
    self._rows[slot] = self._pad_id
    self._uids[slot] = uid
    self._started[slot] = True

  def extend(self, rows: Mapping[int, np.ndarray]) -> None:
    """Appends given tokens to the rows of slots.

    Args:
      rows: slot -> int [n], ids in [0, V); n may be 0.

    Raises:
      ValueError: slot not started, id out of range, or a row that would get
        longer than the capacity. Nothing is changed then.
    """
    rows = {slot: np.asarray(tokens) for slot, tokens in rows.items()}
    for slot, tokens in rows.items():
      self._check_slot(slot)
      self._check_tokens(slot, tokens)
    pieces = []  # (slot, first position, last position + 1) to feed
    for slot, tokens in rows.items():
      old = self.lengths[slot]
      new = old + len(tokens)
      self._rows[slot, old:new] = tokens
      self.lengths[slot] = new
      first = max(old - 1, 0)
      if len(tokens) and new - 1 > first:
        pieces.append((slot, first, new - 1))
    if pieces:
      self._prefill(pieces)

  def _prefill(self, pieces: Sequence[tuple[int, int, int]]) -> None:
    chunk = self._cheapest_chunk([last - first for _, first, last in pieces])
    lanes = [
        (slot, start, min(chunk, last - start))
        for slot, first, last in pieces
        for start in range(first, last, chunk)
    ]
    for begin in range(0, len(lanes), self._max_lanes):
      part = lanes[begin : begin + self._max_lanes]
      tokens = np.full((self._max_lanes, chunk), self._pad_id, np.int32)
      meta = np.zeros((4, self._max_lanes), np.int32)
      for lane, (slot, start, count) in enumerate(part):
        tokens[lane, :count] = self._rows[slot, start : start + count]
        previous = self._rows[slot, start - 1] if start else 0
        meta[:, lane] = slot, start, count, previous
      batch = generate.Lanes(tokens, *meta, used=np.int32(len(part)))
      self._cache = self._programs.extend(self._params, self._cache, batch)

  def _cheapest_chunk(self, counts: Sequence[int]) -> int:
    """The piece length that takes least time; the longest of equals."""

    def cost(chunk):
      lanes = sum(-(-count // chunk) for count in counts)
      blocks = -(-lanes // self._block_rows)
      return blocks * (self._block_rows * chunk + _STEP_TOKENS)

    return min(reversed(self._chunks), key=cost)

  def copy(self, src: int, dsts: Sequence[int], length: int) -> None:
    """Makes rows of `dsts` the first `length` tokens of the row of `src`.

    Args:
      src: slot to copy from.
      dsts: empty, started slots.
      length: tokens, at most the length of src's row.

    Raises:
      ValueError: src or a dst not started, a dst not empty, length too long.
    """
    self._check_slot(src)
    for dst in dsts:
      self._check_slot(dst)
      if self.lengths[dst] or dst == src:
        raise ValueError(f'slot {dst} is not empty; start it before copy.')
    if not 0 <= length <= self.lengths[src]:
      raise ValueError(
          f'slot {src} has {self.lengths[src]} tokens; cannot copy {length}.'
      )
    dsts = list(dict.fromkeys(dsts))
    self._rows[dsts, :length] = self._rows[src, :length]
    self.lengths[dsts] = length
    if length < 2 or not dsts:
      return  # one token is pending only: nothing is cached
    padded = np.zeros(self.num_slots, np.int32)
    padded[: len(dsts)] = dsts
    self._cache = self._programs.copy(
        self._cache, np.int32(src), padded, np.int32(len(dsts)),
        np.int32(length - 1),
    )

  def decode(
      self, budgets: Mapping[int, int], min_running: int = 0
  ) -> dict[int, Completion]:
    """`begin_decode`, and waits for it."""
    return self.begin_decode(budgets, min_running)()

  def begin_decode(
      self, budgets: Mapping[int, int], min_running: int = 0
  ) -> Callable[[], dict[int, Completion]]:
    """Samples in the given slots until they end or use up their budgets.

    The device works on while the caller does; until the result was taken, the
    engine can do nothing else.

    Args:
      budgets: slot -> most tokens to sample now, 1 to max_new.
      min_running: stop, after at least one token, as soon as at most this
        many slots still run.

    Returns:
      Waits when called, once, for
      slot -> what was appended to its row. A row never gets longer than the
      capacity: there it stops, unfinished, perhaps with no token at all.

    Raises:
      ValueError: slot not started or empty, budget out of range.
    """
    limits = np.zeros(self.num_slots, np.int32)
    for slot, budget in budgets.items():
      self._check_slot(slot)
      if not self.lengths[slot]:
        raise ValueError(f'slot {slot} is empty; extend it before decode.')
      if not 1 <= budget <= self._max_new:
        raise ValueError(
            f'budget {budget} of slot {slot} is not within 1 to '
            f'{self._max_new}.'
        )
      limits[slot] = min(budget, self.capacity - self.lengths[slot])
    if not limits.any():
      return lambda: {
          slot: self._append(slot, [], [], False) for slot in budgets
      }
    every = np.arange(self.num_slots)
    pending = self._rows[every, self.lengths - 1]
    previous = self._rows[every, self.lengths - 2]
    slots = generate.Slots(
        pending,
        np.where(self.lengths < 2, 0, previous),
        self.lengths.copy(),
        limits,
        self._uids,
    )
    self._cache, sampled = self._programs.decode(
        self._params, self._cache, slots, self._sampler, np.int32(min_running)
    )
    self._at_work = True
    return lambda: self._finish_decode(budgets, sampled)

  def _finish_decode(self, slots, sampled) -> dict[int, Completion]:
    sampled = jax.device_get(sampled)
    self._at_work = False
    return {
        slot: self._append(
            slot,
            sampled.tokens[slot, : sampled.counts[slot]],
            sampled.logprobs[slot, : sampled.counts[slot]],
            bool(sampled.finished[slot]),
        )
        for slot in slots
    }

  def _append(self, slot, tokens, logprobs, finished) -> Completion:
    old = self.lengths[slot]
    self._rows[slot, old : old + len(tokens)] = tokens
    self.lengths[slot] += len(tokens)
    return Completion(
        np.array(tokens, np.int32), np.array(logprobs, np.float32), finished
    )

  def _check_slot(self, slot: int, started: bool = True) -> None:
    if self._params is None:
      raise ValueError('the engine has no parameters; call reset first.')
    if self._at_work:
      raise ValueError('the engine decodes; take its result first.')
    if not 0 <= slot < self.num_slots:
      raise ValueError(f'slot {slot} is not within 0 to {self.num_slots - 1}.')
    if started and not self._started[slot]:
      raise ValueError(f'slot {slot} has no row; call start first.')

  def _check_tokens(self, slot: int, tokens: np.ndarray) -> None:
    if tokens.ndim != 1:
      raise ValueError(f'tokens for slot {slot} must be one flat list.')
    if len(tokens) and not (
        0 <= tokens.min() and tokens.max() < self._config.vocab_size
    ):
      raise ValueError(
          f'tokens for slot {slot} hold an id outside 0 to '
          f'{self._config.vocab_size - 1}.'
      )
    if self.lengths[slot] + len(tokens) > self.capacity:
      raise ValueError(
          f'slot {slot} has {self.lengths[slot]} tokens; {len(tokens)} more '
          f'do not fit into the capacity of {self.capacity}.'
      )


def _check_rising(name: str, values: Sequence[int]) -> None:
  values = list(values)
  if not values or values[0] < 1 or values != sorted(set(values)):
    raise ValueError(f'{name} is {values}; give rising positive lengths.')
