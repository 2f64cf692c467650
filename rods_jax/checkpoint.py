"""Checkpoints: arrays and a JSON document as one Orbax composite.

A checkpoint is a folder named by its step:

  <directory>/<step>/arrays     parameters, optimizer state: any pytree
  <directory>/<step>/document   pool, pending synthesis, counters: JSON
  <directory>/<step>/files.json size and CRC-32 of every file of both

It is written beside, synced to disk and renamed, so a step's folder is whole
or not there; only then are older ones deleted. files.json is checked before
anything is read: Orbax itself does not notice a changed byte inside an array.

Arrays are stored by name ('params/layers/0/kernel'), so that they can be
compared one by one with what the caller expects, restored on another mesh, or
restored in part. Random streams are named (see rng.py) and need no checkpoint;
counters belong into the document. All processes must share the folder.
"""

import contextlib
import dataclasses
import logging
import os
import pathlib
import re
import shutil
from typing import Any, Mapping

from etils import epath
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import orbax.checkpoint as ocp

from rods_jax import errors
from rods_jax import file_digests

PyTree = Any

_FORMAT = 'rods_jax checkpoint 1'
# A replaced checkpoint is whole until its successor has taken its name.
_COMMITTED = re.compile(r'(\d+)(\.replaced)?')
_LEFTOVER = re.compile(r'\d+\.(saving(\..*)?|replaced)')


