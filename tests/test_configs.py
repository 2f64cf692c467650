"""Every field of the configs is read by code, beyond being checked.

The sources are read, not run: a read is an attribute of something that stands
for the config or one of its sections, under whatever name a function gives it.
Sections that are passed on whole are compared with what takes them.
"""

import ast
import dataclasses
import inspect
import pathlib
import re

import pytest

from configs import rods
from configs import warm_start
from rods_jax import settings
from rods_jax import sharding
from rods_jax.device import model
from rods_jax.host import boundary
from rods_jax.host import replay
from rods_jax.host.synthesis.llm import records

PACKAGE = pathlib.Path(settings.__file__).parent
# Sections that are passed on whole, and what takes them.
TAKERS = {
    'mesh': set(inspect.signature(sharding.make_mesh).parameters) - {'devices'},
    'model': {f.name for f in dataclasses.fields(model.ModelConfig)}
    - {'vocab_size'}  # the tokenizer's
    - {'rope_scaling'},  # only ever a Hugging Face folder's
    'synthesis.llm': {f.name for f in dataclasses.fields(records.LlmConfig)},
    'pool': {f.name for f in dataclasses.fields(replay.PoolConfig)},
    'boundary': {f.name for f in dataclasses.fields(boundary.BoundaryConfig)},
}
SECTIONS = {
    path.split('.')[0]
    for path in settings.fields(warm_start.get_config())
    if '.' in path
}


class _Reads(ast.NodeVisitor):
  """Collects dotted paths below the config.

  Attributes:
    paths: such as 'grpo.learning_rate'.
    whole: sections that are passed on with ** or to_dict().
  """

  def __init__(self):
    self.paths: set[str] = set()
    self.whole: set[str] = set()
    self._names: dict[str, str] = {}

  def visit_FunctionDef(self, node):
    outer, self._names = self._names, {'config': ''}
    arguments = {a.arg for a in node.args.args}
    self._names |= {name: name for name in arguments & SECTIONS}
    self.generic_visit(node)
    self._names = outer

  def visit_Assign(self, node):
    self.generic_visit(node)
    target, value = node.targets[0], node.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
      pairs = list(zip(target.elts, value.elts))
    for name, expression in pairs:
      path = self._path(expression)
      if isinstance(name, ast.Name) and path is not None:
        self._names[name.id] = path

  def visit_Attribute(self, node):
    self.generic_visit(node)
    path = self._path(node)
    if path and path.endswith('.to_dict'):
      self.whole.add(path.removesuffix('.to_dict'))
    elif path:
      self.paths.add(path)

  def visit_Call(self, node):
    self.generic_visit(node)
    for keyword in node.keywords:
      if keyword.arg is None and self._path(keyword.value):
        self.whole.add(self._path(keyword.value))

  def _path(self, node) -> str | None:
    """'' for the config itself, None for what is no part of it."""
    if isinstance(node, ast.Name):
      return self._names.get(node.id)
    if isinstance(node, ast.Attribute):
      if node.attr == 'config':
        return ''
      base = self._path(node.value)
      if base is not None:
        return f'{base}.{node.attr}'.lstrip('.')
    return None


def reads(sources) -> _Reads:
  found = _Reads()
  for source in sources:
    found.visit(ast.parse(source))
  return found


def unread(paths, found: _Reads) -> set[str]:
  """Those of the paths that no code reads."""
  taken = {
      f'{section}.{name}'
      for section in found.whole & TAKERS.keys()
      for name in TAKERS[section]
  }
  return set(paths) - found.paths - taken


def package_sources() -> list[str]:
  """The modules that see the config; checking a value is not reading it."""
  return [
      path.read_text()
      for path in sorted(PACKAGE.glob('*.py'))
      if path.name != 'settings.py'
  ]


@pytest.mark.parametrize(
    'config',
    [*(rods.get_config(v) for v in rods.VARIANTS), warm_start.get_config()],
    ids=[*rods.VARIANTS, 'warm_start'],
)
def test_every_field_is_read(config):
  assert unread(settings.fields(config), reads(package_sources())) == set()


def test_a_field_that_nobody_reads_is_found():
  config = rods.get_config()
  with config.unlocked():
    config.grpo.made_up = 1
    config.mesh.made_up = 1
    config.made_up = 1
  missing = unread(settings.fields(config), reads(package_sources()))
  assert missing == {'grpo.made_up', 'mesh.made_up', 'made_up'}


def test_reads_are_found_under_any_name():
  found = reads(["""
def f(run, config, data):
  r, position = run.config.rollout, run.position
  grpo = config.grpo
  g(r.num_slots, grpo.clip_low, config.eval.before, data.split, **config.pool)
  position.num_epochs
  return config.model.to_dict()

def g(r):
  return r.temperature  # here r is not the section
"""])
  assert found.paths >= {
      'rollout.num_slots', 'grpo.clip_low', 'eval.before', 'data.split'
  }
  assert 'rollout.temperature' not in found.paths
  assert 'train.num_epochs' not in found.paths
  assert found.whole == {'pool', 'model'}


@pytest.mark.parametrize('section', sorted(TAKERS))
def test_sections_passed_on_whole_are_what_the_taker_takes(section):
  fields = {
      path.removeprefix(f'{section}.')
      for path in settings.fields(rods.get_config())
      if path.startswith(f'{section}.')
  }
  assert fields - {'init_from'} == TAKERS[section]


def test_fields_of_takers_are_read_too():
  """PoolConfig and its like could hold a field that stops there."""
  text = '\n'.join(p.read_text() for p in sorted(PACKAGE.rglob('*.py')))
  for section in ('model', 'pool', 'boundary', 'synthesis.llm'):
    for name in TAKERS[section]:
      used = re.findall(rf'(?:config|self|c)\.{name}\b', text)
      assert used, f'{section}.{name}'


def test_smoke_is_the_default_but_smaller():
  default = settings.fields(rods.get_config())
  smoke = settings.fields(rods.get_config('smoke'))
  assert default.keys() == smoke.keys()
  changed = {k for k in default if default[k] != smoke[k]}
  assert changed and all(smoke[k] < default[k] for k in changed)


def test_unknown_variant_is_refused():
  with pytest.raises(ValueError, match="no variant 'tiny'"):
    rods.get_config('tiny')


def test_configs_are_locked_and_told_apart():
  config = rods.get_config()
  with pytest.raises(AttributeError):
    config.grpo.learning_rat = 1
  assert 'warm_start' not in config
  assert 'warm_start' in warm_start.get_config()


def test_warm_start_makes_the_policy_that_the_main_job_loads():
  main, warm = rods.get_config(), warm_start.get_config()
  for name in ('split', 'split_seed', 'num_train_scenarios', 'categories'):
    assert main.data[name] == warm.data[name]  # or held-out text leaks in
  shape = {**main.model.to_dict(), 'init_from': 'random'}
  assert warm.model.to_dict() == shape
  assert main.rollout.to_dict() == warm.rollout.to_dict()
