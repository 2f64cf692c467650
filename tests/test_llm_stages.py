"""A language model behind the stages, over real HTTP, from a seed to a task."""

import copy
import dataclasses
import json
import threading

import pytest

from experiments import synthesize
from rods_jax.host.synthesis import (
    corpus, flow, pipeline, profile, quality, trace,
)  # pyformat: disable
from rods_jax.host.synthesis.llm import client as client_lib
from rods_jax.host.synthesis.records import Report
from tests.llm_script import ALL, SEED, SEEDS, Model, composed, made, rng_of
from tests.llm_server import Reply, serve


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
  for name in ('HTTP_PROXY', 'http_proxy', 'ALL_PROXY', 'OPENAI_API_KEY'):
    monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope='module')
def model():
  return Model(SEEDS)


@pytest.fixture(scope='module')
def four(model, tmp_path_factory):
  folder = tmp_path_factory.mktemp('cache')
  return *made(model, SEEDS, cache=str(folder)), folder


def test_right_answers_give_a_task_of_each_category(four):
  """Three requests each: plan, words, verdict."""
  tasks, report, server, _ = four
  assert [t.parent for t in tasks] == [s.task_id for s in SEEDS]
  assert [t.category for t in tasks] == [s.category for s in SEEDS]
  assert (report.attempts, report.accepted) == (4, 4)
  assert report.llm['requests'] == len(server.requests) == 12
  assert report.llm['prompt_tokens'] == 12_000
  assert report.metrics('compose')['synthesis/llm/requests'] == 12


def test_the_tasks_pass_the_gates_of_any_other(four):
  for task in four[0]:
    executed, seed = trace.run(task), ALL[task.parent]
    assert all(step.ok for step in executed.steps)
    assert quality.unsourced(executed, discoverable=False) == ()
    ours, theirs = profile.of(task), profile.of(seed)
    assert (ours.calls, ours.depth) == (theirs.calls, theirs.depth)
    assert ours.tools != theirs.tools
    kinds = {found.kind for found in flow.flows(executed)}
    assert flow.OUTPUT in kinds, task.task_id


def test_the_second_run_asks_for_nothing(four, model):
  tasks, report, server, folder = four
  again, counted, other = made(model, SEEDS, cache=str(folder))
  assert again == tasks
  assert other.requests == [] and counted.llm['requests'] == 0
  assert (counted.llm['cached'], counted.llm['cost']) == (12, 0)
  assert counted.reasons == report.reasons


@pytest.mark.parametrize('concurrency', [1, 3])
def test_a_run_is_reproducible_however_many_are_in_work(
    four, model, concurrency
):
  """Without a cache; the order of requests differs, the tasks do not."""
  tasks, _, server = made(model, SEEDS, concurrency=concurrency)
  assert tasks == four[0]
  seeds = sorted(body['seed'] for body in server.requests)
  assert seeds == sorted(body['seed'] for body in four[2].requests)
  assert len(set(seeds)) == 12


WRONG_FORMS = {
    'rate limit': ('the server answered 429', Reply('x', 429)),
    'broken': ('the server answered 500', Reply('x', 500)),
    'truncated': ('it ends before the JSON does', '{"story": "A'),
    'prose': ('it holds no JSON object', 'I would rather not.'),
}


@pytest.mark.parametrize('form', WRONG_FORMS)
@pytest.mark.parametrize('role', ['planner', 'writer', 'judge'])
def test_without_an_answer_there_is_a_rejection_and_no_task(form, role):
  reason, wrong = WRONG_FORMS[form]
  model = Model()
  model.spoiled[role] = [wrong] * 6
  tasks, report, _ = made(model)
  stage = {'planner': 'plan', 'writer': 'rewrite', 'judge': 'critique'}[role]
  assert tasks == [] and report.failed_seeds == 1
  (key,) = report.reasons
  digits = ''.join(c for c in reason if not c.isdigit())
  assert key.startswith(stage) and digits in key


def test_a_server_that_is_too_slow_or_gone_gives_no_task():
  model = Model()
  model.spoiled['planner'] = [Reply('x', delay_s=0.5)] * 3
  tasks, report, server = made(model, timeout_s=0.2)
  assert tasks == [] and report.llm['requests'] == 3
  assert report.reasons == {'plan: the server took too long': 1}
  gone = Report()  # its port is closed by now
  assert composed((SEED,), 3, gone, server.config()) == []
  assert gone.reasons == {'plan: no connection to the server': 3}
  assert gone.failed_seeds == 1 and gone.llm['failures'] == 3


@pytest.mark.parametrize(
    'wrong',
    [
        '{"story": "A',
        'I would rather not.',
        Reply('x', 500),
        Reply('{"story"', finish='length'),
    ],
    ids=str,
)
@pytest.mark.parametrize('role', ['planner', 'writer', 'judge'])
def test_one_bad_answer_is_asked_for_again(role, wrong, four):
  """Four requests for the same task; the retries' answers are the same."""
  model = Model()
  model.spoiled[role] = [wrong]
  tasks, report, server = made(model)
  assert [t.turns for t in tasks] == [four[0][0].turns]
  assert len(server.requests) == 4


