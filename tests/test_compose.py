"""Composed tasks: structure of the seed, sources of arguments, no repeats."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest

from experiments import synthesize
from rods_jax.host import bfcl, env, tool_calls
from rods_jax.host.synthesis import (
    corpus,
    pipeline,
    profile,
    quality,
    trace,
)
from rods_jax.host.synthesis.compose import critique, stages
from rods_jax.host.synthesis.records import Rejection, Report
from rods_jax.types import CATEGORIES, Task, Turn

SEEDS = synthesize.seeds()
COUNT = 24
EVERY = SEEDS[:: len(SEEDS) // COUNT]


def make(seed, key=0, accepts=lambda task: True, **kwargs):
  rng = np.random.default_rng([seed.scenario, key])
  return stages.compose(seed, rng, accepts, **kwargs)


@pytest.fixture(scope='module')
def made():
  """Tasks of seeds of all categories, with the report of the run."""
  report = Report()
  tasks = list(synthesize.corpus(EVERY, len(EVERY), 3, report))
  return tasks, report


def seed_of(task):
  return seed_named(task.parent)


def seed_named(task_id):
  return next(seed for seed in SEEDS if seed.task_id == task_id)


def test_most_seeds_give_a_task(made):
  tasks, report = made
  assert len(tasks) >= 0.8 * len(EVERY)
  assert {task.category for task in tasks} == set(CATEGORIES)
  assert report.accepted == len(tasks)
  assert report.accepted + sum(report.rejected.values()) == report.attempts


def test_the_structure_is_the_seeds(made):
  for task in made[0]:
    ours, theirs = profile.of(task), profile.of(seed_of(task))
    assert nx.is_isomorphic(ours.graph, theirs.graph)
    for part in ('category', 'num_turns', 'num_empty', 'calls', 'depth'):
      assert getattr(ours, part) == getattr(theirs, part), part
    assert ours.tools != theirs.tools, 'the same functions in the same order'
    assert ours.classes == theirs.classes
    assert ours.turns_back >= 0.5 * theirs.turns_back


def test_every_argument_has_a_source(made):
  for task in made[0]:
    executed = trace.run(task)
    assert all(step.ok for step in executed.steps)
    assert quality.unsourced(executed, discoverable=False) == ()


def test_nothing_comes_twice_and_nothing_from_held_out_scenarios(made):
  tasks, _ = made
  found = [key for task in tasks for key in quality.keys(task)]
  assert len(set(found)) == 3 * len(tasks)
  _, heldout = bfcl.split(bfcl.load_tasks(), 'scenario', 100, 0)
  scenarios = {task.scenario for task in heldout.values()}
  assert not scenarios & {seed.scenario for seed in SEEDS}
  assert not scenarios & {task.scenario for task in tasks}
  assert not any(map(pipeline.is_heldout, tasks))


def right_turns(task, turns):
  """How many turns are right when these calls are made in them."""
  episode = env.Episode(task)
  scores = []
  for calls in turns:
    if calls:
      episode.execute([tool_calls.parse_ground_truth(c) for c in calls])
    scores.append(episode.end_turn().score)
  return sum(scores)


def test_the_ground_truth_solves_it_and_silence_and_repetition_do_not(made):
  """Repetition: in each turn all calls of the turn before."""
  for task in made[0]:
    right = [turn.ground_truth for turn in task.turns]
    assert right_turns(task, right) == len(right), task.task_id
    assert right_turns(task, [()] * len(right)) < len(right)
    assert right_turns(task, [(), *right][: len(right)]) < len(right)


_REPLAY = """
import json, sys
from rods_jax.host import env
from rods_jax.types import Task
tasks = [Task.from_json(data) for data in json.load(sys.stdin)]
truths = [env.replay(task) for task in tasks]
json.dump([
    [task.content_hash(), truth.results, truth.ok_errors + truth.withheld]
    for task, truth in zip(tasks, truths)
], sys.stdout)
"""


def test_tasks_replay_alike_in_a_fresh_process(made):
  """Free of errors, and with the same results; here they would be cached."""
  tasks, _ = made
  run = subprocess.run(
      [sys.executable, '-c', _REPLAY], cwd=pathlib.Path(__file__).parents[1],
      input=json.dumps([task.to_json() for task in tasks]), text=True,
      capture_output=True, check=True,
  )
  here = [[t.content_hash(), env.replay(t).results, ()] for t in tasks]
  assert json.loads(run.stdout) == json.loads(json.dumps(here))


def test_a_generator_gives_the_same_task_again():
  seed = EVERY[0]
  assert make(seed) == make(seed) != make(seed, key=1)


def test_no_user_names_a_tool(made):
  words = {w for t in made[0] for turn in t.turns for w in turn.user.split()}
  assert not words & {'cd', 'ls', 'get_stock_info', 'lockDoors', 'book_flight'}
  assert 'the' in words


def with_turn(task, index, **changes):
  turns = list(task.turns)
  turns[index] = dataclasses.replace(turns[index], **changes)
  return dataclasses.replace(task, turns=tuple(turns))


@pytest.mark.parametrize(
    ('change', 'reason'),
    [
        (lambda t: with_turn(t, 0, user='Please run get_stock_info.'), 'names'),
        (lambda t: with_turn(t, 0, user=''), 'lost its text'),
        (
            lambda t: dataclasses.replace(t, turns=(
                *t.turns[:-1], dataclasses.replace(
                    t.turns[-1], ground_truth=t.turns[-1].ground_truth * 2
                ))),
            'other dependencies',
        ),
        (
            lambda t: dataclasses.replace(
                t, excluded=tuple(bfcl.tool_names(t.classes[0]))
            ),
            'not on offer',
        ),
        (
            lambda t: dataclasses.replace(
                t, turns=tuple(Turn(u.user, ()) for u in t.turns)
            ),
            'no turn asks',
        ),
    ],
)  # pyformat: disable
def test_bad_tasks_are_rejected_with_a_reason(change, reason, monkeypatch):
  """One good task of a file system, and what can be wrong with it."""
  task, review = reviewed('multi_turn_base_12', 0, monkeypatch)
  assert review(task) is None
  found = review(change(task))
  assert found.stage == 'critique' and reason in found.reason


def reviewed(task_id, key, monkeypatch):
  """A good task, and the critique with the plan that the task was made by."""
  seen = []
  review = critique.review

  def remember(planned, task, gates):
    seen.append(planned)
    return review(planned, task, gates)

  monkeypatch.setattr(critique, 'review', remember)
  task = make(seed_named(task_id), key, attempts=10)
  monkeypatch.undo()
  return task, lambda changed: review(seen[-1], changed)


def test_values_from_nowhere_are_found(monkeypatch):
  """Scenario 100 has two calls without dependencies. A user who says nothing
  leaves their arguments without a source, where they have any."""
  reasons = []
  for key in range(4):
    task, review = reviewed('multi_turn_base_100', key, monkeypatch)
    silent = [dataclasses.replace(turn, user='Go.') for turn in task.turns]
    found = review(dataclasses.replace(task, turns=tuple(silent)))
    reasons.append(found.reason if found else '')
  assert any('no source' in reason for reason in reasons)


def test_a_blocked_tool_is_not_used_again():
  """A rejection that names a tool takes it out of the next plan."""
  seed, objections = seed_named('multi_turn_base_100'), []

  def judge(task):
    name = task.turns[-1].ground_truth[0].partition('(')[0]
    objections.append((name, task))
    return Rejection('critique', f'{name} does not fit')

  report = Report()
  result = make(
      seed, report=report, attempts=6, stages=stages.Stages(judge=judge)
  )
  assert isinstance(result, Rejection) and report.accepted == 0
  assert report.attempts == 6 and len(objections) > 1
  blocked = set()
  for name, task in objections:
    used = {c.partition('(')[0] for t in task.turns for c in t.ground_truth}
    assert not used & blocked
    blocked.add(name)


def test_another_implementation_can_word_the_queries():
  seed = EVERY[0]

  def rewrite(planned, executed, rng, last):
    del planned, executed, rng, last
    return Rejection('rewrite', 'no answer from the server')

  report = Report()
  result = make(
      seed, report=report, stages=stages.Stages(rewrite=rewrite), attempts=8
  )
  assert result.stage == 'rewrite' or result.stage == 'plan'
  assert report.rejected['rewrite'] > 0


def test_a_request_can_ask_for_composed_tasks():
  request = pipeline.Request(
      0, tuple(EVERY[:4]), 2, rng_seed=1, planner='compose'
  )
  again = pipeline.Request.from_json(json.loads(json.dumps(request.to_json())))
  assert again == request
  tasks, report = pipeline.run_request(again)
  assert report.accepted == len(tasks) > 4
  assert not any(map(pipeline.is_heldout, tasks))
  exchanged, _ = pipeline.run_request(
      dataclasses.replace(request, planner='exchange')
  )
  tools = {profile.of(t).tools for t in exchanged}
  assert not tools & {profile.of(t).tools for t in tasks}


def test_the_command_writes_a_corpus_and_tells_its_numbers(
    tmp_path, monkeypatch, capsys
):
  """Three tasks at most, the same ones again, and nothing new when the same
  command is given a third time; of another seed nothing is mixed in."""
  lines = []
  for name in ('a', 'b'):
    out = tmp_path / name
    monkeypatch.setattr('sys.argv', [
        'synthesize', '--n=3', '--category=base', '--json', f'--out={out}'
    ])  # pyformat: disable
    monkeypatch.setattr(synthesize, 'seeds', lambda: EVERY)
    synthesize.main()
    found = json.loads(capsys.readouterr().out)
    lines.append(list(corpus.read_tasks(out)))
    assert found['wanted'] == 3 and found['accepted'] == len(lines[-1]) > 0
    assert found['equal to the seed']['topology'] == 1.0
    assert found['duplicates'] == 0 and found['peak memory, MB'] > 10
    assert len(found['seconds of each 1000 numbers']) == 1
    assert found == json.loads((out / 'report.json').read_text())
  assert lines[0] == lines[1]
  before = (out / 'manifest.json').read_bytes()
  synthesize.main()
  assert (out / 'manifest.json').read_bytes() == before
  monkeypatch.setattr('sys.argv', [*sys.argv, '--rng_seed=1'])
  with pytest.raises(SystemExit):
    synthesize.main()
  assert 'rng_seed is 0 there and 1 here; name' in capsys.readouterr().err