class CheckpointError(RuntimeError):
  """A checkpoint can't be saved or restored; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Restored:
  """A restored checkpoint.

  Attributes:
    step: the step it was saved at.
    arrays: pytree of jax.Array, structured and placed as asked for.
    document: the JSON document.
  """

  step: int
  arrays: PyTree
  document: dict[str, Any]


class Checkpointer:
  """Saves and restores the checkpoints of one run. A context manager."""

  def __init__(self, directory: pathlib.Path | str, keep: int = 2):
    """Opens `directory`, which is made at the first save.

    Args:
      directory: folder of this run's checkpoints.
      keep: newest checkpoints that stay, at least 1.

    Raises:
      ValueError: keep < 1.
    """
    if keep < 1:
      raise ValueError(f'keep_checkpoints must be 1 or more, got {keep}.')
    self.directory = pathlib.Path(directory).absolute()
    self.keep = keep
    self._unreadable: set[pathlib.Path] = set()
    self._orbax = _make_orbax()

  def __enter__(self) -> 'Checkpointer':
    return self

  def __exit__(self, *unused):
    self.close()

  def close(self):
    self._orbax.close()

  @property
  def latest_step(self) -> int | None:
    """As latest_step below; the damaged ones are not counted any more."""
    paths = _committed(self.directory)
    return _first_readable(paths, _checked, self._unreadable) if paths else None

  def save(
      self, step: int, arrays: PyTree, document: Mapping[str, Any]
  ) -> None:
    """Writes one checkpoint; returns when it is on disk.

    A checkpoint of the same step is replaced. Older ones are deleted only
    after this one is on disk. Every process calls this.

    Args:
      step: 0 or more.
      arrays: pytree of jax.Array or numpy arrays, none of them empty.
      document: anything that JSON can hold.

    Raises:
      CheckpointError: it could not be written (disk full, for one). What was
        there before stays.
    """
    staging = self.directory / f'{step}.saving'
    try:
      named = {k: _savable(k, v) for k, v in _by_name(arrays).items()}
      if jax.process_index() == 0:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._clear_leftovers()
        _check_room(self.directory, named)
      _barrier('ready')
      content = {'format': _FORMAT, 'step': step, 'document': document}
      with _quiet():
        self._orbax.save(
            staging,
            args=ocp.args.Composite(
                arrays=ocp.args.PyTreeSave(named),
                document=ocp.args.JsonSave(content),
            ),
        )
      if jax.process_index() == 0:
        file_digests.seal(staging)
        self._commit(staging, self.directory / str(step))
      _barrier('committed')
    except Exception as e:
      self._clear_leftovers()
      good = self._good()
      kept = f'step {_step(good[0])}' if good else 'none'
      raise CheckpointError(
          f'could not save step {step} to {self.directory}: '
          f'{errors.one_line(e)}; last good checkpoint: {kept}.'
      ) from e
    if jax.process_index() == 0:
      self._delete_old(step)

  def restore(
      self, abstract: PyTree, step: int | None = None
  ) -> Restored | None:
    """The newest checkpoint that can be read, None where there is none.

    One that is truncated, damaged, foreign, or of other arrays is skipped with
    a warning that names it and the one tried next.

    Args:
      abstract: pytree of jax.ShapeDtypeStruct (or arrays) with the shardings
        to restore to; the first local device where a leaf has none.
      step: of the only checkpoint that will do; by default any.

    Raises:
      CheckpointError: none can be restored, but there are some, or must be.
    """
    paths = _committed(self.directory, step)
    read = lambda path: _read(self._orbax, path, abstract)
    return _first_readable(paths, read, self._unreadable) if paths else None

  def _clear_leftovers(self):
    """Removes what a killed or failed save left behind."""
    if not self.directory.is_dir():
      return
    for path in self.directory.iterdir():
      if not _LEFTOVER.fullmatch(path.name):
        continue
      final = path.with_suffix('')
      if path.suffix == '.replaced' and not final.exists():
        os.replace(path, final)  # killed between the two renames
      else:
        shutil.rmtree(path, ignore_errors=True)

  def _commit(self, staging: pathlib.Path, final: pathlib.Path):
    """Gives a written checkpoint its name."""
    replaced = final.with_name(final.name + '.replaced')
    if final.exists() and not file_digests.is_sealed(final):
      foreign = final.with_name(final.name + '.foreign')
      logging.warning('%s is no checkpoint of ours: now %s.', final, foreign)
      os.replace(final, foreign)
    if final.exists():
      os.replace(final, replaced)
    os.replace(staging, final)
    file_digests.sync(self.directory)
    self._unreadable.discard(final)
    shutil.rmtree(replaced, ignore_errors=True)

  def _good(self) -> list[pathlib.Path]:
    """Our checkpoints that were not found unreadable, newest first."""
    return [
        path
        for path in _committed(self.directory)
        if path not in self._unreadable and file_digests.is_sealed(path)
    ]

  def _delete_old(self, saved: int):
    """Deletes all but the newest `keep`; never the one just saved."""
    for path in self._good()[self.keep :]:
      if path.name != str(saved):
        shutil.rmtree(path, ignore_errors=True)


def latest_step(folder: pathlib.Path | str) -> int | None:
  """Step of the newest undamaged checkpoint in `folder`, None without any.

  Raises:
    CheckpointError: there are checkpoints, but all are damaged.
  """
  paths = _committed(pathlib.Path(folder).absolute())
  return _first_readable(paths, _checked, set()) if paths else None


def load_params(folder: pathlib.Path | str, abstract: PyTree) -> PyTree:
  """The parameters alone: see `load`."""
  return load(folder, abstract).arrays['params']


def load(
    folder: pathlib.Path | str, abstract: PyTree, step: int | None = None
) -> Restored:
  """Parameters and document of one checkpoint, whatever else it holds.

  Args:
    folder: the checkpoint, or a folder of them: then the newest readable one.
    abstract: of `arrays['params']`, with shardings. Float arrays are cast to
      its types, so that a checkpoint may be stored smaller.
    step: of the only one of a folder of them that will do.

  Raises:
    CheckpointError: no checkpoint there, or none with these parameters.
  """
  folder = pathlib.Path(folder).absolute()
  sealed = file_digests.is_sealed(folder)
  paths = [folder] if sealed else _committed(folder, step)
  if not paths:
    raise CheckpointError(f'{folder} holds no checkpoint.')
  with _make_orbax() as orbax:
    read = lambda path: _read(orbax, path, {'params': abstract}, partial=True)
    return _first_readable(paths, read, set())


# Reading.


def _checked(path: pathlib.Path) -> int:
  file_digests.verify(path)
  return _step(path)


def _first_readable(paths, read, unreadable):
  """read() of the first path where it works; CheckpointError if none."""
  found = []
  for path, following in zip(paths, [*paths[1:], None]):
    try:
      return read(path)
    except Exception as e:  # whatever a damaged file makes the readers raise
      unreadable.add(path)
      found.append(f'{path}: {errors.one_line(e)}')
      logging.warning(
          'Skipping checkpoint %s; %s.',
          found[-1],
          f'falling back to {following}' if following else 'no other is left',
      )
  raise CheckpointError(f'no checkpoint can be restored: {found[0]}')


def _read(orbax, path, abstract, partial=False) -> Restored:
  """One checkpoint; raises anything where it is not what was asked for."""
  file_digests.verify(path)
  targets = {k: _target(v) for k, v in _by_name(abstract).items()}
  metadata = ocp.PyTreeCheckpointHandler().metadata(
      epath.Path(path / 'arrays')
  )
  _compare(targets, metadata.tree, partial)
  restored = orbax.restore(
      path,
      args=ocp.args.Composite(
          arrays=ocp.args.PyTreeRestore(
              item=targets,
              restore_args=ocp.checkpoint_utils.construct_restore_args(
                  targets
              ),
              partial_restore=partial,
          ),
          document=ocp.args.JsonRestore(),
      ),
  )
  content = restored['document']
  if content['format'] != _FORMAT:
    raise CheckpointError(f'its format is {content["format"]!r}')
  arrays = jax.tree.unflatten(
      jax.tree.structure(abstract), [restored['arrays'][k] for k in targets]
  )
  return Restored(content['step'], arrays, content['document'])


def _compare(targets, saved, partial):
  """Raises CheckpointError at the first array that does not fit."""
  for name, target in targets.items():
    if name not in saved:
      raise CheckpointError(f'it has no array {name}')
    found = jax.ShapeDtypeStruct(saved[name].shape, saved[name].dtype)
    both = (found.dtype, target.dtype)
    castable = partial and all(jnp.issubdtype(d, jnp.floating) for d in both)
    if found.shape != target.shape or (
        found.dtype != target.dtype and not castable
    ):
      raise CheckpointError(
          f'array {name} is {found.dtype}{list(found.shape)}, expected '
          f'{target.dtype}{list(target.shape)}'
      )
  extra = [name for name in saved if name not in targets]
  if extra and not partial:
    raise CheckpointError(f'it has an array {extra[0]} that is not expected')


def _by_name(tree: PyTree) -> dict[str, Any]:
  """Leaves by their path, 'a/b/0', in the order of jax.tree.leaves."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  named = {
      jax.tree_util.keystr(path, simple=True, separator='/'): leaf
      for path, leaf in leaves
  }
  if len(named) < len(leaves):
    raise CheckpointError('two arrays have the same name')
  return named


