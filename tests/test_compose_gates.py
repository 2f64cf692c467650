"""The gates of composed tasks: order of classes, earlier turns, news."""

import dataclasses
import json

import numpy as np
import pytest

from experiments import synthesize
from rods_jax.host import bfcl
from rods_jax.host.synthesis import pipeline, profile, quality
from rods_jax.host.synthesis import request as request_lib
from rods_jax.host.synthesis.compose import batch, critique, stages
from rods_jax.host.synthesis.compose.records import Gates
from rods_jax.host.synthesis.records import Rejection

SEEDS = {seed.task_id: seed for seed in synthesize.seeds()}
TWO_CLASSES = 'multi_turn_base_174'  # tweets and travel


@pytest.fixture(scope='module')
def reviewed():
  """(plan, task, its profile) of a good task with calls of two classes."""
  seen, review = [], critique.review

  def remember(planned, task, gates):
    seen.append(planned)
    return review(planned, task, gates)

  rng = np.random.default_rng(0)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(critique, 'review', remember)
    task = stages.compose(SEEDS[TWO_CLASSES], rng, lambda t: True, 10)
  return seen[-1], task, profile.of(task)


def reason(reviewed, monkeypatch, wanted, gates):
  """Of the critique, when the seed has another profile."""
  planned, task, _ = reviewed
  monkeypatch.setattr(profile, 'of', lambda seed: wanted)
  found = critique.review(planned, task, gates)
  return found.reason if found else None


def test_the_order_of_classes(reviewed, monkeypatch):
  """The seed's last call, if it were of the other class, is one of n to
  exchange: at a distance of 1 / n."""
  found = reviewed[2]
  other = next(c for c in found.classes if c != found.classes[-1])
  tools = (*found.tools[:-1], bfcl.tool_names(other)[0])
  wanted = dataclasses.replace(found, tools=tools)
  apart = 1 / len(tools)
  for limit, expected in (
      (0.0, 'another profile: classes'),
      (apart - 0.01, 'another profile: classes'),
      (apart, None),
  ):
    gates = Gates(max_class_distance=limit)
    assert reason(reviewed, monkeypatch, wanted, gates) == expected


def test_turns_that_need_an_earlier_one(reviewed, monkeypatch):
  """If all R turns of the seed but the first did, the task's k are k / (R - 1)
  of them."""
  found = reviewed[2]
  rest = len(found.calls) - 1
  wanted = dataclasses.replace(found, references=(0, *[1] * rest))
  assert wanted.turns_back == rest and 0 < found.turns_back < rest
  share = found.turns_back / rest
  expected = 'another profile: references to earlier turns'
  for least, wrong in ((0.0, None), (share, None), (share + 0.01, expected)):
    gates = Gates(min_cross_turn=least)
    assert reason(reviewed, monkeypatch, wanted, gates) == wrong


def test_turns_back_counts_links_and_words():
  """Calls 0, 1 | 2 | 3: turn 1 needs call 0, turn 2 repeats what was said; the
  link inside turn 0 is none across turns. Links alone would give 1."""
  made = profile.Profile(
      category='base', num_turns=3, num_empty=0, calls=(2, 1, 1),
      tools=('ls',) * 4, edges=frozenset({(0, 1, 'state'), (0, 2, 'value')}),
      flows=(), references=(0, 0, 2),
  )  # pyformat: disable
  assert made.turns_back == 2


def distances(tasks):
  """Of each task to the nearest other one, every pair compared."""
  texts, calls = zip(*((
      quality.shingles(t), quality.call_sequence(t)
  ) for t in tasks))  # pyformat: disable
  size = len(tasks)
  found = np.ones((size, size))
  for i in range(size):
    for j in range(size):
      if i != j:
        words = 1 - len(texts[i] & texts[j]) / len(texts[i] | texts[j])
        found[i, j] = max(words, profile.edit_distance(calls[i], calls[j]))
  return found


@pytest.fixture(scope='module')
def similar():
  """Composed tasks of few seeds, so that some are nearer than others."""
  seeds = tuple(SEEDS[f'multi_turn_base_{i}'] for i in (81, 146, 100))
  request = pipeline.Request(
      0, seeds, 16, rng_seed=0, planner='compose', gates=Gates(min_novelty=0.0)
  )
  return request, pipeline.run_request(request)[0]


@pytest.fixture(scope='module')
def near(similar):
  """The same, and variants of seeds that only exchange values."""
  request = dataclasses.replace(
      similar[0], seeds=tuple(SEEDS.values())[:40:8], planner='exchange',
      per_seed=4,
  )  # pyformat: disable
  return similar[1] + pipeline.run_request(request)[0]


