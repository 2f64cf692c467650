"""Variants of real seeds: executed, solvable, different, reproducible."""

import dataclasses
import json
import re
import time

import numpy as np
import pytest

from rods_jax.host import bfcl, env, tool_calls
from rods_jax.host.synthesis import augment, pipeline, profile
from rods_jax.host.synthesis.reading import Reading, scalars
from rods_jax.types import CATEGORIES, Task
from tests import worlds

TASKS = bfcl.load_tasks(CATEGORIES)


def seed_of(category, scenario):
  return TASKS[f'multi_turn_{category}_{scenario}']


def variants_of(seeds, per_seed=1, rng_seed=3, **kwargs):
  request = pipeline.Request(0, tuple(seeds), per_seed, rng_seed, **kwargs)
  return pipeline.run_request(request)


@pytest.fixture(scope='module')
def sample():
  """category -> (seeds, variants, report) on every fourth scenario."""
  out = {}
  for category in CATEGORIES:
    seeds = [seed_of(category, i) for i in range(0, 200, 4)]
    out[category] = (seeds, *variants_of(seeds))
  return out


def pairs(sample, category):
  """(seed, variant) of every variant."""
  seeds, variants, _ = sample[category]
  by_id = {seed.task_id: seed for seed in seeds}
  return [(by_id[variant.parent], variant) for variant in variants]


def play(task):
  """Scores of a policy that answers with the ground truth."""
  return [score.score for score in worlds.solve(task).scores]


@pytest.mark.parametrize('category', CATEGORIES)
def test_nearly_every_seed_yields_a_variant(sample, category):
  seeds, variants, report = sample[category]
  assert len(variants) >= 0.95 * len(seeds)
  assert report.accepted == len(variants)
  # On the full 200 scenarios the mean is 4.0 exchanged said entities.
  assert report.substituted / report.accepted >= 3.0


@pytest.mark.parametrize('category', CATEGORIES)
def test_variants_replay_as_their_seeds_do(sample, category):
  """A ground truth that errs on both sides would score 1; require fewer."""
  for seed, variant in pairs(sample, category):
    truth, before = env.replay(variant), env.replay(seed)
    assert len(truth.ok_errors) == len(before.ok_errors), variant.parent
    if not before.withheld:
      assert not truth.withheld, variant.parent
    assert set(play(variant)) == {1}, variant.parent


@pytest.mark.parametrize('category', CATEGORIES)
def test_variants_are_records_like_their_seeds(sample, category):
  for seed, variant in pairs(sample, category):
    shape = variant
    if variant.category != category:
      assert category == 'base'
      shape = augment.base_form(variant)
    assert profile.distance(profile.of(shape), profile.of(seed)).total == 0
    assert variant.scenario == seed.scenario
    assert variant.task_id == f'syn_{variant.content_hash()}'
    assert variant.content_hash() != seed.content_hash()
    assert variant.origin == 'generated'
    text = json.dumps(variant.to_json())
    restored = Task.from_json(json.loads(text))
    assert restored.content_hash() == variant.content_hash()


def test_every_argument_has_a_source(sample):
  """New argument values were said, returned, or are the seed's constants."""
  for category in CATEGORIES:
    for seed, variant in pairs(sample, category):
      constants = {str(a.value) for a in Reading(seed).arguments}
      reading = Reading(variant)
      for a in reading.arguments:
        key = (a.call, a.path)
        known = (
            key in reading.spoken
            or key in reading.sources
            or str(a.value) in constants
            or says_with_other_words(reading, a)
        )
        assert known, (variant.parent, a)


def says_with_other_words(reading, a):
  """Dates, company and city names, spelled numbers; numbers in sentences."""
  if a.param in ('travel_date', 'travel_from', 'travel_to', 'stock', 'symbol',
                 'city', 'location'):  # pyformat: disable
    return True
  if a.param == 'fuelAmount' or isinstance(a.value, (int, float)):
    words = re.findall(r'[a-z]+', ' '.join(reading.texts).lower())
    return any(w in words for w in pipeline.entities.pools.NUMBER_WORDS)
  return ' ' in str(a.value)


