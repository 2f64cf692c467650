"""Tests of engine.py: exact tokens, whatever the schedule.

The oracle is the training path: the row as the engine recorded it is run
through model.hidden without a cache, and must give the same logprobs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rods_jax import engine as engine_lib
from rods_jax.device import model

END, PAD = 1, 0
CAPACITY = 64


def _make(graphdef, mesh, config, **changes):
  fields = dict(
      num_slots=8, cache_buckets=(16, 32, CAPACITY), extend_buckets=(4, 8),
      extend_rows=2, max_new=24, end_id=END, pad_id=PAD,
  )
  return engine_lib.Engine(graphdef, mesh, config, **(fields | changes))


@pytest.fixture(scope='module')
def engine(small_model, mesh, small_config):
  return _make(small_model[0], mesh, small_config)


@pytest.fixture(scope='module')
def other(small_model, mesh, small_config):
  """Other slots, segments, pieces and padding, and the same results."""
  return _make(
      small_model[0], mesh, small_config, num_slots=8,
      cache_buckets=(24, CAPACITY), extend_buckets=(5,), extend_rows=3,
      pad_id=93,
  )


@pytest.fixture(scope='module')
def train_logprobs(small_model):
  graphdef, params = small_model

  @jax.jit
  def run(tokens, lengths, temperature):
    hidden = model.hidden(graphdef, params, tokens, lengths)
    logits = model.logits(graphdef, params, hidden)
    return jax.nn.log_softmax(logits / temperature)

  def one(row, new, temperature, top_k=0):
    """Logprobs of the last `new` tokens of a row."""
    padded = np.zeros((1, CAPACITY), np.int32)
    padded[0, : len(row)] = row
    table = np.asarray(run(padded, np.array([len(row)]), temperature))[0]
    index = np.arange(len(row) - new, len(row))
    if top_k:
      best = np.sort(table)[:, -top_k:]
      table = table - np.log(np.exp(best).sum(-1, keepdims=True))
    return table[index - 1, np.asarray(row)[index]]

  return one


def _prompts(lengths, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.integers(2, 96, n).astype(np.int32) for n in lengths]


def _reset(engine, small_model, **kwargs):
  kwargs = dict(temperature=1.0) | kwargs
  engine.reset(small_model[1], jax.random.key(5), **kwargs)


def _fill(engine, prompts, slots=None, uids=None):
  slots = list(range(len(prompts))) if slots is None else slots
  for i, slot in enumerate(slots):
    engine.start(slot, uids[i] if uids else 100 + i)
  engine.extend(dict(zip(slots, prompts)))
  return slots


def _row(prompt, *parts):
  return np.concatenate([prompt, *parts]).astype(np.int32)


@pytest.mark.parametrize('temperature', [0.7, 1.0, 1.3])
def test_logprobs_equal_the_training_path(
    engine, small_model, train_logprobs, temperature
):
  """Two turns of ragged rows; the second turn continues on the cache."""
  _reset(engine, small_model, temperature=temperature)
  prompts = _prompts([1, 2, 5, 17, 30])
  slots = _fill(engine, prompts)
  first = engine.decode({slot: 10 for slot in slots})
  results = _prompts([1, 3, 4, 9, 12], seed=1)
  engine.extend(dict(zip(slots, results)))
  second = engine.decode({slot: 6 for slot in slots})
  for i, slot in enumerate(slots):
    one, two = first[slot], second[slot]
    assert len(one.tokens) and len(two.tokens)
    row = _row(prompts[i], one.tokens)
    want = train_logprobs(row, len(one.tokens), temperature)
    np.testing.assert_allclose(one.logprobs, want, atol=1e-4)
    row = _row(row, results[i], two.tokens)
    want = train_logprobs(row, len(two.tokens), temperature)
    np.testing.assert_allclose(two.logprobs, want, atol=1e-4)
    assert engine.lengths[slot] == len(row)


def test_cut_logprobs_are_of_what_was_sampled_from(
    engine, small_model, train_logprobs
):
  """The whole distribution's are lower by the share of 92 of 96 tokens."""
  prompts = _prompts([3, 12, 30])
  _reset(engine, small_model, temperature=1.3, top_k=4)
  slots = _fill(engine, prompts)
  for slot, part in engine.decode(dict.fromkeys(slots, 12)).items():
    row, count = _row(prompts[slot], part.tokens), len(part.tokens)
    want = train_logprobs(row, count, 1.3, top_k=4)
    np.testing.assert_allclose(part.logprobs, want, atol=1e-4)
    whole = train_logprobs(row, count, 1.3)
    assert (part.logprobs > whole + 1e-3).any()
    assert (part.logprobs <= 1e-6).all()


