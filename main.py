"""Command line of rods_jax: flags -> config -> train, evaluate or warm start.

  python main.py --config=configs/rods.py [--workdir=...] [--config.a.b=...]
"""

import logging
import os
import pathlib
import sys

from absl import app
from absl import flags
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
    ['train', 'evaluate', 'warm_start'],
    'Default: warm_start for a config with that section, else train.',
)


def main(argv: list[str]) -> int:
  if argv[1:]:
    raise errors.UserError(f'Unknown argument {argv[1]!r}; see --help.')
  config = _CONFIG.value
  if config is None:
    raise errors.UserError('Name a config, such as --config=configs/rods.py.')
  settings.validate(config)
  workdir = pathlib.Path(_WORKDIR.value or _default_workdir())
  mode = _MODE.value or ('warm_start' if 'warm_start' in config else 'train')
  # Imported here so that --help and a wrong flag answer at once.
  if mode == 'train':
    from rods_jax import train

    return train.train(config, workdir)
  if mode == 'evaluate':
    from rods_jax import evaluate

    return evaluate.evaluate_run(config, workdir)
  from rods_jax import warm_start

  return warm_start.warm_start(config, workdir)


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
    if _CONFIG.value is not None:
      _CONFIG.value.keys()  # a missing file is reported at first use only
    return rest
  except OSError as error:
    path = flags.FLAGS['config'].config_filename
    raise errors.UserError(f'There is no config file {path}.') from error
  except (
      flags.Error, AttributeError, KeyError, TypeError, ValueError
  ) as error:
    raise errors.UserError(_one_line(str(error))) from error


def _one_line(message: str) -> str:
  """The config's own error where a traceback is quoted, else all of it."""
  lines = message.strip().splitlines()
  if 'parsing config file' in lines[0]:
    return lines[-1]
  return ' '.join(lines).replace('\\n', ': ').strip('\'"')


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


if __name__ == '__main__':
  sys.exit(run(sys.argv))