def test_prose_around_the_json_does_no_harm(four):
  model = Model()
  for role, answer in zip(('planner', 'writer'), model.right[0]):
    text = f'<think>{{"a": 1}}</think>Sure:\n```json\n{json.dumps(answer)}\n```'
    model.spoiled[role] = [text]
  tasks, _, server = made(model)
  assert tasks == four[0][:1] and len(server.requests) == 3


def spoil_text(model, text):
  wording = copy.deepcopy(model.right[0][1])
  wording['queries'][-1] = text
  return json.dumps(wording)


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('Bitte erstelle noch eine Datei mit diesem Namen.', 'in English'),
        ('Please use get_stock_info now.', 'names a tool'),
        ('Please do what you want.', 'leaves out what the user brings'),
        ('   ', 'empty'),
        ('Please go on. ' * 100, 'too long'),
        (7, 'no text'),
    ],
)
def test_bad_words_are_asked_for_again_and_then_rejected(text, reason):
  model = Model()
  model.spoiled['writer'] = [spoil_text(model, text)] * 2
  tasks, report, server = made(model)
  assert tasks == [] and report.rejected['rewrite'] == 1
  assert reason in next(iter(report.reasons))
  first, second = model.asked['writer']
  assert second['messages'][:2] == first['messages']
  assert reason in second['messages'][3]['content']
  assert model.asked['judge'] == []


# Many tasks.


def test_the_same_task_twice_at_once_is_dropped():
  """Alone, the later one knows of the earlier one, and asks for no words that
  could not make it new; it would ask 12 times."""
  for concurrency, reason, written in (
      (2, 'duplicate: made at the same time', 2),
      (1, 'duplicate: the calls of a known task', 1),
  ):
    model = Model()
    tasks, report, _ = made(model, [SEED, SEED], concurrency=concurrency)
    assert len(tasks) == 1 and report.reasons == {reason: 1}
    assert (report.attempts, report.accepted, report.failed_seeds) == (2, 1, 1)
    assert len(model.asked['writer']) == written


def test_what_is_known_does_not_depend_on_time():
  """Two at once: the second knows nothing of the first, the third does. The
  second gets its words when the third has begun, so when the first is done."""
  model, begun = Model(), threading.Event()
  plan, words = map(json.dumps, model.right[0])
  model.spoiled['planner'] = [
      plan, plan, lambda body: begun.set() or Reply(plan)
  ]
  model.spoiled['writer'] = [words, Reply(words, after=begun)]
  tasks, report, _ = made(model, [SEED] * 3, concurrency=2)
  assert len(tasks) == 1
  assert report.reasons == {
      'duplicate: made at the same time': 1,
      'duplicate: the calls of a known task': 1,
  }


def test_a_request_of_the_training_loop_asks_the_server(tmp_path):
  """Random streams differ from those of `made`: all plans are refused, which
  the request survives. The account comes back with its report."""
  model = Model(SEEDS)
  with serve(model) as server:
    config = server.config(cache=str(tmp_path))
    request = pipeline.Request(
        0, tuple(SEEDS[:2]), 2, rng_seed=1, planner='compose',
        llm=dataclasses.asdict(config),
    )  # pyformat: disable
    request = pipeline.Request.from_json(json.loads(json.dumps(
        request.to_json()
    )))  # pyformat: disable
    tasks, report = pipeline.run_request(request)
    sent = len(server.requests)
    assert pipeline.run_request(request)[0] == tasks
    assert len(server.requests) == sent
  assert report.failed_seeds == 4 - len(tasks)
  assert report.llm['requests'] == sent > 4
  assert json.loads(json.dumps(report.to_json())) == report.to_json()


@pytest.fixture
def command(monkeypatch, capsys):
  """Runs the command on one seed: (its numbers, None) or (None, its error)."""
  monkeypatch.setattr(synthesize, 'seeds', lambda: [SEED])
  monkeypatch.setattr(synthesize.rng_lib, 'host', lambda *args: rng_of(SEED))
  monkeypatch.setattr(synthesize.pipeline, 'is_heldout', lambda task: False)

  def run(server, *flags):
    monkeypatch.setattr('sys.argv', [
        'synthesize', '--json', '--language=openai', '--model=m',
        f'--base_url={server.url}', '--cache=', *flags,
    ])  # pyformat: disable
    try:
      synthesize.main()
    except SystemExit as stop:
      assert stop.code == 2
      return None, capsys.readouterr().err
    return json.loads(capsys.readouterr().out), None

  return run


