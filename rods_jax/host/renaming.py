"""Renames the values of a demonstration, so that copying does not depend on them.

The values of variants come from pools. A policy that is trained on them alone
learns to copy those, and writes anything but `Theodore` where it never wrote
that name's pieces. Here a token that a call takes from the dialogue becomes
another one of the same kind, drawn by chance, everywhere in the row: the row
still shows what is copied from where, and nothing else helps to predict it.
"""

import collections

import numpy as np

from rods_jax.host import demonstrate
from rods_jax.host import tokenizer as tokenizer_lib


class Renamer:
  """Renames demonstrations that were written with one tokenizer."""

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer):
    self._kinds = [tokenizer.kind(i) for i in range(tokenizer.vocab_size)]
    members = collections.defaultdict(list)
    for token, kind in enumerate(self._kinds):
      members[kind].append(token)
    self._members = {kind: np.array(ids) for kind, ids in members.items()}

  def __call__(
      self, shown: demonstrate.Demonstration, random: np.random.Generator
  ) -> demonstrate.Demonstration:
    """The same dialogue with a random share of its copied tokens renamed.

    Args:
      shown: the dialogue.
      random: draws the share, the tokens and their new names.
    """
    tokens, mask = shown.tokens, shown.loss_mask
    distinct, first = np.unique(tokens, return_index=True)
    copied = distinct[~mask[first] & np.isin(distinct, tokens[mask])]
    share = random.random()
    names = np.arange(len(self._kinds))
    taken = set(distinct.tolist())
    for token in copied.tolist():
      kind = self._kinds[token]
      if kind is None or random.random() >= share:
        continue
      new = int(random.choice(self._members[kind]))
      if new not in taken:  # two tokens of a row never become one
        taken.add(new)
        names[token] = new
    return demonstrate.Demonstration(
        names[tokens].astype(tokens.dtype), mask
    )
