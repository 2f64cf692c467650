"""The run's folder: writable, and of this config or refused."""

import json

import pytest

from configs import rods
from rods_jax import errors
from rods_jax import workdir


def refusal(path, config):
  with pytest.raises(errors.UserError) as caught:
    workdir.prepare(path, config)
  message = str(caught.value)
  assert '\n' not in message and '--workdir' in message
  return message


def test_a_new_folder_gets_the_resolved_config(tmp_path):
  folder = tmp_path / 'a' / 'b'
  workdir.prepare(folder, rods.get_config())
  assert [p.name for p in folder.iterdir()] == ['config.json']
  found = json.loads((folder / 'config.json').read_text())
  assert found['grpo']['clip_high'] == 0.28
  assert found['rollout']['extend_buckets'] == list(
      rods.get_config().rollout.extend_buckets
  )


def test_the_same_config_continues(tmp_path):
  """Tuples come back from JSON as lists: that is no difference."""
  workdir.prepare(tmp_path, rods.get_config())
  before = (tmp_path / 'config.json').read_text()
  workdir.prepare(tmp_path, rods.get_config())
  assert (tmp_path / 'config.json').read_text() == before


def test_more_epochs_continue(tmp_path):
  config = rods.get_config()
  workdir.prepare(tmp_path, config)
  config.train.num_epochs += 3
  workdir.prepare(tmp_path, config)
  found = json.loads((tmp_path / 'config.json').read_text())
  assert found['train']['num_epochs'] == rods.get_config().train.num_epochs + 3


def test_a_language_model_may_move_but_not_change(tmp_path):
  config = rods.get_config()
  workdir.prepare(tmp_path, config)
  config.synthesis.llm.base_url = 'http://elsewhere:8000/v1'
  config.synthesis.llm.timeout_s = 7.0
  workdir.prepare(tmp_path, config)
  config.synthesis.llm.model = 'another'
  assert 'synthesis.llm.model is' in refusal(tmp_path, config)


def test_another_configs_run_is_refused_and_left_alone(tmp_path):
  config = rods.get_config()
  workdir.prepare(tmp_path, config)
  before = (tmp_path / 'config.json').read_text()
  config.grpo.clip_low = 0.1
  assert refusal(tmp_path, config).startswith(
      f'{tmp_path} holds a run with another configuration: grpo.clip_low is '
      '0.2 there and 0.1 here.'
  )
  assert (tmp_path / 'config.json').read_text() == before


def test_a_field_that_the_other_run_lacks_is_named(tmp_path):
  config = rods.get_config()
  workdir.prepare(tmp_path, config)
  with config.unlocked():
    config.grpo.new = 1
  assert 'grpo.new is None there and 1 here' in refusal(tmp_path, config)


@pytest.mark.parametrize('text', ['', '{"grpo": {"cli', '[]', '3', '\x00'])
def test_a_broken_config_json_is_refused(tmp_path, text):
  (tmp_path / 'config.json').write_text(text)
  message = refusal(tmp_path, rods.get_config())
  assert 'not readable as JSON' in message
  assert (tmp_path / 'config.json').read_text() == text


def test_a_save_that_stopped_halfway_does_no_harm(tmp_path):
  (tmp_path / 'config.partial').write_text('{"grpo"')
  workdir.prepare(tmp_path, rods.get_config())
  assert [p.name for p in tmp_path.iterdir()] == ['config.json']


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
  """Below a regular file: refused for every user, root too."""
  (tmp_path / 'file').write_text('')
  path = tmp_path / 'file' / 'run'
  message = refusal(path, rods.get_config())
  assert message.startswith(f'Cannot write to {path}: Not a directory.')


def test_a_full_disk_is_one_line_and_keeps_the_file(tmp_path, monkeypatch):
  workdir.prepare(tmp_path, rods.get_config())

  def full(*args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(workdir.os, 'replace', full)
  message = refusal(tmp_path, rods.get_config())
  assert 'No space left on device' in message
  assert json.loads((tmp_path / 'config.json').read_text())


def test_an_error_without_a_number_still_says_what():
  with pytest.raises(errors.UserError, match='Cannot write to x: odd'):
    with workdir.writable('x'):
      raise OSError('odd')
