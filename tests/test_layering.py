"""The two layers stay apart, and no file or function outgrows a reader."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
DEVICE_NEVER = ('rods_jax.host', 'os', 'time', 'logging')
HOST_NEVER = (
    'jax', 'jaxlib', 'flax', 'optax', 'orbax', 'rods_jax.device',
    'rods_jax.engine', 'rods_jax.build', 'rods_jax.train', 'rods_jax.run',
)
FILES = [
    path
    for folder in ('rods_jax', 'tests', 'configs', 'experiments')
    for path in sorted((ROOT / folder).rglob('*.py'))
] + [ROOT / 'main.py']


def imports(source: str) -> set[str]:
  """Dotted names of all imports, also those inside functions."""
  found = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, 'relative import'
      found.add(node.module)
      found |= {f'{node.module}.{alias.name}' for alias in node.names}
  return found


def forbidden(source: str, never) -> set[str]:
  return {
      name
      for name in imports(source)
      for bad in never
      if name == bad or name.startswith(f'{bad}.')
  }


def long_functions(source: str, limit: int = 60) -> list[str]:
  return [
      f'{node.name}: {node.end_lineno - node.lineno + 1} lines'
      for node in ast.walk(ast.parse(source))
      if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
      and node.end_lineno - node.lineno + 1 > limit
  ]


def name(path: pathlib.Path) -> str:
  return str(path.relative_to(ROOT))


def layer(folder: str) -> list[pathlib.Path]:
  found = sorted((ROOT / 'rods_jax' / folder).rglob('*.py'))
  assert len(found) > 5
  return found


@pytest.mark.parametrize('path', layer('device'), ids=name)
def test_device_never_imports_the_host(path):
  assert forbidden(path.read_text(), DEVICE_NEVER) == set()


@pytest.mark.parametrize('path', layer('host'), ids=name)
def test_host_never_imports_the_device(path):
  assert forbidden(path.read_text(), HOST_NEVER) == set()


def test_forbidden_imports_are_found():
  source = 'import rods_jax.host as h\ndef f():\n  import time as t, jaxt'
  assert forbidden(source, DEVICE_NEVER) == {'rods_jax.host', 'time'}
  assert forbidden('from jax import numpy', HOST_NEVER) == {'jax', 'jax.numpy'}
  assert forbidden('import jaxtyping, osmosis', HOST_NEVER) == set()


@pytest.mark.parametrize(
    'module',
    ['rods_jax.host.rollout', 'rods_jax.host.synthesis.background',
     'rods_jax.host.format_check'],
)
def test_host_leaves_jax_out_of_the_process(module):
  """Directly or not: the synthesis process once started a second backend."""
  code = (
      f'import sys, {module}; '
      "names = ('jax', 'jaxlib', 'flax', 'torch', 'transformers'); "
      'print([m for m in names if m in sys.modules])'
  )
  run = subprocess.run(
      [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True
  )
  assert (run.returncode, run.stdout.strip()) == (0, '[]'), run.stderr


@pytest.mark.parametrize('path', FILES, ids=name)
def test_files_and_functions_fit_a_reader(path):
  source = path.read_text()
  assert len(source.splitlines()) <= 400
  if 'configs' not in path.parts:  # one long list of fields reads well
    assert long_functions(source) == []
  if source:
    assert ast.get_docstring(ast.parse(source)), 'says nothing of its purpose'


def test_long_functions_are_found():
  assert long_functions('def f():\n' + '  x = 1\n' * 59) == []
  assert long_functions('def f():\n' + '  x = 1\n' * 60) == ['f: 61 lines']


def test_no_prints_and_no_utils():
  """logging, not print; only what a command answers with is printed."""
  assert not list(ROOT.glob('rods_jax/**/utils.py'))
  for path in layer('host') + layer('device'):
    for node in ast.walk(ast.parse(path.read_text())):
      called = isinstance(node, ast.Call) and getattr(node.func, 'id', '')
      assert called != 'print', name(path)
