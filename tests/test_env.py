"""The episode: what is on offer, ground truths, counters, endings."""

import time

import pytest

from rods_jax.host import bfcl
from rods_jax.host import env
from rods_jax.host import tool_calls
from tests.worlds import endless, make, run, solve, start


# What is on offer.


def test_only_documented_tools_of_the_tasks_classes():
  episode = start('GorillaFileSystem', excluded=('cp',))
  assert episode.on_offer() == set(bfcl.tool_names('GorillaFileSystem')) - {
      'cp'
  }
  assert run(episode, "cat(file_name='a.txt')").ok
  for name in ('cp', 'post_tweet', '_load_scenario', '__init__', 'root',
               '__class__', 'getattr', 'eval', 'print', 'x' * 500):
    result = run(episode, f"{name}('a')")
    assert result == env.ToolResult(
        f"Error: no tool '{name[:60]}' is on offer now.", False
    )
  assert episode.num_calls == 1
  assert episode.num_tool_errors == 10


def test_withheld_tool_arrives_with_its_turn():
  task = make('GorillaFileSystem', truths=((), ("sort('a.txt')",)),
              new_tools=('sort',))
  episode = env.Episode(task)
  assert 'sort' not in episode.on_offer()
  assert not run(episode, "sort('a.txt')").ok
  episode.end_turn()
  assert 'sort' in episode.on_offer()
  assert run(episode, "sort('a.txt')").text == '{"sorted_content": "x\\ny"}'
  assert episode.end_turn().score == 1


def test_nothing_of_the_policys_text_is_evaluated(tmp_path):
  """The official executor evaluates text: this argument would run there."""
  marker = tmp_path / 'marker'
  episode = start('GorillaFileSystem')
  attack = f"cat(file_name=open('{marker}', 'w').write('x'))"
  with pytest.raises(tool_calls.ParseError):
    tool_calls.parse(attack)
  run(episode, f'echo(content={attack!r})')
  assert not marker.exists()


def test_tasks_are_never_changed():
  for task in bfcl.load_tasks().values():
    before = task.content_hash()
    solve(task)
    assert task.content_hash() == before, task.task_id


def test_ground_truth_states_are_snapshots():
  task = make('GorillaFileSystem',
              truths=(("touch('b')",), ('pwd()',), ("rm('b')",)))
  truth = env.replay(task)
  names = [set(s['GorillaFileSystem']['root'].contents) for s in truth.states]
  assert names == [{'a.txt', 'd', 'b'}, {'a.txt', 'd', 'b'}, {'a.txt', 'd'}]
  assert truth.states[0]['GorillaFileSystem'] is (
      truth.states[1]['GorillaFileSystem']
  )
  assert truth.results[1] == ('{"current_working_directory": "/w"}',)
  assert env.replay(task) is truth


def test_public_state_leaves_the_working_directory_out():
  episode = start('GorillaFileSystem')
  files = episode._world.instances['GorillaFileSystem']
  assert set(env.public_state(files)) == {'long_context', 'root'}


def test_long_results_are_cut_visibly_and_scored_whole():
  content = 'z' * 15_000
  call = f"echo(content='{content}')"
  task = make('GorillaFileSystem', truths=((call,),))
  episode = env.Episode(task, env.Limits(max_result_chars=100))
  shown = run(episode, call).text
  # '{"terminal_output": "' is 21 characters, '"}' two more.
  assert shown == (
      '{"terminal_output": "' + 'z' * 79 + '... (14923 more characters)'
  )
  assert episode.end_turn().score == 1
  other = env.Episode(task, env.Limits(max_result_chars=100))
  assert run(other, call[:-3] + "y')").text == shown
  assert other.end_turn().score == 0  # compared as shown it would score 1


def test_a_hanging_call_is_stopped_and_ends_the_episode():
  task = make('GorillaFileSystem', truths=((), ('pwd()',)))
  episode = env.Episode(task, env.Limits(call_timeout_s=0.3))
  endless(episode)
  begin = time.perf_counter()
  results = episode.execute(tool_calls.parse('du()\npwd()'))
  assert time.perf_counter() - begin < 5
  assert results[0] == env.ToolResult(
      'Error during execution: stopped after 0.3 seconds', False, True
  )
  # The simulator may be half changed: nothing runs in it any more.
  assert results[1] == env.ToolResult(
      'Not executed: an earlier call timed out.', False, True
  )
  assert episode.num_tool_errors == 2
  assert episode.end_turn().reason == 'a tool call timed out'
  # Nothing after it is scored on its merits either.
  assert episode.end_turn().score == 0


# The episode's counters and endings.


def test_counters():
  episode = start('GorillaFileSystem', truths=(('pwd()',), ()))
  assert episode.rounds_left == 5
  episode.parse_error('no calls')
  episode.execute(tool_calls.parse("pwd()\ncat('nope')\nfoo()"))
  assert episode.rounds_left == 3
  assert episode.end_turn().score == 1
  assert (episode.turn, episode.turn_rounds, episode.rounds_left) == (1, 0, 5)
  assert (episode.num_calls, episode.num_tool_errors) == (1, 2)
  assert (episode.num_parse_errors, episode.num_rounds) == (1, 3)
  episode.end_turn(forced=True)  # no message ended this turn
  assert episode.num_rounds == 3
  assert episode.done and [s.score for s in episode.scores] == [1, 0]


def test_parse_error_is_no_call():
  """Nothing due, a malformed message, then silence: answered without a call."""
  episode = start('GorillaFileSystem', truths=((),))
  episode.parse_error('what')
  assert episode.end_turn().score == 1


def test_abandon_scores_the_rest_zero():
  """Also a turn where silence would be right: it was never answered."""
  episode = start('GorillaFileSystem', truths=(('pwd()',), (), ()))
  run(episode, 'pwd()')
  episode.end_turn()
  episode.abandon('')
  assert [s.reason for s in episode.scores] == [
      '', 'never reached', 'never reached'
  ]
  assert [s.score for s in episode.scores] == [1, 0, 0]
  episode.abandon('again')
  assert episode.done and len(episode.scores) == 3
  for action in (episode.end_turn, episode.on_offer,
                 lambda: episode.execute([]), lambda: episode.parse_error('')):
    with pytest.raises(RuntimeError, match='the episode is over'):
      action()


def test_bad_ground_truth_text_is_a_parse_error():
  with pytest.raises(tool_calls.ParseError):
    env.replay(make('GorillaFileSystem', truths=(('pwd(x)',),)))
