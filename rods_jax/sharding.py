"""Device mesh and placement, by the table of logical axes (device/axes.py).

Anything that does not fit (an axis used twice, a size that does not divide) is
an error here, not a silent replication.
"""

import math
from typing import Any, Sequence

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from rods_jax.device import axes as axes_lib
from rods_jax.device import model
from rods_jax.device import update

MESH_AXES, RULES = axes_lib.MESH_AXES, axes_lib.RULES


def make_mesh(
    data: int,
    fsdp: int,
    tensor: int,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """A mesh of axes ('data', 'fsdp', 'tensor') over all devices.

  Args:
    data: replicas of the parameters; batch rows are cut along it.
    fsdp: parts of each parameter along its 'embed' axis; rows too.
    tensor: parts along heads, mlp and vocab.
    devices: all of JAX's when None.

  Returns:
    The mesh. One size may be -1: whatever is left.

  Raises:
    ValueError: the sizes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = {'data': data, 'fsdp': fsdp, 'tensor': tensor}
  given = ', '.join(f'{name}={size}' for name, size in sizes.items())
  free = [name for name, size in sizes.items() if size == -1]
  if len(free) > 1 or any(s < 1 and s != -1 for s in sizes.values()):
    raise ValueError(
        f'mesh sizes must be at least 1, and one of them may be -1; got '
        f'{given}.'
    )
  known = math.prod(size for size in sizes.values() if size != -1)
  if free:
    sizes[free[0]] = max(1, len(devices) // known)
  if math.prod(sizes.values()) != len(devices):
    raise ValueError(
        f'mesh {given} does not multiply to the {len(devices)} device(s); '
        f'change config.mesh.'
    )
  # jax.make_mesh defaults to explicit axes, where a gather from a sharded
  # embedding raises.
  return jax.make_mesh(
      tuple(sizes.values()),
      MESH_AXES,
      axis_types=(AxisType.Auto,) * len(MESH_AXES),
      devices=devices,
  )


def spec(
    axes: Sequence[str | None], shape: Sequence[int], mesh: Mesh
) -> PartitionSpec:
  """The partition of an array whose dimensions have these logical names.

  Raises:
    ValueError: unknown name, a mesh axis used twice, a size that the mesh
      does not divide, or as many names as dimensions are not given.
  """
  if len(axes) != len(shape):
    raise ValueError(f'axes {tuple(axes)} do not name the shape {shape}.')
  used: dict[str, str] = {}
  parts = []
  for name, size in zip(axes, shape):
    if name is not None and name not in RULES:
      raise ValueError(
          f'logical axis {name!r} is not in the table; it has '
          f'{", ".join(RULES)}.'
      )
    mesh_axes = RULES[name] if name is not None else ()
    for axis in mesh_axes:
      if axis in used:
        raise ValueError(
            f'logical axes {used[axis]!r} and {name!r} of one array are both '
            f'cut along mesh axis {axis!r}.'
        )
      used[axis] = name
    count = math.prod(mesh.shape[axis] for axis in mesh_axes)
    if size % count:
      raise ValueError(
          f'{name} has size {size}, which the mesh axes '
          f'{"*".join(mesh_axes)} = {count} do not divide; change config.mesh '
          f'or the size.'
      )
    parts.append(mesh_axes if len(mesh_axes) != 1 else mesh_axes[0])
  return PartitionSpec(*(part or None for part in parts))


def named(
    axes: Sequence[str | None], shape: Sequence[int], mesh: Mesh
) -> NamedSharding:
  """`spec` on a mesh."""
  return NamedSharding(mesh, spec(axes, shape, mesh))


def replicated(mesh: Mesh) -> NamedSharding:
  """The whole array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def local_mesh(mesh: Mesh) -> Mesh:
  """The part of the mesh whose devices are this process's; all in one process.

  What a process plays by itself is computed there: its rows, and parameters
  that are whole along 'data' and 'fsdp'.

  Raises:
    ValueError: 'tensor' reaches over several processes.
  """
  if jax.process_count() == 1:
    return mesh
  index = jax.process_index()
  mine = np.vectorize(lambda d: d.process_index == index)(mesh.devices)
  if (mine.any(axis=-1) != mine.all(axis=-1)).any():
    raise ValueError(
        f'config.mesh.tensor is {mesh.shape["tensor"]}, which the '
        f'{mine.sum()} device(s) of each process do not hold; a row is played '
        'within one process.'
    )
  devices = mesh.devices[mine].reshape(-1, 1, mesh.shape['tensor'])
  kinds = (AxisType.Auto,) * len(MESH_AXES)
  return Mesh(devices, MESH_AXES, axis_types=kinds)


def localize(tree: Any, shardings: Any) -> Any:
  """Arrays of the whole mesh, as they lie in this process; nothing is copied.

  Args:
    tree: arrays of which each process holds all.
    shardings: on its local_mesh.
  """
  if jax.process_count() == 1:
    return tree
  return jax.tree.map(
      lambda x, s: jax.make_array_from_single_device_arrays(
          x.shape, s, [shard.data for shard in x.addressable_shards]
      ),
      tree, shardings,
  )


def put(tree: Any, shardings: Any) -> Any:
  """device_put of arrays that every process has, the same in each.

  Args:
    tree: numpy or jax arrays.
    shardings: a tree of the same structure, or a prefix of it.
  """
  if jax.process_count() == 1:
    return jax.device_put(tree, shardings)

  def place(sharding, part):
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(
            x.shape, sharding, np.asarray(x).__getitem__
        ),
        part,
    )

  return jax.tree.map(place, shardings, tree)


def put_batch(batch: Any, mesh: Mesh) -> Any:
  """A Batch on the host, as the update wants it; as it is in one process."""
  if jax.process_count() == 1:
    return batch  # jit places it
  return put(batch, update.batch_shardings(mesh))


def param_shardings(params: Any, mesh: Mesh, gathered: bool = False) -> Any:
  """The tree of `params` (arrays or shapes) with a NamedSharding per leaf.

  Args:
    params: the tree.
    mesh: the devices.
    gathered: not cut along 'embed': a decode step then reads its weights
      where they lie instead of gathering them for every token.
  """

  def place(x, names):
    names = axes_lib.gathered(names) if gathered else names
    return named(names, x.shape, mesh)

  return jax.tree.map(place, params, model.logical_axes(params))


def abstract_params(config: model.ModelConfig, mesh: Mesh) -> Any:
  """Shapes, dtypes and shardings of the decoder's parameters."""
  shapes = jax.eval_shape(
      lambda key: model.create(config, key)[1], jax.random.key(0)
  )
  return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      param_shardings(shapes, mesh),
  )
