"""Rollouts against a scripted generator: slots, groups, refills."""

import dataclasses

import pytest

from rods_jax.host import env
from rods_jax.host import env_pool
from rods_jax.host import rollout
from tests import scripted
from tests.scripted import check_row, control, files, ids, prompt


def varied(uid, number, row):
  """Messages whose number and length depend on the row's own stream alone."""
  del row
  if number % 3 == 2:
    return [control('<end>')]
  text = 'pwd()' if (uid + number) % 2 else "ls(a=True);" * (uid % 4 + 1)
  return scripted.spoken(text)


@pytest.mark.parametrize('refill_below', [0.0, 0.5, 0.9])
@pytest.mark.parametrize('num_slots', [1, 3, 16])
@pytest.mark.parametrize('overlap_tokens', [0, 1, 7])
def test_results_do_not_depend_on_slots_or_refill(
    num_slots, refill_below, overlap_tokens
):
  task = files(('pwd()',), ('ls()',))
  expected, _ = scripted.play(task, varied, samples=8, num_slots=8)
  found, generator = scripted.play(
      task, varied, samples=8, num_slots=num_slots, refill_below=refill_below,
      overlap_tokens=overlap_tokens,
  )
  for uid, (a, b) in enumerate(zip(expected, found, strict=True)):
    check_row(b, generator, uid)
    assert a.sample == b.sample == uid
    assert a.tokens.tolist() == b.tokens.tolist()
    assert a.logprobs.tolist() == b.logprobs.tolist()
    assert a.turn_scores == b.turn_scores and a.events == b.events


def test_siblings_get_their_own_world():
  """One sibling moves the file; the others must still find it."""
  task = files(("cat('a.txt')",))
  say = lambda uid, number, row: scripted.spoken(
      ["mv('a.txt', 'd')" if uid == 0 else "cat('a.txt')", ''][min(number, 1)]
  )
  found, _ = scripted.play(task, say, samples=3)
  assert [t.progress for t in found] == [0, 1, 1]


def test_group_prompt_is_prefilled_once():
  """Two groups of four: two prompts in one extend, six copies."""
  a, b = files(('pwd()',)), files(('ls()',))
  b = dataclasses.replace(b, task_id='other')
  jobs = [
      rollout.Job(task, i, 4 * k + i)
      for k, task in enumerate((a, b))
      for i in range(4)
  ]
  generator = scripted.Generator(scripted.script(''), num_slots=8)
  rollout.rollout(
      jobs, generator, scripted.fmt(), rollout.Budgets(50, env.Limits())
  )
  n = len(prompt(a))
  # 2 * n prompt tokens, not 8 * n.
  assert [e for e in generator.log if e[0] == 'extend'] == [
      ('extend', {0: n, 4: n})
  ]
  assert [e for e in generator.log if e[0] == 'copy'] == [
      ('copy', 0, (1, 2, 3), n), ('copy', 4, (5, 6, 7), n)
  ]


def test_later_siblings_copy_from_a_live_donor():
  """Two slots, three samples; uid 0 plays on while uid 1 ends and 2 starts."""
  task = files(('pwd()',))
  say = lambda uid, number, row: scripted.spoken(
      'pwd()' if uid == 0 and number < 4 else ''
  )
  found, generator = scripted.play(task, say, samples=3, num_slots=2)
  n = len(prompt(task))
  assert [e for e in generator.log if e[0] == 'copy'] == [
      ('copy', 0, (1,), n), ('copy', 0, (1,), n)
  ]
  prompts = [
      e for e in generator.log if e[0] == 'extend' and n in e[1].values()
  ]
  assert len(prompts) == 1
  for uid, t in enumerate(found):
    check_row(t, generator, uid)


def test_refill_waits_for_the_share_of_running_slots():
  """16 rows at a share of 0.25: decode may return at 4 running, not before."""
  _, generator = scripted.play(
      files(('pwd()',)), varied, samples=16, num_slots=16, refill_below=0.25
  )
  first = next(e for e in generator.log if e[0] == 'decode')
  assert first[2] == 4


class _Noting(env_pool.InProcess):
  """Notes in the generator's log when tools run."""

  def __init__(self):
    self.log = []

  def execute(self, batch):
    if batch:
      self.log.append(('tools', len(batch)))
    return super().execute(batch)


@pytest.mark.parametrize('overlap_tokens', [0, 2])
def test_tools_run_between_the_begin_and_the_end_of_a_decode(overlap_tokens):
  """uid 0 says three long messages while the others call tools."""
  task = files(('pwd()',))
  talk = {0: 'pwd();' * 20, 1: 'pwd()', 2: 'pwd()'}
  say = lambda uid, number, row: scripted.spoken(
      talk[uid] if number < 3 else ''
  )
  noting = _Noting()
  generator = scripted.Generator(say, num_slots=3)
  generator.log = noting.log
  rollout.rollout(
      [rollout.Job(task, i, i) for i in range(3)], generator, scripted.fmt(),
      rollout.Budgets(500, env.Limits(), 0.5, overlap_tokens),
      environments=noting,
  )
  names = [entry[0] for entry in noting.log if entry[0] != 'extend']
  inside = [
      names[i - 1] == 'decode' and names[i + 1] == 'taken'
      for i, name in enumerate(names) if name == 'tools'
  ]
  if not overlap_tokens:
    assert inside and not any(inside)
    return
  assert sum(inside) == 3  # later uid 0 is alone
  # What is decoded meanwhile ends soon, so that the answered rows go on.
  for before, after in zip(noting.log, noting.log[1:]):
    if (before[0], after[0]) == ('decode', 'tools'):
      assert max(before[1].values()) <= overlap_tokens and before[2] == 0


def test_times_and_counts_of_a_rollout():
  generator = scripted.Generator(scripted.script('pwd()', ''))
  result = rollout.rollout(
      [rollout.Job(files(('pwd()',)), i, i) for i in range(3)],
      generator, scripted.fmt(), rollout.Budgets(50, env.Limits()),
  )
  assert result.generate_s > 0 and result.host_s > 0
  assert result.row_tokens == sum(len(r) for r in generator.rows.values())
  assert result.sampled_tokens == 3 * (len(ids('pwd()')) + 2)
  empty = rollout.rollout(
      [], generator, scripted.fmt(), rollout.Budgets(50, env.Limits())
  )
  assert empty.trajectories == [] and empty.row_tokens == 0
