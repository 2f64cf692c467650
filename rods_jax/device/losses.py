"""The GRPO objective over target tokens, as sums that can be added up.

One microbatch gives sums and counts; update.py adds them over microbatches and
divides once. So nothing depends on how the rows were split.

Ratios are per token against the sampler's log-probabilities. A sequence-level
ratio (the product over a long episode) would collapse to zero.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rods_jax.device import masked

# exp of the log ratio stays finite; infinity times a zero gradient is NaN.
_MAX_LOG_RATIO = 20.0


@dataclasses.dataclass(frozen=True)
class GrpoConfig:
  """What the update reads of config.grpo, and the rollouts' temperature.

  Attributes:
    clip_low: ratios below 1 - clip_low are cut off for negative advantages.
    clip_high: ratios above 1 + clip_high, for positive ones.
    dual_clip: largest ratio that counts for negative advantages; 0: off.
    kl_coef: weight of the k3 estimate; 0: the reference is never computed.
    entropy_coef: weight of the entropy bonus.
    aggregation: 'token_mean' (over all tokens of the minibatch) or
      'sequence_mean' (over rows, of their token means).
    normalize_advantage: divide by the group's deviation.
    temperature: that the rows were sampled at.
  """

  clip_low: float
  clip_high: float
  dual_clip: float
  kl_coef: float
  entropy_coef: float
  aggregation: str
  normalize_advantage: bool
  temperature: float

  def __post_init__(self):
    self._require('temperature', self.temperature > 0, 'above 0')
    self._require('clip_low', 0 < self.clip_low < 1, 'between 0 and 1')
    self._require('clip_high', self.clip_high > 0, 'above 0')
    self._require(
        'dual_clip', self.dual_clip == 0 or self.dual_clip > 1,
        'above 1, or 0 to switch it off',
    )
    for name in ('kl_coef', 'entropy_coef'):
      self._require(name, getattr(self, name) >= 0, 'at least 0')
    self._require(
        'aggregation', self.aggregation in ('token_mean', 'sequence_mean'),
        "'token_mean' or 'sequence_mean'",
    )

  def _require(self, name: str, ok: bool, range_text: str) -> None:
    if not ok:
      raise ValueError(
          f'GrpoConfig.{name} is {getattr(self, name)!r}; it must be '
          f'{range_text}.'
      )


class Sums(NamedTuple):
  """What one microbatch adds. Scalars, float32.

  Attributes:
    objective: sum of the objective's terms, weighted by their coefficients.
    policy: sum of the clipped policy loss.
    kl: sum of the k3 estimates.
    entropy: sum of the entropies.
    units: what the four are divided by: tokens, or rows for 'sequence_mean'.
    tokens: target tokens.
    clipped: tokens whose policy gradient is cut off.
    mismatch: sum of |logprob - old_logprob| over tokens.
    ratio_max: largest ratio; merged by maximum.
  """

  objective: Float[Array, '']
  policy: Float[Array, '']
  kl: Float[Array, '']
  entropy: Float[Array, '']
  units: Float[Array, '']
  tokens: Float[Array, '']
  clipped: Float[Array, '']
  mismatch: Float[Array, '']
  ratio_max: Float[Array, '']

  @classmethod
  def zero(cls) -> 'Sums':
    return cls(*(jnp.zeros((), jnp.float32) for _ in cls._fields))

  def merge(self, other: 'Sums') -> 'Sums':
    added = jax.tree.map(jnp.add, self, other)
    largest = jnp.maximum(self.ratio_max, other.ratio_max)
    return added._replace(ratio_max=largest)


def aggregate(
    x: Float[Array, 'B K'], mask: Bool[Array, 'B K'], mode: str
) -> Float[Array, '']:
  """The sum that `units` divides: over tokens, or over rows' token means."""
  if mode == 'token_mean':
    return masked.total(x, mask)
  return jnp.sum(masked.ratio(masked.total(x, mask, 1), mask.sum(axis=1)))


def units(mask: Bool[Array, 'B K'], mode: str) -> Int[Array, '']:
  """Tokens that count, or rows with at least one of them."""
  return mask.sum() if mode == 'token_mean' else mask.any(axis=1).sum()


