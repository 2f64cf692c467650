"""Command line of rods_jax: flags -> config -> what --mode says.

  python main.py --config=configs/rods.py [--workdir=...] [--config.a.b=...]

Several processes, one on each host of a slice, run the same command with
--coordinator (rods_jax/processes.py).
"""

import contextlib
import logging
import os
import pathlib
import re
import sys

from absl import app
from absl import flags
import ml_collections
from ml_collections import config_flags

from rods_jax import errors
from rods_jax import settings

_CONFIG = config_flags.DEFINE_config_file('config', None, 'The run.')
_WORKDIR = flags.DEFINE_string(
    'workdir', None, 'Folder of the run; default: workdirs/<config name>.'
)
_MODE = flags.DEFINE_enum(
    'mode',
    None,
    ['train', 'evaluate', 'export', 'warm_start'],
    'Default: warm_start for a config with that section, else train.',
)
_COORDINATOR = flags.DEFINE_string(
    'coordinator',
    None,
    "host:port of process 0 where several processes work together, or 'auto' "
    'on TPU pods, under SLURM and Open MPI.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
    'num_processes', None, 'All processes; with --coordinator=host:port.'
)
_PROCESS_ID = flags.DEFINE_integer(
    'process_id', None, 'This one, from 0; with --coordinator=host:port.'
)


def main(argv: list[str]) -> int:
  if argv[1:]:
    raise errors.UserError(f'Unknown argument {argv[1]!r}; see --help.')
  config = _CONFIG.value
  if config is None:
    raise errors.UserError('Name a config, such as --config=configs/rods.py.')
  if not isinstance(config, ml_collections.ConfigDict):
    raise errors.UserError(
        f'get_config of {flags.FLAGS["config"].config_filename} must return a '
        f'ConfigDict, not {type(config).__name__}.'
    )
  settings.validate(config)
  workdir = pathlib.Path(_WORKDIR.value or _default_workdir())
  mode = _MODE.value or ('warm_start' if 'warm_start' in config else 'train')
  if mode == 'warm_start' and 'warm_start' not in config:
    raise errors.UserError(
        '--mode=warm_start needs a config with that section, such as '
        '--config=configs/warm_start.py.'
    )
  with _processes(mode):
    return _dispatch(mode, config, workdir)


def _dispatch(
    mode: str, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> int:
  # Imported here so that --help and a wrong flag answer at once.
  from rods_jax import pretrained

  given = config_flags.get_override_values(flags.FLAGS['config'])
  pretrained.check_given(config, given)
  if mode == 'train':
    from rods_jax import train

    return train.train(config, workdir)
  if mode == 'evaluate':
    from rods_jax import evaluate

    return evaluate.evaluate_run(config, workdir)
  if mode == 'export':
    from rods_jax import export

    return export.export_run(config, workdir)
  from rods_jax import warm_start

  return warm_start.warm_start(config, workdir)


def _processes(mode: str) -> contextlib.AbstractContextManager:
  """In it this process is one of the run's, if there are several."""
  coordinator, numbers = _COORDINATOR.value, (_NUM_PROCESSES, _PROCESS_ID)
  if coordinator is None:
    if any(number.value is not None for number in numbers):
      raise errors.UserError(
          '--num_processes and --process_id need --coordinator=host:port.'
      )
    return contextlib.nullcontext()
  if mode == 'warm_start':
    raise errors.UserError(
        'A warm start runs in one process; leave --coordinator out.'
    )
  from rods_jax import processes

  return processes.joined(coordinator, *(number.value for number in numbers))


def _default_workdir() -> pathlib.Path:
  """workdirs/rods for configs/rods.py, workdirs/rods_smoke for :smoke."""
  path, _, variant = flags.FLAGS['config'].config_filename.partition(':')
  stem = pathlib.Path(path).stem
  return pathlib.Path('workdirs') / (f'{stem}_{variant}' if variant else stem)


def _parse(argv: list[str]) -> list[str]:
  """Flag parsing whose errors are one line, also those of the config."""
  app.define_help_flags()
  try:
    rest = flags.FLAGS(argv)
    hasattr(_CONFIG.value, 'keys')  # first use: here a missing file raises
    return rest
  except OSError as error:
    path = flags.FLAGS['config'].config_filename
    raise errors.UserError(f'There is no config file {path}.') from error
  except (
      flags.Error, AttributeError, KeyError, TypeError, ValueError
  ) as error:
    raise errors.UserError(_one_line(error, argv)) from error


def _one_line(error: Exception, argv: list[str]) -> str:
  """What went wrong, without the layers that ml_collections wraps it in."""
  while error.args and isinstance(error.args[0], Exception):
    error = error.args[0]
  message = str(error.args[0]) if error.args else str(error)
  unknown = re.match(r"'(\w+)'(?:\nDid you mean \"(\w+)\")?", message)
  if isinstance(error, KeyError) and unknown:
    return _unknown_field(*unknown.groups(), argv)
  lines = message.strip().splitlines()
  if 'parsing config file' in lines[0]:  # a traceback of the config follows
    return re.sub(r'^\w+Error: ', '', lines[-1])
  return ' '.join(lines)


def _unknown_field(name: str, meant: str | None, argv: list[str]) -> str:
  """Names the section that the command line looked for the field in."""
  section = 'config'
  for argument in argv:
    path = argument.partition('=')[0].lstrip('-').split('.')
    if name in path[1:]:
      section = '.'.join(path[: path.index(name)])
  hint = f'did you mean {meant!r}?' if meant else 'see the config file.'
  return f'{section} has no field {name!r}; {hint}'


def run(argv: list[str]) -> int:
  """Runs the command; a UserError becomes one line and exit status 1."""
  # JAX reads these when it is imported: a second start compiles nothing.
  cache = pathlib.Path.home() / '.cache' / 'rods_jax' / 'xla'
  os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(cache))
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.3')
  logging.basicConfig(
      level=logging.WARNING, format='%(levelname)s: %(message)s'
  )
  try:
    return main(_parse(argv))
  except errors.UserError as error:
    sys.stderr.write(f'Error: {error}\n')
    return 1
  except KeyboardInterrupt:  # the second Ctrl-C
    sys.stderr.write('Stopped; the last batch is lost.\n')
    return 130


if __name__ == '__main__':
  sys.exit(run(sys.argv))