def _play(engine, small_model, slots, order, greedy, pieces=None):
  """Decodes the same six prompts in the given slots, started in `order`."""
  _reset(engine, small_model, greedy=greedy)
  prompts = _prompts([3, 9, 9, 20, 31, 40])
  for i in order:
    engine.start(slots[i], 200 + i)
    for part in np.array_split(prompts[i], pieces or 1):
      engine.extend({slots[i]: part})
  done = engine.decode({slots[i]: 16 for i in order})
  return [done[slots[i]] for i in range(6)]


@pytest.mark.parametrize('greedy', [True, False])
def test_results_do_not_depend_on_the_schedule(
    engine, other, small_model, greedy
):
  base = _play(engine, small_model, range(6), range(6), greedy)
  runs = {
      'slots and order': _play(
          engine, small_model, [7, 5, 0, 3, 6, 1], [4, 0, 5, 1, 3, 2], greedy
      ),
      'pieces': _play(engine, small_model, range(6), range(6), greedy, 3),
      'shapes and padding': _play(
          other, small_model, [2, 3, 7, 5, 6, 0], range(6), greedy
      ),
  }
  for name, run in runs.items():
    for a, b in zip(base, run, strict=True):
      np.testing.assert_array_equal(a.tokens, b.tokens, err_msg=name)
      # Rounding of logits around 5; another row's would be apart by tenths.
      np.testing.assert_allclose(a.logprobs, b.logprobs, atol=5e-5)
      assert a.finished == b.finished


def test_a_row_alone_gives_what_it_gives_among_others(engine, small_model):
  together = _play(engine, small_model, range(6), range(6), False)
  _reset(engine, small_model)
  _fill(engine, [_prompts([3, 9, 9, 20, 31, 40])[3]], [4], [203])
  alone = engine.decode({4: 16})[4]
  np.testing.assert_array_equal(alone.tokens, together[3].tokens)


def test_copied_prompt_equals_own_prompt(engine, small_model):
  prompt = _prompts([21])[0]
  _reset(engine, small_model)
  _fill(engine, [prompt] * 3, uids=[7, 8, 9])
  own = engine.decode({slot: 16 for slot in range(3)})
  # Now share 18 tokens, and give each copy its own last three.
  _reset(engine, small_model)
  _fill(engine, [prompt[:20]], [5], [7])
  for slot, uid in ((0, 8), (6, 9)):
    engine.start(slot, uid)
  engine.copy(5, [0, 6], 18)
  assert engine.lengths[[5, 0, 6]].tolist() == [20, 18, 18]
  engine.extend({0: prompt[18:], 5: prompt[20:], 6: prompt[18:]})
  shared = engine.decode({slot: 16 for slot in (0, 5, 6)})
  for a, b in ((0, 5), (1, 0), (2, 6)):
    np.testing.assert_array_equal(own[a].tokens, shared[b].tokens)
    np.testing.assert_allclose(own[a].logprobs, shared[b].logprobs, atol=1e-5)


def test_copy_of_one_token(engine, small_model):
  """Nothing is cached yet, the one token is pending: it must still arrive."""
  _reset(engine, small_model, greedy=True)
  _fill(engine, _prompts([9]), [0], [1])
  engine.start(1, 2)
  engine.copy(0, [1], 1)
  _fill(engine, [_prompts([9])[0][:1]], [2], [3])
  out = engine.decode({1: 5, 2: 5})
  np.testing.assert_array_equal(out[1].tokens, out[2].tokens)


def test_rows_of_a_group_do_not_share_a_stream(engine, small_model):
  """The same key for every sample would give identical completions."""
  _reset(engine, small_model, temperature=3.0)
  slots = _fill(engine, [_prompts([6])[0]] * 6, uids=[0, 1, 2, 3, 2**32 - 1, 3])
  out = engine.decode({slot: 12 for slot in slots})
  texts = [tuple(out[slot].tokens) for slot in slots]
  assert len(set(texts[:5])) == 5
  assert texts[5] == texts[3]  # the same uid is the same stream


