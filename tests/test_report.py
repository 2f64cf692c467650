"""Tests of the whole page: what it says, partial runs, hostile text."""

import html.parser
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from rods_jax import errors
from rods_jax import report
from tests import fake_workdir

_VOID = {'meta', 'hr', 'br', 'img', 'link', 'input', 'path'}


class _Page(html.parser.HTMLParser):
  """Tags, attributes and text; fails on tags that do not nest."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.attributes, self.texts, self._open = set(), [], [], []
    self.feed(text)
    self.close()
    assert not self._open

  def handle_starttag(self, tag, attrs):
    self.tags.add(tag)
    self.attributes += attrs
    if tag not in _VOID:
      self._open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.add(tag)
    self.attributes += attrs

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def handle_data(self, data):
    self.texts.append(data)

  @property
  def text(self):
    return ' '.join(' '.join(self.texts).split())


def _write(workdir):
  return report.write_report(workdir).read_text(encoding='utf-8')


def _assert_inert(page):
  assert not page.tags & {
      'script', 'img', 'iframe', 'object', 'embed', 'link', 'form', 'a', 'base'
  }
  names = {name for name, _ in page.attributes}
  assert not names & {'src', 'href', 'srcset', 'action', 'background'}
  assert not [name for name in names if name.startswith('on')]


@pytest.fixture(scope='module', name='workdir')
def _workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('runs') / 'rods_fake'
  fake_workdir.make(folder)
  return folder


def test_the_headline_has_before_after_and_difference(workdir):
  page = _Page(_write(workdir))
  # fake_workdir: 0.31 + 0.16, 0.22 + 0.05, and accuracy 0.05 - 0.01.
  assert '0.310 → 0.470 +0.160' in page.text
  assert '0.220 → 0.270 +0.050' in page.text
  assert '−0.010' in page.text
  assert 'rods_fake' in page.text
  assert '40 optimizer steps 5 of 5 epochs rng_seed 0' in page.text
  assert 'Not in this report' not in page.text


def test_every_figure_is_there(workdir):
  text = _write(workdir)
  assert text.count('<svg') == 8
  page = _Page(text)
  for words in (
      'Hard Boundary Mastered', 'human generated', 'injected retired',
      'largest possible, r(1 − r)', 'training, mean of 5 steps',
      'greedy, held-out variants', '3 of 3 turns right', '2 of 3 turns right',
      '0 of 3 turns right', 'zone mastered', 'zone boundary', 'zone hard',
      "mv(source='report_2020.txt', destination='final')",
      'state of GorillaFileSystem differs', 'nothing: ends the turn',
      'substitute', 'rollout', 'MAX_ROUNDS', 'num_epochs',
  ):
    assert words in page.text, words


def test_the_pool_in_numbers(workdir):
  """64 human; 12 + 11 + 10 + 9 + 8 = 50 injected; a quarter of the generated
  retires: 0, 3 of 12, 5 of 20, 6 of 25, 7 of 28 = 21; 64 + 50 - 21 = 93."""
  page = _Page(_write(workdir))
  assert '64 → 93 tasks; 50 injected, 21 retired' in page.text


def test_the_page_is_self_contained_small_and_fast(workdir):
  begin = time.perf_counter()
  text = _write(workdir)
  assert time.perf_counter() - begin < 5
  assert len(text.encode()) < 1_500_000
  page = _Page(text)
  _assert_inert(page)
  assert 'http' not in text.replace('http-equiv', '')
  assert 'url(' not in text and '@import' not in text
  assert "default-src 'none'" in text
  assert 'prefers-color-scheme: dark' in text
  assert 'width=device-width' in text


def test_a_script_in_a_tool_result_is_text(workdir):
  """The tool of the wrong trajectory answers with a script and an image."""
  text = _write(workdir)
  page = _Page(text)
  assert fake_workdir.HOSTILE in page.text  # shown as it was ...
  assert '<script' not in text and '<img' not in text  # ... and not run
  _assert_inert(page)


def test_hostile_text_anywhere_is_inert(tmp_path):
  bad = '</pre></style><script>x</script>\'"><img src=x onerror=y>{{ 7*7 }}'
  trajectory = fake_workdir._trajectory(0, 1, 0, (1, 0))
  trajectory.update(task_id=bad, category=bad, status=bad, sample=bad)
  trajectory['turn_scores'][1]['reason'] = bad
  for event in trajectory['events']:
    event['text'] = bad
  trajectory['events'][2]['role'] = bad
  row = {
      'step': 1, 'train/epoch': 0, 'boundary/boundary': 1, f'time/{bad}': 1.0,
      'time/total': 2.0, f'rollout/status_{bad}': 1.0,
      f'synthesis/{bad}_accepted': 1, f'synthesis/{bad}_rejected': 1,
  }
  values = {'progress': 0.5, 'accuracy': 0.5, 'num_tasks': bad}
  evaluation = {'step': bad, 'splits': {bad: {bad: values}}}
  folder = tmp_path / '<b onclick=x>'
  folder.mkdir()
  fake_workdir.write_lines(folder / 'trajectories.jsonl', [trajectory])
  fake_workdir.write_lines(folder / 'metrics.jsonl', [row])
  (folder / 'eval.json').write_text(json.dumps(evaluation))
  (folder / 'config.json').write_text(json.dumps({bad: bad, 'rng_seed': bad}))
  text = _write(folder)
  page = _Page(text)
  _assert_inert(page)
  assert 'b' not in page.tags and '{{ 7*7 }}' in page.text
  assert text.count('</style>') == 1


@pytest.mark.parametrize('num_lines', [0, 1, 2, 9, 10, 41])
def test_a_run_killed_after_any_step_gives_a_page(tmp_path, num_lines):
  fake_workdir.make(tmp_path)
  for name in ('metrics.jsonl', 'pool.jsonl', 'trajectories.jsonl'):
    lines = (tmp_path / name).read_text().splitlines(keepends=True)
    kept = ''.join(lines[:num_lines]) + '{"step": 4, "tra'
    (tmp_path / name).write_text(kept)
  (tmp_path / 'eval.json').unlink()
  page = _Page(_write(tmp_path))
  assert 'Not in this report' in page.text
  assert '1 unreadable line was left out' in page.text
  if num_lines == 0:
    assert 'No optimizer step has been recorded yet' in page.text
  if num_lines == 2:  # the evaluation before, and step 1
    assert '0.310 → n/a' in page.text
    assert 'There is no evaluation from after training' in page.text
    assert 'The run has closed 0 of 5 epochs' in page.text
    assert 'No synthesis has been reported yet' in page.text


def test_an_empty_folder_gives_a_page(tmp_path):
  assert 'metrics.jsonl does not exist' in _Page(_write(tmp_path)).text


def test_a_missing_folder_is_an_error_that_leaves_nothing(tmp_path):
  with pytest.raises(errors.UserError, match='is no directory'):
    report.write_report(tmp_path / 'missing')
  assert not list(tmp_path.iterdir())


def test_writing_twice_gives_the_same_bytes(workdir):
  assert _write(workdir) == _write(workdir)
  assert not list(workdir.glob('*.tmp'))


def test_a_long_run_stays_small(tmp_path):
  """20,000 steps, each closing an epoch, and 40,000 visits are thinned."""
  rows = [
      {'step': s, 'train/epoch': s // 100, 'reward/mean': (s % 97) / 97,
       'boundary/boundary': s % 50}
      for s in range(20_000)
  ]
  events = [
      {'event': 'visit', 'epoch': 0, 'id': i, 'mean': (i % 3989) / 3989,
       'variance': (i % 997) / 3988, 'zone': 'boundary'}
      for i in range(40_000)
  ]
  fake_workdir.write_lines(tmp_path / 'metrics.jsonl', rows)
  fake_workdir.write_lines(tmp_path / 'pool.jsonl', events)
  text = _write(tmp_path)
  assert len(text.encode()) < 1_500_000
  assert 'epoch (one in 134)' in _Page(text).text  # 20,000 / 150


def test_summary_rows_are_the_pages_numbers(workdir):
  rows = report.summary_rows(workdir)
  assert rows[0] == ('evaluation, greedy', 'before', 'after', 'change')
  name, before, after, change = rows[1]
  assert name == 'Held-out variants of training scenarios: progress'
  assert (before, after) == (0.31, 0.47)
  assert change == pytest.approx(0.16)
  assert len(rows) == 5


def test_command_line(workdir, tmp_path):
  command = [sys.executable, '-m', 'rods_jax.report']
  environment = {**os.environ, 'PYTHONPATH': '.'}
  good = subprocess.run(
      [*command, str(workdir)], env=environment, capture_output=True, text=True
  )
  assert good.returncode == 0 and 'report.html' in good.stderr
  bad = subprocess.run(
      [*command, str(tmp_path / 'missing')], env=environment,
      capture_output=True, text=True,
  )
  assert bad.returncode == 1
  assert bad.stderr.startswith('Error:') and bad.stderr.count('\n') == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**20) | st.text(max_size=5)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def _records(keys):
  fields = st.dictionaries(
      st.sampled_from(keys), _JSON | st.sampled_from([0, 1, 2, 0.5]),
      max_size=len(keys),
  )
  return st.lists(fields, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    rows=_records(
        ['step', 'train/epoch', 'reward/mean', 'boundary/hard',
         'boundary/boundary', 'boundary/variance_hard', 'pool/size',
         'pool/generated', 'time/total', 'time/host', 'rollout/status_DONE',
         'synthesis/a_accepted', 'eval/heldout_variants_progress']
    ),
    events=st.lists(
        st.fixed_dictionaries(
            {'event': st.sampled_from(['added', 'visit', 'retired', 'seed'])},
            optional={
                'epoch': _JSON, 'id': _JSON, 'mean': _JSON, 'variance': _JSON,
                'zone': st.sampled_from(['hard', 'x']), 'task_id': _JSON,
            },
        ),
        max_size=4,
    ),
    trajectories=_records(
        ['step', 'epoch', 'task_id', 'turn_scores', 'events', 'status']
    ),
    config=_JSON,
    evaluation=st.dictionaries(st.sampled_from(['step', 'splits']), _JSON),
)
def test_no_file_content_breaks_the_page(
    rows, events, trajectories, config, evaluation
):
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    fake_workdir.write_lines(folder / 'metrics.jsonl', rows)
    fake_workdir.write_lines(folder / 'pool.jsonl', events)
    fake_workdir.write_lines(folder / 'trajectories.jsonl', trajectories)
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'eval.json').write_text(json.dumps(evaluation))
    _assert_inert(_Page(_write(folder)))
