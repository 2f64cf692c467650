"""One optimizer step in one jitted, donated call.

The call takes a whole minibatch (rods_jax/batch.py) and does, in this order:
group advantages, reward statistics of each task, gradients summed over the
microbatches that are in use, one division, clipping, the optimizer, the guard
against non-finite values, metrics.

It is compiled once: for each length bucket a loop with a dynamic number of
microbatches, so that every mix of lengths runs the same program.
"""

from typing import Any, Callable

import flax.struct
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import optax

from rods_jax.batch import Batch, Bucket, Packed
from rods_jax.device import advantages as advantages_lib
from rods_jax.device import axes
from rods_jax.device import logprobs as logprobs_lib
from rods_jax.device import lora
from rods_jax.device import losses
from rods_jax.device import masked
from rods_jax.device import model
from rods_jax.device import stacking

TaskStats = advantages_lib.TaskStats
GrpoConfig = losses.GrpoConfig
Metrics = dict[str, Float[Array, '']]


@flax.struct.dataclass
class TrainState:
  """All that changes from step to step; a plain pytree.

  Attributes:
    params: those that are trained: the policy's, or its adapters (lora.py).
    opt_state: the optimizer's.
    step: int32 [], calls so far, those without a parameter change included.
    nonfinite_in_row: int32 [], calls in a row that were skipped because the
      objective or the gradient was not finite.
    stats: reward statistics of each task since they were last cleared.
  """

  params: Any
  opt_state: Any
  step: Int[Array, '']
  nonfinite_in_row: Int[Array, '']
  stats: TaskStats


def make_optimizer(
    learning_rate: float,
    warmup_steps: int,
    grad_clip: float,
    weight_decay: float,
    *,
    decay_steps: int | None = None,
    b1: float = 0.9,
    b2: float = 0.95,
) -> optax.GradientTransformation:
  """AdamW with gradient clipping.

  Args:
    learning_rate: after warm-up.
    warmup_steps: rising linearly; the first step already moves.
    grad_clip: largest global norm of the gradient.
    weight_decay: of matrices; norms and biases never decay.
    decay_steps: with a number, a cosine to zero at that step; else constant.
    b1: decay of the first moment.
    b2: decay of the second moment.
  """

  def schedule(count):
    warm = jnp.minimum((count + 1) / max(warmup_steps, 1), 1.0)
    if decay_steps is None:
      return learning_rate * warm
    left = jnp.clip(1 - count / decay_steps, 0.0, 1.0)
    return learning_rate * warm * 0.5 * (1 - jnp.cos(jnp.pi * left))

  return optax.chain(
      optax.clip_by_global_norm(grad_clip),
      optax.adamw(
          schedule, b1=b1, b2=b2, weight_decay=weight_decay,
          mask=lambda params: jax.tree.map(lambda x: x.ndim >= 2, params),
      ),
  )


def init_state(
    params: Any,
    optimizer: optax.GradientTransformation,
    num_slots: int,
    mesh: Mesh | None = None,
) -> TrainState:
  """A state before the first step.

  Args:
    params: the policy's; placed on `mesh` already where one is given.
    optimizer: of make_optimizer.
    num_slots: tasks that statistics are kept for.
    mesh: what is not shaped like a parameter is replicated over it.
  """
  state = TrainState(
      params=params,
      opt_state=optimizer.init(params),
      step=jnp.zeros((), jnp.int32),
      nonfinite_in_row=jnp.zeros((), jnp.int32),
      stats=advantages_lib.empty_stats(num_slots),
  )
  if mesh is None:
    return state
  replicated = NamedSharding(mesh, PartitionSpec())

  def place(x):
    placed = isinstance(x.sharding, NamedSharding)
    return x if placed else jax.device_put(x, replicated)

  return jax.tree.map(place, state)


def clear_stats(state: TrainState) -> TrainState:
  """The state with statistics of nothing, placed as they were."""

  def clear(x):
    zeros = jnp.zeros_like(x)
    # Placing what was not placed would compile the update once more.
    return jax.device_put(zeros, x.sharding) if x.committed else zeros

  return state.replace(stats=jax.tree.map(clear, state.stats))


