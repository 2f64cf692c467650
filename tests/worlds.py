"""Small hand-made tasks for the tests of the environment."""

from rods_jax.host import env
from rods_jax.host import tool_calls
from rods_jax.types import Task, Turn

TWEETS = {'username': 'ann', 'password': 'pw', 'authenticated': True}
TRAVEL = {
    'access_token': 'tok',
    'token_expires_in': 9,
    'credit_card_list': {'c1': {'balance': 9000.0}},
    'user_first_name': 'Ann',
    'user_last_name': 'Bee',
    'budget_limit': 9000.0,
}
FILES = {
    'root': {
        'w': {
            'type': 'directory',
            'contents': {
                'a.txt': {'type': 'file', 'content': 'x\ny'},
                'd': {'type': 'directory', 'contents': {}},
            },
        }
    }
}
CONFIG = {'TwitterAPI': TWEETS, 'TravelAPI': TRAVEL, 'GorillaFileSystem': FILES}


def make(*classes, truths=((),), category='base', excluded=(), new_tools=()):
  turns = tuple(Turn(f'turn {i}', tuple(t)) for i, t in enumerate(truths))
  if new_tools:
    turns = turns[:-1] + (Turn('new', turns[-1].ground_truth, new_tools),)
  return Task(
      task_id='made',
      category=category,
      scenario=0,
      classes=classes,
      initial_config={c: CONFIG[c] for c in classes if c in CONFIG},
      turns=turns,
      excluded=excluded,
  )


def run(episode, text):
  """The one result of one call."""
  (result,) = episode.execute(tool_calls.parse(text))
  return result


def run_all(episode, text):
  """The results of several calls in one message."""
  return episode.execute(tool_calls.parse(text))


def start(*classes, **kwargs):
  return env.Episode(make(*classes, **kwargs))


def solve(task):
  """The episode of a policy that answers with the ground truth."""
  episode = env.Episode(task)
  for turn in task.turns:
    calls = [tool_calls.parse_ground_truth(c) for c in turn.ground_truth]
    if calls:
      episode.execute(calls)
    episode.end_turn()
  return episode


def endless(episode):
  """Makes d hold 24 copies of itself, each of what came before: 2^24 paths."""
  for i in range(24):
    run(episode, f"cp('d', 'e{i}')")
    run(episode, f"mv('e{i}', 'd')")
