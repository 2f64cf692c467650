"""A starved machine changes nothing: what was stopped is run again."""

import numpy as np
import pytest

from experiments import synthesize
from rods_jax.host import simulators
from rods_jax.host.synthesis import patience, pipeline, profile, trace
from rods_jax.host.synthesis.compose import stages
from rods_jax.host.synthesis.records import Report
from rods_jax.types import Task

SEEDS = synthesize.seeds()[::67]


def forget():
  """Plans, briefs and profiles are kept by content; now they are made anew."""
  for cache in (pipeline._plans, stages._briefs, profile._profiles):
    cache.clear()


def starve(monkeypatch, below_s, every=7):
  """Stops each seventh call whose limit is below so many seconds."""
  bounded, counts = simulators._bounded, {'calls': 0, 'stopped': 0}

  def slow(function, seconds):
    counts['calls'] += 1
    if seconds < below_s and counts['calls'] % every == 0:
      counts['stopped'] += 1
      raise simulators._CallTimeout
    return bounded(function, seconds)

  monkeypatch.setattr(simulators, '_bounded', slow)
  return counts


def composed():
  """Tasks or rejections of some seeds, and the counts of their stages."""
  report, found = Report(), []
  for seed in SEEDS:
    rng = np.random.default_rng(seed.scenario)
    found.append(stages.compose(seed, rng, lambda task: True, 3, report))
  return found, report


def exchanged():
  request = pipeline.Request(0, tuple(SEEDS), per_seed=1, rng_seed=0)
  return pipeline.run_request(request)


@pytest.mark.parametrize('make', [composed, exchanged])
def test_the_same_tasks_and_rejections_whatever_is_stopped(make, monkeypatch):
  """Every first try of a chain of seven calls or more is stopped. Before, the
  seed's own profile would lack links, and the tools would be blocked."""
  forget()
  expected = make()
  assert sum(isinstance(task, Task) for task in expected[0]) >= 4
  forget()
  counts = starve(monkeypatch, patience.LIMITS_S[1])
  assert make() == expected
  assert counts['stopped'] > 20


def test_a_second_try_can_be_stopped_too(monkeypatch):
  expected = trace.run(SEEDS[0])
  counts = starve(monkeypatch, patience.LIMITS_S[2], every=3)
  assert trace.run(SEEDS[0]) == expected
  assert counts['stopped'] >= 2


def test_an_endless_call_ends_all_the_same(monkeypatch):
  """Stopped by each limit, the longest too: the trace says so."""
  starve(monkeypatch, np.inf, every=1)
  executed = trace.run(SEEDS[0])
  assert not executed.finished and not executed.steps[0].ok


def test_tries_are_few_and_have_more_and_more_time():
  limits = []

  def attempt(limit_s):
    limits.append(limit_s)
    return len(limits), limits[-1] == patience.LIMITS_S[1]

  assert patience.run(attempt) == 2
  assert limits == sorted(patience.LIMITS_S)[:2]
