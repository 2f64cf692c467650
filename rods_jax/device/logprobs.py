"""Log-probabilities and entropies at the target positions only.

The output matrix is applied to K gathered activations of each row, not to all T
positions, and chunk by chunk where the vocabulary is large: [B, T, V] logits
never exist.
"""

from typing import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rods_jax.device import masked

Head = Callable[[Float[Array, '... D']], Float[Array, '... V']]


def gather_rows(
    hidden: Float[Array, 'B T D'], positions: Int[Array, 'B K']
) -> Float[Array, 'B K D']:
  """hidden at the given positions of each row."""
  return jnp.take_along_axis(hidden, positions[..., None], axis=1)


def token_logprobs(
    head: Head,
    hidden: Float[Array, 'B K D'],
    targets: Int[Array, 'B K'],
    mask: Bool[Array, 'B K'],
    temperature: float = 1.0,
    chunk: int | None = None,
) -> tuple[Float[Array, 'B K'], Float[Array, 'B K']]:
  """Log-probability of each target, and the entropy there, in nats.

  Args:
    head: activations -> float32 logits.
    hidden: the activations that predict the targets.
    targets: token ids.
    mask: False for filling: both results are 0 there, and so is the gradient,
      whatever stands in hidden.
    temperature: divides the logits, as it did in the sampler.
    chunk: targets of a row whose logits exist at once; the backward pass
      computes them again. None: all of them.

  Returns:
    logprobs and entropies.
  """
  hidden = masked.keep(hidden, mask[..., None])

  def run(hidden, targets):
    logits = head(hidden) / temperature
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A comparison instead of a gather: its gradient needs no scatter.
    chosen = jnp.arange(logits.shape[-1]) == targets[..., None]
    logprobs = masked.total(logits, chosen, axis=-1) - log_z
    probs = jnp.exp(logits - log_z[..., None])
    return logprobs, log_z - jnp.sum(probs * logits, axis=-1)

  if chunk is None or chunk >= hidden.shape[1]:
    result = run(hidden, targets)
  else:
    result = _chunked(run, hidden, targets, chunk)
  return tuple(masked.keep(x, mask) for x in result)


def _chunked(run, hidden, targets, chunk: int):
  """run over pieces of K, each recomputed in the backward pass."""
  b, k, d = hidden.shape
  pieces = -(-k // chunk)
  extra = pieces * chunk - k
  hidden = jnp.pad(hidden, ((0, 0), (0, extra), (0, 0)))
  targets = jnp.pad(targets, ((0, 0), (0, extra)))
  hidden = hidden.reshape(b, pieces, chunk, d).swapaxes(0, 1)
  targets = targets.reshape(b, pieces, chunk).swapaxes(0, 1)
  result = jax.lax.map(jax.checkpoint(lambda x: run(*x)), (hidden, targets))
  return tuple(
      x.swapaxes(0, 1).reshape(b, pieces * chunk)[:, :k] for x in result
  )