def test_interrupted_decoding_equals_one_go(engine, small_model):
  prompts = _prompts([4, 11, 19])
  _reset(engine, small_model)
  slots = _fill(engine, prompts)
  whole = engine.decode({slot: 20 for slot in slots})
  _reset(engine, small_model)
  _fill(engine, prompts)
  parts = {slot: [] for slot in slots}
  running = dict.fromkeys(slots, 0)
  while running:
    done = engine.decode({s: min(3, 20 - n) for s, n in running.items()})
    for slot, completion in done.items():
      parts[slot].append(completion.tokens)
      running[slot] += len(completion.tokens)
      if completion.finished or running[slot] == 20:
        del running[slot]
  for slot in slots:
    np.testing.assert_array_equal(
        whole[slot].tokens, np.concatenate(parts[slot])
    )


def test_end_token_and_budget(engine, small_model):
  """A finished row ends in its end token and holds no other."""
  _reset(engine, small_model)
  slots = _fill(engine, _prompts([5] * 8))
  ended = 0
  for _ in range(4):
    out = engine.decode(dict.fromkeys(slots, 24))
    for completion in out.values():
      assert END not in completion.tokens[:-1]
      assert completion.finished == (completion.tokens[-1] == END)
      assert completion.finished or len(completion.tokens) == 24
      ended += completion.finished
    _reset(engine, small_model)
    slots = _fill(engine, _prompts([5] * 8, seed=ended + 9))
  assert ended  # else this test shows nothing


def test_min_running_stops_early_but_never_without_a_token(engine, small_model):
  _reset(engine, small_model)
  slots = _fill(engine, _prompts([5, 6, 7, 8]))
  budgets = {0: 2, 1: 4, 2: 9, 3: 9}
  out = engine.decode(budgets, min_running=2)
  # Unless an end token comes, slots 0 and 1 are through after 4 steps.
  assert max(len(c.tokens) for c in out.values()) <= 4
  assert not any(c.finished for c in (out[2], out[3]))
  out = engine.decode({slot: 5 for slot in slots}, min_running=8)
  assert [len(out[slot].tokens) for slot in slots] == [1, 1, 1, 1]


def test_row_stops_at_the_exact_edge(engine, small_model, train_logprobs):
  """The last place is used, and nothing is written over or past it.

  XLA clamps indices silently: a token one past the end would land on the last
  place of its row, and the row would still look whole.
  """
  _reset(engine, small_model)
  for seed in range(20):  # a prompt that does not end too early
    prompts = _prompts([CAPACITY - 6, 20], seed)
    _reset(engine, small_model)
    _fill(engine, prompts)
    out = engine.decode({0: 24, 1: 12})
    if not out[0].finished:
      break
  assert len(out[0].tokens) == 6 and engine.lengths[0] == CAPACITY
  row = _row(prompts[0], out[0].tokens)
  want = train_logprobs(row, 6, 1.0)
  np.testing.assert_allclose(out[0].logprobs, want, atol=1e-4)
  # Full: no token, no change, also not for the neighbour.
  again = engine.decode({0: 24, 1: 5})
  assert len(again[0].tokens) == 0 and not again[0].finished
  row = _row(prompts[1], out[1].tokens, again[1].tokens)
  want = train_logprobs(row, len(again[1].tokens), 1.0)
  np.testing.assert_allclose(again[1].logprobs, want, atol=1e-4)


def test_extend_to_the_edge_and_not_beyond(engine, small_model, train_logprobs):
  _reset(engine, small_model)
  prompt = _prompts([CAPACITY - 1])[0]
  _fill(engine, [prompt[:50]])
  before = engine.lengths.copy()
  with pytest.raises(ValueError, match='15 more do not fit'):
    engine.extend({0: prompt[:15]})
  np.testing.assert_array_equal(engine.lengths, before)
  engine.extend({0: prompt[50:]})
  out = engine.decode({0: 24})[0]
  assert len(out.tokens) == 1  # the 64th and last
  want = train_logprobs(_row(prompt, out.tokens), 1, 1.0)
  np.testing.assert_allclose(out.logprobs, want, atol=1e-4)