def test_names_change_everywhere():
  """base_0 says 'document directory', 'temp', 'final report'.

  All of: quoted names, plain words by their context, the spaced form of a
  file's stem, keys of the file system, arguments.
  """
  seed = seed_of('base', 0)
  for variant in variants_of([seed], per_seed=3)[0]:
    text = json.dumps(variant.to_json())
    for old in ('final_report', 'previous_report', 'final report'):
      assert old not in text
    assert "folder='document'" not in text and "'temp'" not in text
    assert 'document directory' not in text
    new = tool_calls.parse(variant.turns[0].ground_truth[0])[0]
    folder = new.kwargs['folder']
    assert variant.turns[0].user.count(folder) == 2
    root = variant.initial_config['GorillaFileSystem']['root']
    assert folder in next(iter(root.values()))['contents']


def test_values_from_results_are_derived_anew():
  """base_81: liters -> gallons, rounded to two decimals, into the tank.

  0.264172 gallons a liter: 10 l are 2.64 gal in the seed. Keeping the seed's
  2.64 for another number of liters would be the bug.
  """
  variants, _ = variants_of([seed_of('base', 81)], per_seed=4)
  for variant in variants:
    turn = next(turn for turn in variant.turns if turn.ground_truth)
    convert, fill = map(tool_calls.parse_ground_truth, turn.ground_truth)
    liters = convert.kwargs['liter']
    assert liters != 10
    assert fill.kwargs['fuelAmount'] == round(liters * 0.264172, 2)
    assert f'{liters:g} liters' in ' '.join(t.user for t in variant.turns)


def test_a_full_tank_is_fifty_gallons():
  """base_80 fills 45 gallons on top of 5; another start needs another fill."""
  starts = set()
  for variant in variants_of([seed_of('base', 80)], per_seed=4)[0]:
    start = variant.initial_config['VehicleControlAPI']['fuelLevel']
    fill = next(
        tool_calls.parse_ground_truth(c)
        for turn in variant.turns
        for c in turn.ground_truth
        if c.startswith('fillFuelTank')
    )
    assert start + fill.kwargs['fuelAmount'] == pytest.approx(50.0)
    starts.add(start)
  assert starts != {5.0}


def test_booking_ids_come_from_the_booking():
  """The seed's 3426812 is the first draw of the default random seed."""
  variant = variants_of([seed_of('base', 184)])[0][0]
  booking = json.loads(env.replay(variant).results[0][1])['booking_id']
  assert booking != '3426812'
  assert f"booking_id='{booking}'" in variant.turns[1].ground_truth[0]


def test_an_airport_list_keeps_its_order():
  """'The first two airports on your list' names no city.

  The list is the simulator's; exchanging the cities made the ground truth
  fly between airports that stand elsewhere in it.
  """
  for variant in variants_of([seed_of('miss_func', 188)], per_seed=3)[0]:
    calls = [c for turn in variant.turns for c in turn.ground_truth]
    cost = next(c for c in calls if c.startswith('get_flight_cost'))
    assert "'RMS'" in cost and "'SBK'" in cost


def test_requests_are_pure():
  """The order in which seeds were planned, or cached, must not matter."""
  seeds = [seed_of('base', i) for i in (3, 81, 103, 160)]
  first = variants_of(seeds, per_seed=2)[0]
  pipeline._plans.clear()
  pipeline.plan_of(seeds[-1])
  again, report = variants_of(seeds, per_seed=2)
  assert [t.to_json() for t in first] == [t.to_json() for t in again]
  assert report.attempts == report.accepted + sum(report.rejected.values())
  other = variants_of(seeds, per_seed=2, rng_seed=4)[0]
  assert not {t.task_id for t in first} & {t.task_id for t in other}


def test_forbidden_hashes_do_not_come_again():
  seeds = [seed_of('base', i) for i in (3, 81)]
  first, _ = variants_of(seeds, per_seed=2)
  forbidden = frozenset(t.content_hash() for t in first)
  again, report = variants_of(seeds, per_seed=2, forbidden=forbidden)
  assert report.rejected['duplicate'] >= len(first)
  assert not {t.content_hash() for t in again} & forbidden


def test_no_duplicates_within_a_request():
  """The same seed twice: its copies draw from streams of their own."""
  seed = seed_of('base', 59)
  variants, _ = variants_of([seed, seed], per_seed=8)
  hashes = [t.content_hash() for t in variants]
  assert len(hashes) == len(set(hashes)) > 8


