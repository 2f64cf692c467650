"""The page of trajectories: what it shows, and that no text gets out of data.

A browser, where one is installed, runs the script of the page.
"""

import base64
import hashlib
import html.parser
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from experiments import view
from experiments import view_data
from rods_jax import errors
from rods_jax import records
from tests import fake_workdir
from tests import scripted

HOSTILE = '</script><script>alert(1)</script><!--<script>'
_BROWSER = shutil.which('chromium') or shutil.which('google-chrome')


class Scripts(html.parser.HTMLParser):
  """Collects script elements, and every address that a page would load."""

  def __init__(self, text):
    super().__init__()
    self.scripts, self.addresses, self._open = [], [], None
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    if tag == 'script':
      self._open = dict(attrs)
      self.scripts.append([self._open, ''])
    self.addresses += [v for k, v in attrs if k in ('src', 'href')]

  def handle_endtag(self, tag):
    if tag == 'script':
      self._open = None

  def handle_data(self, data):
    if self._open is not None:
      self.scripts[-1][1] += data


def lines(content=HOSTILE, step=0):
  """A group of two: one right; one wrong whose calls and results are evil."""
  task = scripted.files(('pwd()',), (f'echo(content={HOSTILE!r})',))
  messages = [
      ['pwd()', '', f'echo(content={HOSTILE!r})', ''],
      [f'echo(content={content!r})', 'pwd(', '', ''],
  ]
  say = lambda uid, number, row: scripted.spoken(messages[uid][number])
  group, _ = scripted.play(task, say, samples=2)
  assert [t.progress for t in group] == [1.0, 0.0]
  return group, records.group_records(
      step, 0, task, group, scripted.tokenizer().decode
  )


@pytest.fixture(scope='module')
def group_and_page(tmp_path_factory):
  folder = tmp_path_factory.mktemp('<b>run')
  group, made = lines()
  fake_workdir.write_lines(folder / 'trajectories.jsonl', made)
  path, _ = view.write_page(folder)
  return group, path


def data_of(path):
  """The index and the details, as the page's script reads them."""
  scripts = Scripts(path.read_text()).scripts
  data = {a['id']: json.loads(text) for a, text in scripts if 'id' in a}
  index = data.pop('index')
  return index, [data[f't{i}'] for i in range(len(data))]


def test_tokens_masks_and_logprobs_are_the_trajectorys(group_and_page):
  """The second row's prompt stands in the first line of the log only."""
  group, path = group_and_page
  index, details = data_of(path)
  for t, detail, row in zip(group, details, index['rows'], strict=True):
    ids = [index['ids'][i] for i in detail['row']]
    assert ids == t.tokens.tolist()
    text = ''.join(index['texts'][i] for i in detail['row'])
    assert text == scripted.tokenizer().decode(ids)
    mask = [k % 2 for k, n in enumerate(detail['runs']) for _ in range(n)]
    assert mask == t.loss_mask.tolist()
    np.testing.assert_allclose(
        detail['logprobs'], t.logprobs[t.loss_mask], atol=5e-5
    )
    assert (row['tokens'], row['sampled']) == (len(ids), t.loss_mask.sum())


def test_each_message_of_the_policy_has_its_tokens(group_and_page):
  _, path = group_and_page
  index, details = data_of(path)
  for detail in details:
    for event in detail['events']:
      assert ('span' in event) == (event['role'] == 'assistant')
      if 'span' in event:
        ids = detail['row'][slice(*event['span'])]
        texts = [index['texts'][i] for i in ids]
        assert ''.join(texts) == event['text'] + '<end>'


def test_turns_say_why_they_failed_and_what_was_due(group_and_page):
  _, path = group_and_page
  index, (right, wrong) = data_of(path)
  assert [(r['right'], r['turns'], r['reward']) for r in index['rows']] == [
      (2, 2, 1.0), (0, 2, 0.0)
  ]
  # The due calls stand in the first line of the log only.
  due = [[t['due'] for t in x['turns']] for x in (right, wrong)]
  assert due[0] == due[1]
  assert wrong['turns'][0]['due'] == ['pwd()']
  assert wrong['turns'][0]['reason'].startswith('result missing: ')
  assert wrong['turns'][0]['state_ok'] and not wrong['turns'][0]['response_ok']
  assert wrong['turns'][1]['reason'] == 'no call'


def test_no_text_leaves_the_data(group_and_page):
  """A result with </script> once closed the data and ran what followed."""
  _, path = group_and_page
  page = path.read_text()
  assert HOSTILE not in page and '<b>run' not in page
  assert HOSTILE in data_of(path)[1][0]['events'][-2]['text']
  found = Scripts(page)
  assert found.addresses == []
  kinds = [attributes.get('type') for attributes, _ in found.scripts]
  assert kinds == ['application/json'] * 3 + [None]  # index, two rows, script
  assert not re.search(r'https?:|@import|url\(', page)