def test_new_policy_never_sees_the_old_cache(engine, small_model):
  """A cache that survives a weight update mixes two policies.

  Broken parameters leave NaN behind, which a mask does not stop: 0 * NaN.
  """
  prompts = _prompts([30, 30])
  _reset(engine, small_model, greedy=True)
  _fill(engine, prompts)
  want = engine.decode({0: 8, 1: 8})
  broken = jax.tree.map(lambda x: x * jnp.nan, small_model[1])
  engine.reset(broken, jax.random.key(0), temperature=1.0)
  _fill(engine, _prompts([60] * 8))
  _reset(engine, small_model, greedy=True)
  assert not engine.lengths.any()
  with pytest.raises(ValueError, match='call start first'):
    engine.decode({0: 4})
  _fill(engine, prompts)
  got = engine.decode({0: 8, 1: 8})
  for slot in (0, 1):
    np.testing.assert_array_equal(got[slot].tokens, want[slot].tokens)
    np.testing.assert_allclose(got[slot].logprobs, want[slot].logprobs)


def test_reused_slot_forgets_its_row(engine, small_model):
  _reset(engine, small_model, greedy=True)
  _fill(engine, _prompts([40, 12], seed=3))
  _fill(engine, _prompts([7]), [0])
  reused = engine.decode({0: 8})[0]
  _reset(engine, small_model, greedy=True)
  _fill(engine, _prompts([7]), [0])
  np.testing.assert_array_equal(reused.tokens, engine.decode({0: 8})[0].tokens)


def test_number_of_programs(engine, small_model):
  """One for each piece length, one decode, one copy: 4, at any length."""
  for temperature, top_k in ((0.5, 0), (1.0, 3)):
    _reset(engine, small_model, temperature=temperature, top_k=top_k)
    for n in (1, 2, 5, 9, 33, 50):
      _fill(engine, _prompts([n]), [0])
      _fill(engine, _prompts([n] * 6), range(1, 7))
      engine.start(7, 3)
      engine.copy(0, [7], n)
      engine.decode({0: 3, 7: 9}, min_running=n % 3)
  assert engine.num_programs == 4


@pytest.mark.parametrize(
    'call, message',
    [
        (lambda e: e.extend({3: [4]}), 'slot 3 has no row'),
        (lambda e: e.extend({0: [96]}), 'id outside 0 to 95'),
        (lambda e: e.extend({0: [-1]}), 'id outside 0 to 95'),
        (lambda e: e.extend({0: [[1]]}), 'flat list'),
        (lambda e: e.start(8, 0), 'not within 0 to 7'),
        (lambda e: e.decode({1: 4}), 'slot 1 is empty'),
        (lambda e: e.decode({0: 0}), 'not within 1 to 24'),
        (lambda e: e.decode({0: 25}), 'not within 1 to 24'),
        (lambda e: e.copy(0, [0], 2), 'not empty'),
        (lambda e: e.copy(0, [1], 6), 'cannot copy 6'),
    ],
)
def test_wrong_calls_are_refused(engine, small_model, call, message):
  _reset(engine, small_model)
  _fill(engine, _prompts([5]))
  engine.start(1, 0)
  with pytest.raises(ValueError, match=message):
    call(engine)


def test_nothing_else_while_a_decode_is_not_taken(engine, small_model):
  """An extend would write behind tokens that the host does not know yet."""
  _reset(engine, small_model)
  _fill(engine, _prompts([5, 7]))
  finish = engine.begin_decode({0: 4})
  with pytest.raises(ValueError, match='take its result first'):
    engine.extend({1: [4]})
  assert len(finish()[0].tokens)
  engine.extend({1: [4]})


def test_wrong_settings_are_refused(small_model, mesh, small_config):
  make = lambda **kw: _make(small_model[0], mesh, small_config, **kw)
  with pytest.raises(ValueError, match='rollout.cache_buckets'):
    make(cache_buckets=(32, 16))
  with pytest.raises(ValueError, match='rollout.extend_buckets'):
    make(extend_buckets=())
  with pytest.raises(ValueError, match='rollout.num_slots'):
    make(num_slots=0)
  fresh = make()
  with pytest.raises(ValueError, match='call reset first'):
    fresh.start(0, 0)
  with pytest.raises(ValueError, match='rollout.temperature'):
    fresh.reset(small_model[1], jax.random.key(0), temperature=0.0)
  with pytest.raises(ValueError, match='top_k is 0 and top_p is 0'):
    fresh.reset(small_model[1], jax.random.key(0), temperature=1.0, top_p=0.0)