def test_heldout_variants_share_nothing_with_training():
  seeds = [seed_of('base', i) for i in (0, 81, 184)]
  training = {t.task_id for t in variants_of(seeds, per_seed=3, rng_seed=0)[0]}
  heldout = pipeline.heldout_variants(seeds, 3, 0)
  # The user of 81 names one entity: too few for variants that all differ.
  assert [pipeline.is_varied(seed) for seed in seeds] == [True, False, True]
  assert len(heldout) == 2 * 3
  assert not training & {t.task_id for t in heldout}
  assert heldout == pipeline.heldout_variants(seeds, 3, 0)


@pytest.mark.parametrize('category', ['miss_func', 'miss_param'])
def test_variants_of_base_seeds_may_miss_something(category):
  seed = seed_of('base', 0)
  rng = np.random.default_rng(1)
  task = pipeline.make_variant(seed, rng, 5, category=category)
  assert task.category == category
  assert task.parent == seed.task_id
  assert task.task_id == f'syn_{task.content_hash()}'
  truths = [turn.ground_truth for turn in task.turns]
  assert len(truths) == len(seed.turns) + 1 and truths.count(()) == 1
  assert set(play(task)) == {1}


def test_a_share_of_the_variants_of_base_seeds_is_augmented():
  """A quarter of 80: 20, give or take three deviations of 3.9."""
  seed = seed_of('base', 0)
  variants, _ = variants_of([seed], per_seed=80)
  changed = [v.category for v in variants if v.category != 'base']
  assert set(changed) == {'miss_func', 'miss_param'}
  assert 8 <= len(changed) <= 32
  evaluated, _ = variants_of([seed], per_seed=20, heldout=True)
  assert {v.category for v in evaluated} == {'base'}


def test_variants_of_variants():
  """A generated task is a seed like any other."""
  first = variants_of([seed_of('miss_param', 9)])[0][0]
  second = variants_of([first])[0][0]
  assert second.parent == first.task_id
  assert set(play(second)) == {1}


def test_nothing_to_exchange_is_a_rejection():
  seed = seed_of('base', 0)
  bare = dataclasses.replace(
      seed,
      classes=('MathAPI',),
      initial_config={},
      turns=(dataclasses.replace(seed.turns[0], user='Hello.',
                                 ground_truth=('add(a=1, b=2)',)),),
  )  # pyformat: disable
  result = pipeline.make_variant(bare, np.random.default_rng(0), 2)
  assert isinstance(result, pipeline.Rejection)
  assert result.stage == 'substitute'


def test_seeds_are_never_changed():
  before = {i: json.dumps(TASKS[i].to_json()) for i in list(TASKS)[:800:40]}
  variants_of([TASKS[i] for i in before])
  assert before == {i: json.dumps(TASKS[i].to_json()) for i in before}


def test_fifty_variants_a_second():
  """CPU time, so that a busy machine does not fail the test."""
  seeds = [seed_of('base', i) for i in range(0, 200, 10)]
  start = time.process_time()
  variants, _ = variants_of(seeds, per_seed=5)
  assert len(variants) / (time.process_time() - start) > 50


def test_stages_count_what_the_stage_before_passed_on():
  """The split is decided before the critique, which counted what it dropped
  among its own attempts: 10 - 2 - 3 = 5 candidates reach it, not 8."""
  report = pipeline.Report(attempts=10)
  for stage, count in (('duplicate', 3), ('substitute', 2), ('critique', 1)):
    for i in range(count):
      report.reject(pipeline.Rejection(stage, f'reason {i}'))
  metrics = report.metrics('exchange')
  stages = pipeline.STAGES['exchange']
  assert [metrics[f'synthesis/{s}_attempts'] for s in stages] == [
      10, 8, 8, 8, 5,
  ]
  assert [metrics[f'synthesis/{s}_accepted'] for s in stages] == [
      8, 8, 8, 5, 4,
  ]
  assert metrics['synthesis/duplicate_rejected'] == 3
  assert 'synthesis/plan_attempts' not in metrics
  assert report.reasons['duplicate: reason '] == 3


def test_reports_survive_json():
  report = variants_of([seed_of('base', 81)], per_seed=3)[1]
  data = json.loads(json.dumps(report.to_json()))
  assert pipeline.Report.from_json(data) == report


def test_lists_and_scalars_are_walked():
  assert list(scalars({'a': [1, {'b': 'x'}]})) == [
      (('a', 0), 1),
      (('a', 1, 'b'), 'x'),
  ]