def test_only_the_pages_own_script_may_run(group_and_page):
  _, path = group_and_page
  page = path.read_text()
  policy = re.search('Security-Policy" content="([^"]*)"', page)[1]
  digest = hashlib.sha256(Scripts(page).scripts[-1][1].encode()).digest()
  assert f"script-src 'sha256-{base64.b64encode(digest).decode()}';" in policy
  assert policy.startswith("default-src 'none';")
  script = (view._FOLDERS[0] / 'view.js').read_text()
  for unsafe in ('innerHTML', 'outerHTML', 'insertAdjacent', 'document.write',
                 'eval(', 'Function(', '</script'):
    assert unsafe not in script


def test_steps_and_out(tmp_path):
  made = [line for step in (0, 4, 9) for line in lines(step=step)[1]]
  fake_workdir.write_lines(tmp_path / 'trajectories.jsonl', made)
  path, page = view.write_page(tmp_path, tmp_path / 'x.html', (4, 8))
  assert path == tmp_path / 'x.html'
  assert [row['step'] for row in page.index] == [4, 4]
  assert all('row' in detail for detail in page.details)
  with pytest.raises(errors.UserError, match='no trajectory of the steps 5 to'):
    view.write_page(tmp_path, steps=(5, 8))


def test_what_cannot_be_read_is_counted():
  """Lines of an older log, of a half-lost group, and of something else."""
  _, (first, second) = lines()
  old = {k: v for k, v in first.items()
         if k in ('step', 'task_id', 'sample', 'progress', 'turn_scores',
                  'events')}
  torn = dict(first, logprobs=first['logprobs'][1:])
  page = view_data.make_page([second, old, torn, {'step': 1}], num_bad=1)
  assert [row['tokens'] for row in page.index] == [None] * 3
  assert page.notes == [
      '2 lines could not be read.', '3 trajectories have no tokens in the log.'
  ]
  whole = view_data.make_page([first, second])
  assert whole.notes == []
  # Of another group the first line is not taken.
  assert view_data.make_page([first, dict(second, step=1)]).notes


def test_long_results_and_marks_are_made_readable():
  """An escape sequence, and a mark that turns the text around."""
  _, (first, second) = lines()
  text = '\x1b[31m\u202e' + 'z' * 6_000
  second['events'].append({'turn': 1, 'role': 'tool', 'text': text})
  second['texts'][-1] = '\x1b\n'
  page = view_data.make_page([first, second])
  result = page.details[1]['events'][-1]
  # 5,000 characters, of which five stand for the mark and the sequence.
  assert result['text'] == '\ufffd[31m\ufffd' + 'z' * 4_994
  assert result['cut'] == len(text) - 5_000
  assert page.token_texts[page.details[1]['row'][-1]] == '\ufffd\n'


def test_a_page_of_hundreds_is_small(tmp_path):
  """Below 4 kB for one of these, a row of some 160 tokens."""
  _, group = lines()
  made = [{**line, 'step': step} for step in range(200) for line in group]
  fake_workdir.write_lines(tmp_path / 'trajectories.jsonl', made)
  path, page = view.write_page(tmp_path)
  assert len(page.index) == 400
  assert path.stat().st_size < 400 * 4_000 + 50_000


def test_faults_are_one_line(tmp_path, caplog):
  assert view.main([str(tmp_path / 'none')]) == 1
  assert 'trajectories.jsonl does not exist; name the' in caplog.text
  (tmp_path / 'trajectories.jsonl').write_text('')
  assert view.main([str(tmp_path)]) == 1
  assert 'holds no trajectory yet.' in caplog.text
  assert '\n' not in caplog.messages[-1]


def test_a_run_can_be_viewed(tiny_run, tmp_path):
  _, workdir = tiny_run
  out = tmp_path / 'page.html'
  assert view.main([str(workdir), f'--out={out}']) == 0
  index, details = data_of(out)
  assert len(index['rows']) == len(details) >= 32
  assert all('row' in detail for detail in details)


@pytest.mark.skipif(_BROWSER is None, reason='no browser is installed')
def test_in_a_browser(group_and_page, tmp_path):
  """The script of the page, opened at the second trajectory."""
  _, path = group_and_page
  shutil.copy(path, tmp_path / 'page.html')
  dom = subprocess.run(
      [
          _BROWSER, '--headless', '--no-sandbox', '--disable-gpu',
          f'--user-data-dir={tmp_path / "profile"}', '--dump-dom',
          f'file://{tmp_path}/page.html#t=1',
      ],
      capture_output=True, text=True, timeout=120, check=True,
  ).stdout
  body = dom[dom.index('<article') : dom.index('</article>')]
  assert 'result missing: ' in body and 'reward 0.000' in body
  assert body.count('class="token p') > 20
  assert '&lt;script&gt;alert(1)' in body and '<script' not in body
  entries = re.findall('data-row="(.)"( aria-current="true")?', dom)
  assert entries == [('0', ''), ('1', ' aria-current="true"')]