def make_update_fn(
    graphdef: Any,
    optimizer: optax.GradientTransformation,
    config: GrpoConfig,
    *,
    chunk: int | None = None,
    base_graphdef: Any = None,
    state_shardings: TrainState | None = None,
    mesh: Mesh | None = None,
) -> Callable[[TrainState, Any, Batch], tuple[TrainState, Metrics]]:
  """update(state, ref_params, batch) -> (state, metrics); `state` is donated.

  A call whose objective or gradient is not finite, or that has no target token,
  leaves params and opt_state as they were; step and statistics advance.

  Args:
    graphdef: of the model.
    optimizer: of make_optimizer.
    config: the options.
    chunk: see logprobs.token_logprobs.
    base_graphdef: of the model without adapters where adapters are trained;
      ref_params are then the base of policy and reference alike.
    state_shardings: where the state lives; with `mesh`, fixes inputs and
      outputs: rows of a microbatch are split over ('data', 'fsdp').
    mesh: the devices.
  """

  adapted, with_kl = base_graphdef is not None, config.kl_coef > 0
  ref_graphdef = base_graphdef if adapted else graphdef

  def update(state, ref_params, batch):
    if (with_kl or adapted) and ref_params is None:
      raise ValueError(
          f'grpo.kl_coef is {config.kl_coef}; give the reference parameters.'
      )
    advantages = advantages_lib.group_advantages(
        batch.rewards, batch.valid, config.normalize_advantage
    ).reshape(-1)

    def loss(params, micro):
      options = micro, config.temperature, chunk
      policy = lora.join(params, ref_params) if adapted else params
      ref = _scorer(ref_graphdef, *options)(ref_params)[0] if with_kl else None
      sums = losses.grpo(
          *_scorer(graphdef, *options)(policy), micro.old_logprobs, ref,
          advantages[micro.rows], micro.mask, config,
      )
      return sums.objective, sums

    grads, sums = _accumulate(loss, state.params, batch.packed)
    state = state.replace(stats=advantages_lib.add_rewards(
        state.stats, batch.progress, batch.valid, batch.slots
    ))
    return _apply(optimizer, state, grads, sums)

  # A base stays where it is: it is not of the state's structure.
  with_ref = state_shardings is not None and with_kl and not adapted
  ref_shardings = state_shardings.params if with_ref else None
  return _jit(update, state_shardings, mesh, ref_shardings)


def make_supervised_fn(
    graphdef: Any,
    optimizer: optax.GradientTransformation,
    *,
    chunk: int | None = None,
    state_shardings: TrainState | None = None,
    mesh: Mesh | None = None,
) -> Callable[[TrainState, Packed], tuple[TrainState, Metrics]]:
  """step(state, packed) -> (state, metrics): cross-entropy on the targets.

  The same accumulation, guard and donation as make_update_fn.
  """

  def step(state, packed):
    def loss(params, micro):
      score = _scorer(graphdef, micro, 1.0, chunk)
      sums = losses.cross_entropy(*score(params), micro.mask)
      return sums.objective, sums

    grads, sums = _accumulate(loss, state.params, packed)
    state, metrics = _apply(optimizer, state, grads, sums)
    names = ('objective', 'entropy', 'grad_norm', 'tokens', 'skipped',
             'nonfinite_in_row')
    return state, {f'loss/{name}': metrics[f'loss/{name}'] for name in names}

  return _jit(step, state_shardings, mesh)


def make_score_fn(
    graphdef: Any, temperature: float, *, chunk: int | None = None
) -> Callable[[Any, Packed], tuple[Float[Array, 'M R K'], ...]]:
  """score(params, packed) -> logprobs of the targets, [M, R, K] a bucket.

  Microbatches that are not in use are 0. packing.unpack gives rows again.
  """

  def score(params, packed):
    result = []
    for bucket, count in zip(packed.buckets, packed.counts):

      def body(i, out, bucket=bucket):
        micro = _microbatch(bucket, i)
        logprobs, _ = _scorer(graphdef, micro, temperature, chunk)(params)
        return out.at[i].set(logprobs)

      out = jnp.zeros(bucket.targets.shape, jnp.float32)
      result.append(jax.lax.fori_loop(0, count, body, out))
    return tuple(result)

  return jax.jit(score)


def batch_shardings(mesh: Mesh) -> Batch:
  """Where a batch lives: a prefix tree of Batch, for jit and device_put."""
  everywhere = NamedSharding(mesh, PartitionSpec())
  rows = NamedSharding(mesh, PartitionSpec(None, ('data', 'fsdp')))
  return Batch(Packed(rows, everywhere), *(everywhere,) * 4)


def _jit(step, state_shardings, mesh, *more_shardings):
  """jit with the state donated, and shardings fixed where they are given."""
  if mesh is None or state_shardings is None:
    return jax.jit(step, donate_argnums=0)

  def placed(*args):
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
      return step(*args)

  batch = batch_shardings(mesh)
  if not more_shardings:
    batch = batch.packed
  return jax.jit(
      placed,
      donate_argnums=0,
      in_shardings=(state_shardings, *more_shardings, batch),
      out_shardings=(state_shardings, NamedSharding(mesh, PartitionSpec())),
  )