def test_the_command_reports_tokens_and_cost(tmp_path, command):
  """Three requests of 1,000 and 10 tokens at 2 and 30 a million: 0.0069."""
  for name, requests in (('a', 3), ('b', 0)):
    with serve(Model()) as server:
      found, _ = command(
          server, '--n=1', f'--cache={tmp_path / "cache"}', '--prompt_price=2',
          '--completion_price=30', '--json_mode=False',
          f'--out={tmp_path / name}',
      )  # pyformat: disable
    assert found['accepted'] == 1
    assert found['language model']['requests'] == requests
    assert found['language model']['cached'] == 3 - requests
    assert found['language model']['cost'] == pytest.approx(0.0023 * requests)
    assert all('response_format' not in body for body in server.requests)
  a, b = (list(corpus.read_tasks(tmp_path / n)) for n in 'ab')
  assert a == b and len(a) == 1


@pytest.mark.parametrize(('n', 'before', 'kept'), [
    (1, 0, 0), (4, 0, 0), (2, 3, 1), (4, 3, 1),
])  # pyformat: disable
def test_a_server_that_refuses_the_key_leaves_the_numbers(
    n, before, kept, tmp_path, command
):
  """A task takes three requests, the plans of later numbers one an attempt, as
  their calls are known. One number sends 3 requests in vain, three would send 9
  of which 8 are sent. All of that used to be a finished, empty corpus; later,
  a server that had answered and was silent at the end left failed numbers."""
  model, left = Model(), [before]

  def script(body):
    left[0] -= 1
    return model(body) if left[0] >= 0 else Reply('no', 401)

  flags = f'--n={n}', '--concurrency=1', f'--out={tmp_path / "c"}'
  with serve(script) as server:
    found, message = command(server, *flags)
    assert found is None and message.startswith('error: ')
    assert message.count('\n') == 1 and 'the server answered 401' in message
    assert 'OPENAI_API_KEY' in message
    vain = min(3 * (n - kept), client_lib.GIVE_UP)
    assert len(server.requests) == before + vain
    lines = (tmp_path / 'c' / 'attempts-00000.jsonl').read_text()
    assert lines.count('\n') == kept
    left[0] = 999
    found, _ = command(server, *flags)
  assert found['accepted'] == 1
  assert corpus.read_manifest(tmp_path / 'c')['counts']['numbers'] == n
  assert not any('answered' in reason for reason in found['reasons'])


def test_a_question_that_is_refused_ends_no_corpus(tmp_path, command):
  """As one that is too long for the model would be, each time."""
  model, left = Model(), [3]

  def script(body):
    left[0] -= 1
    return model(body) if left[0] >= 0 else Reply('too long', 400)

  with serve(script) as server:
    found, _ = command(
        server, '--n=2', '--concurrency=1', f'--out={tmp_path / "c"}'
    )
  assert found['accepted'] == 1
  assert found['reasons'] == {'plan: the server answered ': 3}


@pytest.mark.parametrize('flag', [
    'temperature=0.9', 'top_p=0.6', 'max_tokens=4000', 'json_mode=False',
    'concurrency=2', 'model=other',
])  # pyformat: disable
def test_other_sampling_does_not_continue_a_corpus(flag, tmp_path, command):
  name, value = flag.split('=')
  with serve(lambda body: Reply('no', 401)) as server:
    flags = '--n=1', f'--out={tmp_path / "c"}'
    command(server, *flags)  # leaves a corpus of no number
    _, message = command(server, *flags, f'--{flag}')
  assert message.startswith('error: ') and message.count('\n') == 1
  assert f': {name} is ' in message and f'{value}' in message


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, command):
  (tmp_path / 'file').write_text('')
  with serve(Model()) as server:
    _, message = command(server, '--n=1', f'--out={tmp_path / "file" / "c"}')
  assert message.startswith('error: ') and message.count('\n') == 1
  assert 'cannot be written' in message


@pytest.mark.parametrize(
    ('flag', 'words'),
    [
        ('--base_url=localhost', 'config.synthesis.llm.base_url'),
        ('--base_url=http://a:b@c/v1', 'without a password'),
        ('--concurrency=0', 'config.synthesis.llm.concurrency'),
        ('--json_mode=maybe', 'True or False'),
        ('--language=latin', 'config.synthesis.language'),
    ],
)
def test_wrong_flags_are_one_line(flag, words, monkeypatch, capsys):
  monkeypatch.setattr('sys.argv', ['synthesize', '--language=openai', flag])
  with pytest.raises(SystemExit):
    synthesize.main()
  assert words in capsys.readouterr().err.splitlines()[-1]


def test_without_the_package_the_command_says_what_to_install(
    monkeypatch, capsys
):
  monkeypatch.setattr(
      client_lib.importlib.util, 'find_spec', lambda name: None
  )
  monkeypatch.setattr('sys.argv', ['synthesize', '--language=openai'])
  with pytest.raises(SystemExit):
    synthesize.main()
  assert 'requirements-llm.txt' in capsys.readouterr().err.splitlines()[-1]