def test_tasks_are_unlike_what_the_request_knows(similar):
  """A later request of the same seeds comes near the tasks of an earlier one,
  unless it is told of them, without their initial states."""
  request, earlier = similar
  later = dataclasses.replace(
      request, epoch=1, per_seed=8, gates=Gates(min_novelty=0.75)
  )
  told = dataclasses.replace(
      later, known=tuple(map(request_lib.bare, earlier))
  )
  assert told == pipeline.Request.from_json(
      json.loads(json.dumps(told.to_json()))
  )
  known = quality.Known(earlier)
  news = [
      [known.is_new(task, 0.75) for task in pipeline.run_request(r)[0]]
      for r in (later, told)
  ]
  assert not all(news[0]) and all(news[1]) and len(news[1]) > 4


@pytest.mark.parametrize('within', [0.3, 0.5, 0.7, 0.9, 1.0])
def test_the_nearest_of_few_candidates_is_the_nearest_of_all(near, within):
  """Only tasks with one of the rarest calls are looked at; none is missed."""
  tasks = near
  known, least = quality.Known(tasks), distances(tasks).min(axis=1)
  assert (least < 0.5).any() and ((least > 0.7) & (least < 0.9)).any()
  for task, expected in zip(tasks, least):
    found = known.nearest(task, within)
    if expected < within:
      assert found.distance == pytest.approx(expected)
    else:
      assert found is None
    assert known.is_new(task, within) == (expected >= within)


def test_few_are_compared(similar):
  """Else a corpus would take time that grows with its square."""
  tasks = similar[1]
  known = quality.Known(tasks)
  sizes = [
      len(known._candidates(quality.call_sequence(task), 0.5))
      for task in tasks
  ]
  assert np.mean(sizes) < 0.5 * len(tasks)


def test_requests_keep_their_distance(similar):
  """No two tasks, nor a task and a seed, are nearer than it says."""
  request, before = similar
  assert distances([*before, *request.seeds]).min() < 0.86
  request = dataclasses.replace(request, gates=Gates(min_novelty=0.86))
  after, _ = pipeline.run_request(request)
  assert len(after) > 4
  assert distances([*after, *request.seeds]).min() >= 0.86


def test_known_words_known_calls_and_known_content_do_not_come_again(similar):
  """Whatever the distance; 'a 5' and 'a 7' are the same words."""
  task, other = similar[1][:2]
  novelty = quality.Novelty(0.0, [task])
  assert not novelty.accepts(task) and novelty.accepts(other)
  words = dataclasses.replace(other, turns=tuple(
      dataclasses.replace(turn, user=mine.user.replace('7', '42'))
      for turn, mine in zip(other.turns * 9, task.turns)
  ))  # pyformat: disable
  calls = dataclasses.replace(other, turns=task.turns)
  assert not novelty.accepts(words) and not novelty.accepts(calls)


def test_a_near_copy_of_its_own_seed_is_worded_anew():
  """The seed has nearly the calls and words that its first task gets. A task
  with its seed's id would not be compared with it, be finished, and be dropped
  at last as if another had been made at the same time."""
  seed = SEEDS[TWO_CLASSES]
  fresh = lambda: np.random.default_rng(0)  # its first plan is a task
  task = stages.compose(seed, fresh(), lambda t: True, 1)
  last = task.turns[-1]
  changed = dataclasses.replace(last, ground_truth=last.ground_truth[:-1])
  turns = (*task.turns[:-1], changed)
  novelty = quality.Novelty(0.999)
  novelty.add(dataclasses.replace(task, task_id=seed.task_id, turns=turns))
  (result, report), = batch.compose_all(
      [batch.Wanted(seed, fresh)], lambda t: True, novelty, 1
  )
  assert result == Rejection(
      'duplicate', 'known, or of the other side of the split'
  )
  assert report.accepted == 0 and report.attempts == 1


def test_the_order_of_calls_keeps_classes_and_references():
  """Of 20 orders of a seed's calls not all are its own."""
  brief = stages.brief_of(SEEDS[TWO_CLASSES])
  rng = np.random.default_rng(0)
  orders = {stages.plan._order(brief, rng) for _ in range(20)}
  classes = [bfcl.owner(tool) for tool in brief.tools]
  assert len(orders) > 1
  for order in orders:
    assert [classes[i] for i in order] == classes
    place = {call: i for i, call in enumerate(order)}
    assert all(place[i] < place[j] for i, j in brief.links)
