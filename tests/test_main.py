"""The command line: dispatch, and one line for whatever is wrong with it."""

import json
import pathlib
import subprocess
import sys

from absl import flags
import pytest

import main
from rods_jax import errors
from rods_jax import evaluate
from rods_jax import export
from rods_jax import train
from rods_jax import warm_start

ROOT = pathlib.Path(main.__file__).parent
RODS = '--config=configs/rods.py'


@pytest.fixture
def command(monkeypatch, capsys):
  """Runs main.run with arguments; (exit status, stdout, stderr)."""

  def run(*arguments):
    # The config flag reads its overrides from sys.argv.
    monkeypatch.setattr(sys, 'argv', ['main.py', *arguments])
    monkeypatch.chdir(ROOT)
    try:
      status = main.run(sys.argv)
    finally:
      flags.FLAGS.unparse_flags()
      for name in list(flags.FLAGS):
        if name.startswith('config.'):  # made from the overrides
          delattr(flags.FLAGS, name)
    captured = capsys.readouterr()
    return status, captured.out, captured.err

  yield run
  for name in (
      'config', 'workdir', 'mode', 'coordinator', 'num_processes', 'process_id'
  ):
    flags.FLAGS[name].unparse()


@pytest.fixture
def calls(monkeypatch):
  """What was dispatched: (mode, config, workdir)."""
  seen = []
  for module, name in (
      (train, 'train'),
      (evaluate, 'evaluate_run'),
      (export, 'export_run'),
      (warm_start, 'warm_start'),
  ):
    monkeypatch.setattr(
        module,
        name,
        lambda config, workdir, name=name: seen.append(
            (name, config, workdir)
        ) or 0,
    )
  return seen


@pytest.mark.parametrize(
    'arguments, name, workdir',
    [
        ((RODS,), 'train', 'workdirs/rods'),
        ((f'{RODS}:smoke',), 'train', 'workdirs/rods_smoke'),
        ((RODS, '--mode=evaluate'), 'evaluate_run', 'workdirs/rods'),
        ((RODS, '--mode=export'), 'export_run', 'workdirs/rods'),
        (
            ('--config=configs/warm_start.py',),
            'warm_start',
            'workdirs/warm_start',
        ),
        (
            ('--config=configs/warm_start.py', '--mode=evaluate'),
            'evaluate_run',
            'workdirs/warm_start',
        ),
        ((RODS, '--workdir=else/x'), 'train', 'else/x'),
    ],
)
def test_dispatch(command, calls, arguments, name, workdir):
  assert command(*arguments) == (0, '', '')
  ((called, _, folder),) = calls
  assert (called, folder) == (name, pathlib.Path(workdir))


def test_overrides_reach_the_run(command, calls):
  status, _, _ = command(
      RODS, '--config.grpo.learning_rate=1', '--noconfig.eval.before',
      '--config.rollout.extend_buckets=(16,64)',
      "--config.data.categories=('base',)",
  )
  assert status == 0
  config = calls[0][1]
  assert config.grpo.learning_rate == 1.0
  assert type(config.grpo.learning_rate) is float
  assert config.eval.before is False
  assert config.rollout.extend_buckets == (16, 64)
  assert config.data.categories == ('base',)


@pytest.mark.parametrize(
    'arguments, message',
    [
        ((), 'Name a config, such as --config=configs/rods.py.'),
        (
            (RODS, '--config.grpo.learning_rat=1'),
            "config.grpo has no field 'learning_rat'; did you mean "
            "'learning_rate'?",
        ),
        (
            (RODS, '--config.grp.learning_rate=1'),
            "config has no field 'grp'; did you mean 'grpo'?",
        ),
        (
            (RODS, '--config.train.num_epochs=2', '--config.grpo.zzzzzz=1'),
            "config.grpo has no field 'zzzzzz'; see the config file.",
        ),
        (
            (RODS, '--config.rng_sed=1'),
            "config has no field 'rng_sed'; did you mean 'rng_seed'?",
        ),
        (
            (RODS, '--config.grpo.learning_rate=abc'),
            'flag --config.grpo.learning_rate=abc: could not convert string '
            "to float: 'abc'",
        ),
        (
            (RODS, '--config.rollout.group_size=1.5'),
            'flag --config.rollout.group_size=1.5: invalid literal for int() '
            "with base 10: '1.5'",
        ),
        (
            (RODS, '--config.rollout.group_size=1'),
            'config.rollout.group_size is 1; it must be at least 2: one '
            'trajectory has no baseline.',
        ),
        (
            (RODS, '--config.grpo.minibatch_groups=3'),
            'config.rollout.groups_per_batch is 8; it must be a multiple of '
            'config.grpo.minibatch_groups, 3.',
        ),
        (
            (RODS, '--config.boundary.hard_below=0.9'),
            'config.boundary.hard_below is 0.9 and mastered_above is 0.85; '
            'the first must be below the second.',
        ),
        (
            (f'{RODS}:tiny',),
            "configs/rods.py has no variant 'tiny'; use one of default, "
            'smoke, qwen3_4b, qwen25_7b, llama31_8b.',
        ),
        (('--config=configs/no.py',), 'There is no config file configs/no.py.'),
        (
            (RODS, '--mode=play'),
            'flag --mode=play: value should be one of '
            '<train|evaluate|export|warm_start>',
        ),
        (
            (RODS, '--mode=warm_start'),
            '--mode=warm_start needs a config with that section, such as '
            '--config=configs/warm_start.py.',
        ),
        (
            (RODS, '--workdri=x'),
            "Unknown command line flag 'workdri'. Did you mean: workdir ?",
        ),
        ((RODS, 'extra'), "Unknown argument 'extra'; see --help."),
    ],
)
def test_bad_command_is_one_line(command, calls, arguments, message):
  """A typo was once answered with `\\'learning_rat\\': Did you mean ...`."""
  assert command(*arguments) == (1, '', f'Error: {message}\n')
  assert not calls