def _microbatch(bucket: Bucket, index: Int[Array, '']) -> Bucket:
  """One microbatch of a bucket: the same fields without their first axis."""
  return jax.tree.map(
      lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), bucket
  )


def _scorer(graphdef, micro: Bucket, temperature: float, chunk: int | None):
  """params -> (logprobs, entropies) [R, K] at the targets of a microbatch."""

  def score(params):
    params, tokens = model.hold_tables(params, micro.tokens)
    hidden = model.hidden(graphdef, params, tokens, micro.lengths)
    return logprobs_lib.token_logprobs(
        lambda x: model.logits(graphdef, params, x),
        logprobs_lib.gather_rows(hidden, micro.positions),
        micro.targets, micro.mask, temperature, chunk,
    )

  return score


def _accumulate(loss, params, packed: Packed):
  """Sums of gradients and of Sums over all microbatches that are in use."""
  names = model.logical_axes(params)
  place = lambda tree: jax.tree.map(
      lambda x, axis_names: axes.constrain(x, *axis_names), tree, names
  )
  zeros = place(jax.tree.map(jnp.zeros_like, params))
  carry = zeros, losses.Sums.zero()
  for bucket, count in zip(packed.buckets, packed.counts):

    def body(i, carry, bucket=bucket):
      grads, sums = carry
      grads, more = _add_gradient(
          lambda params: loss(params, _microbatch(bucket, i)), params, grads,
          names,
      )
      return place(grads), sums.merge(more)

    carry = jax.lax.fori_loop(0, count, body, carry)
  return carry


def _add_gradient(loss, params, grads, names):
  """(grads + gradient of `loss`, what else it returns).

  Of stacked layers the backward pass adds each to its place in `grads`: a
  gradient of all of them beside that would be as large as the parameters.
  `names` are model.logical_axes. Written for JAX 0.10, where gradients that are
  added to references are a young feature.
  """
  leaves, tree = jax.tree.flatten(params)
  names = jax.tree.leaves(names, is_leaf=lambda x: isinstance(x, tuple))
  targets = [
      jax.new_ref(x) if stacking.LAYERS in axis_names else jax.ad.GradValue()
      for x, axis_names in zip(jax.tree.leaves(grads), names, strict=True)
  ]
  _, backward, more = jax.vjp(
      lambda leaves: loss(tree.unflatten(leaves)), leaves, has_aux=True
  )
  added, = backward.with_refs(targets)(jnp.float32(1))
  sums = [
      x + y if isinstance(target, jax.ad.GradValue) else jax.freeze(target)
      for x, y, target in zip(jax.tree.leaves(grads), added, targets)
  ]
  return tree.unflatten(sums), more


def _apply(optimizer, state: TrainState, grads, sums: losses.Sums):
  """Divides once, then steps where there is something finite to step on."""
  scale = masked.ratio(jnp.float32(1), sums.units)
  grads = jax.tree.map(lambda g: g * scale, grads)
  grad_norm = optax.tree.norm(grads)
  finite = jnp.isfinite(sums.objective) & jnp.isfinite(grad_norm)
  apply = finite & (sums.units > 0)
  updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  params, opt_state = jax.tree.map(
      lambda new, old: jnp.where(apply, new, old),
      (params, opt_state), (state.params, state.opt_state),
  )
  # A call without tokens says nothing about health: it keeps the count.
  in_row = jnp.where(
      finite, jnp.where(apply, 0, state.nonfinite_in_row),
      state.nonfinite_in_row + 1,
  )
  means = {
      name: masked.ratio(getattr(sums, name), sums.units)
      for name in ('objective', 'policy', 'kl', 'entropy')
  }
  means |= {
      'clip_fraction': masked.ratio(sums.clipped, sums.tokens),
      'mismatch': masked.ratio(sums.mismatch, sums.tokens),
      'ratio_max': sums.ratio_max,
      'tokens': sums.tokens,
      'grad_norm': grad_norm,
      'skipped': 1.0 - apply,
      'nonfinite_in_row': in_row.astype(jnp.float32),
  }
  state = state.replace(
      params=params, opt_state=opt_state, step=state.step + 1,
      nonfinite_in_row=in_row,
  )
  return state, {f'loss/{name}': value for name, value in means.items()}