def _savable(name, leaf):
  if not hasattr(leaf, 'dtype') or not hasattr(leaf, 'shape'):
    raise CheckpointError(
        f'{name} is a {type(leaf).__name__}, not an array; it belongs into '
        'the document'
    )
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    raise CheckpointError(f'{name} is a random key; streams are named instead')
  return leaf


def _target(leaf) -> jax.ShapeDtypeStruct:
  sharding = getattr(leaf, 'sharding', None)
  if sharding is None:
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


# Folders and files.


def _make_orbax() -> ocp.Checkpointer:
  return ocp.Checkpointer(ocp.CompositeCheckpointHandler())


def _step(path: pathlib.Path) -> int:
  return int(_COMMITTED.fullmatch(path.name).group(1))


def _committed(directory: pathlib.Path, step=None) -> list[pathlib.Path]:
  """Folders that bear a step's name, newest first; of `step` at least one."""
  found = directory.iterdir() if directory.is_dir() else ()
  paths = [p for p in found if _COMMITTED.fullmatch(p.name)]
  paths = [p for p in paths if step in (None, _step(p))]
  if step is not None and not paths:
    raise CheckpointError(f'{directory} holds no checkpoint of step {step}')
  return sorted(paths, key=lambda p: (-_step(p), p.suffix))


def _check_room(directory: pathlib.Path, named: Mapping[str, Any]):
  """CheckpointError on a full disk, before Orbax's threads print traces."""
  needed = sum(leaf.nbytes for leaf in named.values())
  usage = shutil.disk_usage(directory)
  if usage.total and usage.free < needed:  # some file systems report nothing
    raise CheckpointError(
        f'no space left on device, {needed / 1e6:.1f} MB are needed and '
        f'{usage.free / 1e6:.1f} MB are free'
    )


def _barrier(name: str):
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(f'checkpoint {name}')


@contextlib.contextmanager
def _quiet():
  """Drops the stack traces that Orbax's threads log for an error it raises."""
  logger = logging.getLogger('absl')
  level = logger.level
  logger.setLevel(logging.CRITICAL)
  try:
    yield
  finally:
    logger.setLevel(level)