@pytest.mark.parametrize(
    'text', ['maybe', '2', "('a'", '((', '1,x']
)
def test_other_bad_values_are_one_line(command, calls, text):
  for path in ('eval.before', 'rollout.cache_buckets'):
    status, out, err = command(RODS, f'--config.{path}={text}')
    assert (status, out) == (1, '')
    assert err.startswith('Error: ') and err.count('\n') == 1
    assert path in err
  assert not calls


def test_a_config_that_returns_something_else(command, tmp_path):
  path = tmp_path / 'odd.py'
  path.write_text('def get_config():\n  return 3\n')
  status, _, err = command(f'--config={path}')
  assert status == 1
  assert err == (
      f'Error: get_config of {path} must return a ConfigDict, not int.\n'
  )


def test_a_typed_shape_that_the_folder_does_not_have(command, calls, tmp_path):
  """It was replaced by the folder's without a word."""
  (tmp_path / 'config.json').write_text(json.dumps({
      'architectures': ['Qwen3ForCausalLM'], 'vocab_size': 64,
      'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 4,
      'num_key_value_heads': 2, 'head_dim': 8, 'intermediate_size': 48,
      'rms_norm_eps': 1e-6, 'rope_theta': 1e6, 'tie_word_embeddings': True,
  }))
  (tmp_path / 'tokenizer.json').write_text('{}')
  start = f'--config.model.init_from={tmp_path}'
  status, _, err = command(RODS, start, '--config.model.d_model=64')
  assert status == 1 and not calls
  assert err == (
      f'Error: config.model.d_model is 64, but {tmp_path} decides it: 32. '
      'Leave it out.\n'
  )
  assert command(RODS, start) == (0, '', '') and len(calls) == 1


@pytest.mark.parametrize('arguments, message', [
    (('--num_processes=2',),
     '--num_processes and --process_id need --coordinator=host:port.'),
    (('--coordinator=here', '--num_processes=2', '--process_id=0'),
     "--coordinator is 'here'; it must be host:port of process 0, or 'auto'."),
    (('--coordinator=h:1', '--num_processes=2'),
     '--coordinator=h:1 needs --num_processes and --process_id.'),
    (('--coordinator=h:1', '--num_processes=2', '--process_id=2'),
     '--process_id is 2; it must be from 0 to below --num_processes, 2.'),
    (('--coordinator=auto', '--process_id=0'),
     '--coordinator=auto finds --num_processes and --process_id by itself.'),
])
def test_processes_that_make_no_sense(command, calls, arguments, message):
  assert command(RODS, *arguments) == (1, '', f'Error: {message}\n')
  assert not calls


def test_a_warm_start_is_one_process(command, calls):
  status, _, err = command(
      '--config=configs/warm_start.py', '--coordinator=h:1'
  )
  assert status == 1 and not calls
  assert err == (
      'Error: A warm start runs in one process; leave --coordinator out.\n'
  )


def test_a_user_error_of_the_run_is_one_line(command, monkeypatch):
  def fail(config, workdir):
    raise errors.UserError('no room')

  monkeypatch.setattr(train, 'train', fail)
  assert command(RODS) == (1, '', 'Error: no room\n')


def test_a_workdir_below_a_file_is_refused(command, tmp_path):
  (tmp_path / 'file').write_text('')
  path = tmp_path / 'file' / 'run'
  status, out, err = command(RODS, f'--workdir={path}')
  assert (status, out) == (1, '')
  assert err.startswith(f'Error: Cannot write to {path}: Not a directory.')
  assert err.count('\n') == 1


def test_the_status_reaches_the_shell():
  run = subprocess.run(
      [sys.executable, 'main.py', RODS, '--config.grpo.clip_low=5'],
      cwd=ROOT, capture_output=True, text=True,
  )
  assert run.returncode == 1 and run.stdout == ''
  assert run.stderr == (
      'Error: config.grpo.clip_low is 5.0; it must be a number above 0 and '
      'below 1.\n'
  )
