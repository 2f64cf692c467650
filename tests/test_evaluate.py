"""Scores by hand; --mode=evaluate with and without a checkpoint."""

import json
import shutil

import jax
import numpy as np
import pytest

from rods_jax import build
from rods_jax import errors
from rods_jax import evaluate
from rods_jax import types
from rods_jax import weights
from tests import tiny


def trajectory(*turns):
  """One whose turns are right (1) or wrong (0)."""
  scores = tuple(
      types.TurnScore(bool(t), bool(t), '' if t else 'no call') for t in turns
  )
  nothing = np.zeros(0)
  return types.Trajectory(
      task_id='t', sample=0, tokens=nothing, loss_mask=nothing,
      logprobs=nothing, turn_scores=scores, status=types.Status.DONE,
      policy_version=0, num_rounds=0, num_calls=0, num_tool_errors=0,
      num_parse_errors=0,
  )


def task(category):
  return types.Task('t', category, 0, (), {}, ())


def test_scores_by_hand():
  """base: (1/2 + 1) / 2 = 3/4; one of two is right in all turns.

  miss_func: 1/4. All three: (1/2 + 1 + 1/4) / 3 = 7/12, not the mean of the
  categories, 1/2.
  """
  tasks = [task('miss_func'), task('base'), task('base')]
  played = [trajectory(0, 1, 0, 0), trajectory(1, 0), trajectory(1, 1)]
  scores = evaluate.score(tasks, played)
  assert list(scores) == ['base', 'miss_func', 'all']
  assert scores['base'] == evaluate.Score(0.5, 0.75, 2)
  assert scores['miss_func'] == evaluate.Score(0.0, 0.25, 1)
  assert scores['all'].accuracy == pytest.approx(1 / 3)
  assert scores['all'].progress == pytest.approx(7 / 12)
  assert scores['all'].num_tasks == 3


def test_no_tasks_no_scores():
  """A mean over nothing would be NaN."""
  results = {'heldout_variants': evaluate.score([], [])}
  assert results == {'heldout_variants': {}}
  assert evaluate.metrics(results) == {}


def test_eval_json(tmp_path):
  scores = evaluate.score([task('base')], [trajectory(1, 0)])
  config = tiny.get_config()
  config.eval.temperature = 0.5
  config.rollout.top_k = 3
  evaluate.write(config, tmp_path / 'new', 7, {'heldout_variants': scores})
  score = {'accuracy': 0.0, 'progress': 0.5, 'num_tasks': 1}
  assert json.loads((tmp_path / 'new' / 'eval.json').read_text()) == {
      'step': 7,
      'temperature': 0.5,
      'top_k': 3,
      'top_p': 1.0,
      'splits': {'heldout_variants': {'base': score, 'all': score}},
  }
  assert evaluate.metrics({'heldout_variants': scores}) == {
      'eval/heldout_variants_progress': 0.5,
      'eval/heldout_variants_accuracy': 0.0,
  }


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='Cannot write to'):
    evaluate.write(tiny.get_config(), tmp_path / 'file', 0, {})


def test_without_a_checkpoint_the_initial_policy_is_evaluated(
    tiny_run, tiny_policy, tmp_path, capsys
):
  """It scores what the run scored before training."""
  config = tiny.run_config(tiny_policy)
  assert evaluate.evaluate_run(config, tmp_path / 'run') == 0
  shown = capsys.readouterr().out
  found = json.loads((tmp_path / 'run' / 'eval.json').read_text())
  assert found['step'] == 0
  before = tiny.rows(tiny_run[1])[0]
  for split in ('heldout_variants', 'heldout_scenarios'):
    scores = found['splits'][split]['all']
    assert scores['progress'] == before[f'eval/{split}_progress']
    assert scores['num_tasks'] == 2
    assert split in shown


def test_with_one_the_newest_is_evaluated(
    tiny_run, tiny_policy, tmp_path
):
  """The same file as at the end of training."""
  outcome, workdir = tiny_run
  shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
  (tmp_path / 'eval.json').unlink()
  assert evaluate.evaluate_run(tiny.run_config(tiny_policy), tmp_path) == 0
  text = (tmp_path / 'eval.json').read_text()
  assert text == (workdir / 'eval.json').read_text()
  assert json.loads(text)['step'] == outcome.position.step


