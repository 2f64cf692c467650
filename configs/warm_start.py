"""The warm start: supervised training that makes the shipped checkpoint.

Command:  python main.py --config=configs/warm_start.py
Hardware: 2 CPU cores, about 20 minutes, 3 GB of memory.
Numbers:  greedy progress on held-out variants of all training tasks 0.26, on
          held-out scenarios 0.08.

The tokenizer and the policy are made from executed variants of training
scenarios only, with the same split as configs/rods.py. The demonstrator often
leaves out a turn's last call, which leaves something to learn from reward;
early_stop_share=0 gives the better imitator.
"""

import ml_collections

from configs import rods


def get_config() -> ml_collections.ConfigDict:
  """The embedded default's model, trained on ground-truth dialogues."""
  c = ml_collections.ConfigDict(rods.get_config().to_dict())
  c.model.init_from = 'random'
  c.data.num_seed_tasks = 0  # variants of every training task
  # What is imitated need not have its seed's structure; the gate takes time.
  c.synthesis.max_profile_distance = 1.0

  c.warm_start = warm = ml_collections.ConfigDict()
  warm.vocab_size = 4096
  warm.num_steps = 1500
  warm.rows_per_step = 8
  warm.learning_rate = 2e-3
  warm.warmup_steps = 30
  warm.microbatch_rows = 4
  warm.tokenizer_variants = 4  # variants per task that the merges come from
  warm.second_share = 0.5  # variants that are variants of variants
  warm.rename_share = 0.5  # rows whose copied tokens are renamed by chance
  # Turns of several calls in which the demonstrator leaves out the last one.
  warm.early_stop_share = 0.6
  warm.log_every = 20
  warm.output = 'rods_jax/assets'  # where tokenizer and policy are written
  return c.lock()
