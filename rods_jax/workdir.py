"""The folder of a run: whose it is, and that it can be written."""

import contextlib
import json
import os
import pathlib

import ml_collections

from rods_jax import errors

# A finished run may be continued for more epochs; where episodes are played and
# where the language model is changes no number; only an evaluation cuts the
# distribution.
_MAY_DIFFER = {
    'train.num_epochs', 'rollout.env_workers', 'rollout.top_k', 'rollout.top_p'
} | {
    f'synthesis.llm.{name}'
    for name in (
        'base_url', 'timeout_s', 'max_retries', 'backoff_s', 'prompt_price',
        'completion_price', 'cache',
    )
}  # pyformat: disable


@contextlib.contextmanager
def writable(path: pathlib.Path):
  """Turns an OSError about the folder into one line."""
  try:
    yield
  except OSError as error:
    raise errors.UserError(
        f'Cannot write to {path}: {error.strerror or error}. Choose another '
        'folder with --workdir, or make room.'
    ) from error


def check(
    workdir: pathlib.Path,
    config: ml_collections.ConfigDict,
    may_differ: str = '',
) -> None:
  """Creates the folder, or makes sure that it holds this config's run.

  Args:
    workdir: the folder.
    config: the resolved configuration.
    may_differ: a section, such as 'eval', whose fields are not compared.
  """
  path = workdir / 'config.json'
  with writable(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
    probe = workdir / '.writable'
    probe.touch()
    probe.unlink()
    if path.exists():
      wanted = json.loads(json.dumps(config.to_dict()))
      _check_same(path, wanted, may_differ)


def prepare(workdir: pathlib.Path, config: ml_collections.ConfigDict) -> None:
  """Checks the folder and writes config.json: from now on it is this run's."""
  check(workdir, config)
  text = json.dumps(config.to_dict(), indent=2, sort_keys=True) + '\n'
  with writable(workdir):
    partial = workdir / 'config.partial'
    partial.write_text(text)
    os.replace(partial, workdir / 'config.json')


def _check_same(path: pathlib.Path, wanted: dict, may_differ: str) -> None:
  try:
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
      raise ValueError('no JSON object')
  except ValueError as error:
    raise errors.UserError(
        f'{path} is not readable as JSON; delete the folder or choose another '
        '--workdir.'
    ) from error
  found, wanted = _flat(found), _flat(wanted)
  for name in sorted(found.keys() | wanted.keys()):
    if name in _MAY_DIFFER or name.split('.')[0] == may_differ:
      continue
    if found.get(name) != wanted.get(name):
      raise errors.UserError(
          f'{path.parent} holds a run with another configuration: {name} is '
          f'{found.get(name)!r} there and {wanted.get(name)!r} here. Choose '
          'another --workdir, or delete that folder.'
      )


def _flat(data: dict, prefix: str = '') -> dict:
  """{'a': {'b': 1}} -> {'a.b': 1}."""
  flat = {}
  for name, value in data.items():
    if isinstance(value, dict):
      flat.update(_flat(value, f'{prefix}{name}.'))
    else:
      flat[prefix + name] = value
  return flat