def test_each_split_gets_the_scores_of_its_own_tasks(monkeypatch, tiny_policy):
  """Three tasks in all, of which the second and the third are right."""
  tasks = [task('base'), task('miss_func'), task('base')]
  played = [trajectory(1, 0), trajectory(1, 1), trajectory(1, 1)]
  monkeypatch.setattr(evaluate, 'play', lambda *args: played)
  config = tiny.run_config(tiny_policy)
  found = evaluate.evaluate_tasks(
      config, None, None, {'one': tasks[:1], 'two': tasks[1:]}, object()
  )
  assert {k: v['all'].accuracy for k, v in found.items()} == {
      'one': 0.0, 'two': 1.0
  }
  assert [v['all'].num_tasks for v in found.values()] == [1, 2]


class _Noted:
  """Stands for engines: notes how they are to sample."""

  num_slots, capacity = 1, 1

  def __init__(self):
    self.calls, self.each = [], [self]

  def reset(self, params, key, **how):
    self.calls.append(how | {'key': jax.random.key_data(key).tolist()})

  def release(self):
    self.calls.append('release')


def test_it_samples_as_configured_and_frees_its_parameters(tiny_policy):
  """The engine's converted copy once stayed beside the update."""
  config = tiny.run_config(
      tiny_policy, eval__temperature=0.6, rollout__top_k=20, rollout__top_p=0.9
  )
  policy, engine = build.build_policy(config), _Noted()
  splits = {'one': [], 'other': []}
  evaluate.evaluate_tasks(config, policy, None, splits, engine)
  how, end = engine.calls  # both splits are played together
  assert end == 'release' and how.pop('key')
  assert how == {'temperature': 0.6, 'top_k': 20, 'top_p': 0.9}
  with config.unlocked():
    config.eval.temperature = 0.0
  evaluate.evaluate_tasks(config, policy, None, {'one': []}, engine)
  assert engine.calls[2]['greedy'] is True


def test_two_copies_of_the_policy_never_stand_side_by_side(
    tiny_policy, monkeypatch
):
  """The old one was kept until the new one was placed."""
  config = tiny.run_config(tiny_policy)
  policy = build.build_policy(config)
  engines = build.build_engines(config, policy)
  params = weights.initial_params(config, policy)
  first, second = engines.each
  place, before = first.programs.place, []

  def note(params):
    before.append((first._params, second._params))
    return place(params)

  monkeypatch.setattr(first.programs, 'place', note)
  for _ in range(2):
    engines.reset(params, jax.random.key(0), temperature=1.0)
  assert before == [(None, None)] * 2  # placed once for both
  assert first._params is second._params is not None
  engines.release()
  assert first._params is second._params is None


def test_a_result_does_not_depend_on_the_other_tasks(tiny_policy):
  """Greedy rows are alone in their slots: any order, any company."""
  config = tiny.run_config(tiny_policy)
  policy = build.build_policy(config)
  engines = build.build_engines(config, policy)
  params = weights.initial_params(config, policy)
  tasks = list(build.build_tasks(config).seeds)[:3]
  together = evaluate.play(config, policy, engines, params, tasks)
  alone = evaluate.play(config, policy, engines, params, tasks[2:])
  np.testing.assert_array_equal(together[2].tokens, alone[0].tokens)
  assert engines.num_programs <= 5  # shared: 3 pieces, decode, copy


def test_one_engine_or_two_play_the_same(tiny_policy):
  """Sampled, not greedy: the streams are of the rows, not of the engines."""
  played = []
  for number in (1, 2):
    config = tiny.run_config(
        tiny_policy, rollout__num_engines=number, eval__temperature=1.0
    )
    policy = build.build_policy(config)
    engines = build.build_engines(config, policy)
    assert len(engines.each) == number
    params = weights.initial_params(config, policy)
    tasks = list(build.build_tasks(config).seeds)[:6]
    played.append(evaluate.play(config, policy, engines, params, tasks))
  for one, other in zip(*played, strict=True):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