def policy_terms(
    log_ratio: Float[Array, 'B K'],
    advantages: Float[Array, 'B'],
    config: GrpoConfig,
) -> tuple[Float[Array, 'B K'], Bool[Array, 'B K']]:
  """Clipped policy loss of each token, and whether its gradient is cut off.

  loss = max(-A r, -A clip(r, 1 - low, 1 + high)), and for A < 0 at most
  -A dual_clip: PPO (arXiv 1707.06347), clip-higher (arXiv 2503.14476), dual
  clip (arXiv 1912.09729).
  """
  advantage = advantages[:, None]
  ratio = jnp.exp(log_ratio)
  low, high = 1 - config.clip_low, 1 + config.clip_high
  loss = jnp.maximum(
      -advantage * ratio, -advantage * jnp.clip(ratio, low, high)
  )
  cut = jnp.where(advantage > 0, ratio > high, ratio < low)
  if config.dual_clip:
    bound = -advantage * config.dual_clip
    loss = jnp.where(advantage < 0, jnp.minimum(loss, bound), loss)
    cut |= (advantage < 0) & (ratio > config.dual_clip)
  return loss, cut & (advantage != 0)


def k3(
    logprobs: Float[Array, 'B K'], ref_logprobs: Float[Array, 'B K']
) -> Float[Array, 'B K']:
  """Estimate of KL(policy | reference) at the sampled token: never negative.

  exp(d) - d - 1 with d = ref_logprobs - logprobs
  (http://joschu.net/blog/kl-approx.html).
  """
  delta = jnp.clip(ref_logprobs - logprobs, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
  return jnp.exp(delta) - delta - 1


def grpo(
    logprobs: Float[Array, 'B K'],
    entropies: Float[Array, 'B K'],
    old_logprobs: Float[Array, 'B K'],
    ref_logprobs: Float[Array, 'B K'] | None,
    advantages: Float[Array, 'B'],
    mask: Bool[Array, 'B K'],
    config: GrpoConfig,
) -> Sums:
  """Sums of one microbatch; differentiate `objective`.

  Args:
    logprobs: of the targets under the policy that is trained.
    entropies: of the policy at the targets, in nats.
    old_logprobs: the sampler's.
    ref_logprobs: the reference's; read only where config.kl_coef > 0.
    advantages: of each row.
    mask: the targets that count; all else may be NaN.
    config: the options.
  """
  raw = masked.keep(logprobs - old_logprobs, mask)
  log_ratio = jnp.clip(raw, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
  per_token, cut = policy_terms(log_ratio, advantages, config)
  mode = config.aggregation
  policy = aggregate(per_token, mask, mode)
  entropy = aggregate(entropies, mask, mode)
  kl = jnp.zeros((), jnp.float32)
  objective = policy
  if config.kl_coef > 0:
    pair = (masked.keep(x, mask) for x in (logprobs, ref_logprobs))
    kl = aggregate(k3(*pair), mask, mode)
    objective = objective + config.kl_coef * kl
  if config.entropy_coef > 0:
    objective = objective - config.entropy_coef * entropy
  return Sums(
      objective=objective,
      policy=policy,
      kl=kl,
      entropy=entropy,
      units=units(mask, mode).astype(jnp.float32),
      tokens=mask.sum().astype(jnp.float32),
      clipped=masked.keep(cut, mask).sum().astype(jnp.float32),
      mismatch=masked.total(jnp.abs(raw), mask),
      ratio_max=masked.largest(jnp.exp(log_ratio), mask),
  )


def cross_entropy(
    logprobs: Float[Array, 'B K'],
    entropies: Float[Array, 'B K'],
    mask: Bool[Array, 'B K'],
) -> Sums:
  """Sums of one supervised microbatch: the objective is -logprob per token."""
  tokens = mask.sum().astype(jnp.float32)
  return Sums.zero()._replace(
      objective=-masked.total(logprobs, mask),
      entropy=masked.total(entropies, mask),
      units=tokens,
      tokens=tokens,
  )
