"""RODS on BFCL multi-turn with the embedded small policy.

Command:  python main.py --config=configs/rods.py
Hardware: 2 CPU cores, 6 GB of memory; no download, no accelerator.
Time:     about four minutes; at the first start half a minute of it compiles.
Numbers:  greedy progress on held-out variants of training scenarios
          0.33 -> 0.49, on held-out scenarios 0.08 -> 0.10 (three seeds).

`--config=configs/rods.py:smoke` runs the same path in under a minute.
"""

import ml_collections


def get_config(arg: str = 'default') -> ml_collections.ConfigDict:
  """The run's configuration; `arg` names one of VARIANTS."""
  if arg not in VARIANTS:
    raise ValueError(
        f'configs/rods.py has no variant {arg!r}; use one of '
        f'{", ".join(VARIANTS)}.'
    )
  config = _default()
  VARIANTS[arg](config)
  return config.lock()


def _default() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.rng_seed = 0  # base of every named random stream
  for section in (
      _tasks, _policy, _rollouts, _updates, _pool, _synthesis, _schedule
  ):
    section(c)
  return c


def _tasks(c: ml_collections.ConfigDict) -> None:
  """Which BFCL tasks, and their split."""
  c.data = data = ml_collections.ConfigDict()
  data.categories = ('base', 'miss_func', 'miss_param', 'long_context')
  data.split = 'scenario'  # 'scenario': by BFCL index; 'random': the paper's
  data.num_train_scenarios = 100  # the other 100 are held out
  data.split_seed = 0  # chooses the training scenarios
  data.num_seed_tasks = 64  # human tasks in the pool; 0 takes all of them
  data.max_task_tokens = 512  # longest ground-truth dialogue of a seed
  data.max_message_tokens = 96  # longest message in such a dialogue


def _policy(c: ml_collections.ConfigDict) -> None:
  """The decoder and the devices that it is on."""
  # The policy: a decoder in the manner of Qwen3, at two million parameters.
  c.model = model = ml_collections.ConfigDict()
  model.d_model = 192  # width of the activations
  model.num_layers = 4
  model.num_heads = 3  # query heads
  model.num_kv_heads = 1  # key and value heads
  model.head_dim = 64
  model.mlp_dim = 512  # width inside SwiGLU
  model.rope_theta = 1e6  # base of the rotary frequencies
  model.rms_eps = 1e-6
  model.tie_embeddings = True  # the output matrix is the embedding
  model.qkv_bias = False
  model.qk_norm = True  # RMSNorm on queries and keys
  model.previous_token = True  # inputs know the token before; copies sooner
  model.dtype = 'float32'  # of activations; parameters are float32
  # What the backward pass computes again: 'none', 'dots', 'attention', 'full'.
  model.remat = 'none'
  model.scan_layers = False  # True compiles one layer; slower on CPU
  model.lora_rank = 0  # of trained adapters on a frozen base; 0: train it all
  model.lora_alpha = 32.0  # adapters add (lora_alpha / lora_rank) A B
  model.lora_targets = ('q', 'k', 'v', 'o', 'gate', 'up', 'down')
  # 'embedded', 'random', a .safetensors file, the folder of another run, or one
  # of Hugging Face, which brings its own tokenizer, chat format and shape: the
  # fields above that describe the shape are replaced.
  model.init_from = 'embedded'

  # Devices. One axis may be -1: whatever is left.
  c.mesh = mesh = ml_collections.ConfigDict()
  mesh.data = -1  # rows of a batch
  mesh.fsdp = 1  # rows of a batch, and parameters
  mesh.tensor = 1  # heads, mlp and vocabulary


def _rollouts(c: ml_collections.ConfigDict) -> None:
  """How trajectories are played."""
  # Rollouts. Lengths are in tokens.
  c.rollout = rollout = ml_collections.ConfigDict()
  rollout.group_size = 8  # trajectories per task; the paper's 16 do not fit
  rollout.groups_per_batch = 8  # tasks per rollout batch
  rollout.temperature = 1.0
  # Evaluation alone, where it samples: the ratio knows of no cut distribution.
  rollout.top_k = 0  # sample among the k most likely tokens; 0: all
  rollout.top_p = 1.0  # and the fewest of them with this share; 1: all
  rollout.num_slots = 16  # rows decoded at a time; on an accelerator, more
  # Engines that share the slots: while the host plays what one of them said,
  # the others decode. 0: two on a CPU that is one device, where one engine
  # leaves a core idle, if the slots are even; else one.
  rollout.num_engines = 0
  # Segments of the KV cache; the last is the longest trajectory.
  rollout.cache_buckets = (128, 256, 384, 512, 640, 768)
  rollout.extend_buckets = (16, 32, 64)  # tokens per prefill piece
  rollout.extend_rows = 4  # pieces per prefill step
  rollout.refill_below = 0.5  # refill once this share of slots still runs
  # Tokens that other rows of an engine sample while tools run; 0: tools first.
  # It pays only where tools take longer than that many steps
  # (experiments/README.md).
  rollout.overlap_tokens = 0
  rollout.max_message_tokens = 96  # per assistant message
  rollout.thinking = False  # Qwen3 only: thinks before it answers
  rollout.max_rounds = 5  # tool rounds and parse errors per turn
  rollout.max_result_tokens = 48  # a longer tool result is cut, visibly
  rollout.call_timeout_s = 1.0  # per tool call
  rollout.max_result_chars = 20_000  # per tool call
  rollout.env_workers = 0  # processes for the environments; 0: in this one


def _updates(c: ml_collections.ConfigDict) -> None:
  """GRPO."""
  # The update. The paper's learning rate is 1e-6, for four billion parameters.
  c.grpo = grpo = ml_collections.ConfigDict()
  grpo.learning_rate = 1e-4
  grpo.warmup_steps = 4
  grpo.minibatch_groups = 8  # groups per optimizer step
  grpo.clip_low = 0.2  # ratios below 1 - clip_low give no more gradient
  grpo.clip_high = 0.28  # nor those above 1 + clip_high
  grpo.dual_clip = 10.0  # largest ratio for negative advantages; 0: none
  # k3 estimator against the initial policy. The paper has 0.01; it would cost
  # a fourth forward pass, and a fifth of the steps in ten minutes.
  grpo.kl_coef = 0.0
  grpo.entropy_coef = 0.001  # entropy bonus
  grpo.aggregation = 'token_mean'  # or 'sequence_mean'
  grpo.normalize_advantage = True  # divide by the group's deviation
  grpo.skip_flat_groups = True  # rows without advantage are not computed
  grpo.mask_overlong = False  # True: MAX_TOKENS rows give no gradient
  grpo.grad_clip = 1.0  # largest global norm of the gradient
  grpo.weight_decay = 0.0
  grpo.microbatch_rows = 4  # rows per forward and backward pass
  grpo.length_buckets = (256, 384, 512, 768)  # rows are padded to these
  grpo.logprob_chunk = 0  # targets of a row with logits at once; 0: all
  grpo.max_nonfinite = 3  # skipped updates in a row before the run fails


def _pool(c: ml_collections.ConfigDict) -> None:
  """The boundary, and the tasks in play."""
  # The capability boundary, in mean progress reward of a group.
  c.boundary = boundary = ml_collections.ConfigDict()
  boundary.hard_below = 0.20
  boundary.mastered_above = 0.85

  # The active pool.
  c.pool = pool = ml_collections.ConfigDict()
  pool.max_generated = 64  # P_max; the paper's 400 go with 400 seeds
  pool.inject_fraction = 0.20  # of the pool's size, per epoch
  pool.retire_above = 0.95  # mean progress of a generated task
  pool.retire_below = 0.20
  pool.retire_human = False  # whether human tasks retire too
  pool.cooldown_epochs = 1  # epochs a seed rests after it was used


def _synthesis(c: ml_collections.ConfigDict) -> None:
  """Where new tasks come from."""
  c.synthesis = synthesis = ml_collections.ConfigDict()
  synthesis.enabled = True  # False: the static pool
  synthesis.attempts = 3  # candidates per variant
  synthesis.timeout_s = 120.0  # then the main process makes the variants
  # 'compose' makes new chains of calls with a seed's structure; 'exchange' only
  # changes the seed's values (as warm starts and evaluations do in any case).
  synthesis.planner = 'compose'
  # Of an exchange variant from its seed, up to 1; composed tasks have 0.
  synthesis.max_profile_distance = 0.0
  # Of a composed task: edit distance of the classes of its calls to its seed's,
  # up to 1; turns that need an earlier one, as a share of the seed's;
  # distance of words and calls to the tasks of the pool, or waiting for it, and
  # to those made together with it (quality.Nearest). Retired ones only may not
  # come again as they were.
  synthesis.max_class_distance = 0.0
  synthesis.min_cross_turn = 0.5
  synthesis.min_novelty = 0.5
  # Who plans, words and judges composed tasks: 'programmatic', or 'openai' for
  # a language model behind any OpenAI-compatible server.
  synthesis.language = 'programmatic'
  # That server. Its key, if it has one, is the environment's OPENAI_API_KEY.
  synthesis.llm = llm = ml_collections.ConfigDict()
  llm.base_url = 'http://localhost:8000/v1'  # of vLLM; llama.cpp has 8080
  llm.model = 'Qwen/Qwen3-32B'  # the paper's, by the name that the server knows
  llm.temperature = 1.0
  llm.top_p = 0.7
  llm.max_tokens = 4096  # of an answer, thoughts included
  llm.json_mode = True  # asks for JSON; False where the server cannot
  llm.concurrency = 8  # tasks in work, so requests at once
  llm.timeout_s = 120.0  # for a whole answer
  llm.max_retries = 4  # of a request that was refused, 429, 5xx or too slow
  llm.backoff_s = 1.0  # before the first retry; then it doubles
  llm.prompt_price = 0.0  # of a million tokens that are read, in any currency
  llm.completion_price = 0.0  # of a million that are written
  llm.cache = 'workdirs/llm_cache'  # folder of answers; '' keeps none


def _schedule(c: ml_collections.ConfigDict) -> None:
  """Length of the run, and its evaluations."""
  c.train = train = ml_collections.ConfigDict()
  train.num_epochs = 5  # passes over the pool as it then is
  train.checkpoint_every_epochs = 1
  train.keep_checkpoints = 2

  c.eval = evaluate = ml_collections.ConfigDict()
  evaluate.num_variants = 128  # held-out variants of the pool's scenarios
  evaluate.num_heldout = 64  # tasks of held-out scenarios
  evaluate.before = True  # also before the first update
  evaluate.temperature = 0.0  # 0: greedy; else sampled, with rollout.top_*


def _smoke(c: ml_collections.ConfigDict) -> None:
  c.data.num_seed_tasks = 20  # the first that have held-out variants
  c.rollout.group_size = 4
  c.rollout.groups_per_batch = 4
  c.grpo.minibatch_groups = 4
  c.pool.max_generated = 8
  c.train.num_epochs = 2
  c.eval.num_variants = 8
  c.eval.num_heldout = 8


def _pretrained(c: ml_collections.ConfigDict) -> None:
  """A model of billions of parameters on a TPU slice; the paper's numbers.

  Shapes and layouts, checked by `python -m experiments.aot`. The parameters
  are random unless config.model.init_from names a Hugging Face folder.
  """
  c.data.num_seed_tasks = 0
  c.data.max_task_tokens = 16_384
  c.data.max_message_tokens = 1024
  c.model.update(
      previous_token=False, dtype='bfloat16', remat='attention',
      scan_layers=True, head_dim=128, init_from='random',
  )
  c.mesh.update(data=1, fsdp=4, tensor=4)  # 16 chips
  c.rollout.update(
      group_size=16, groups_per_batch=32, num_slots=32,
      cache_buckets=(4096, 8192, 16_384), extend_buckets=(256, 1024),
      extend_rows=4, max_message_tokens=1024, max_rounds=20,
      max_result_tokens=2048,
  )
  c.grpo.update(
      learning_rate=1e-6, warmup_steps=10, minibatch_groups=32,  # 512 rows
      clip_high=0.2, kl_coef=0.01, entropy_coef=0.001, microbatch_rows=4,
      length_buckets=(16_384,), logprob_chunk=512,
  )
  c.pool.max_generated = 400


def _qwen3_4b(c: ml_collections.ConfigDict) -> None:
  _pretrained(c)
  c.model.update(
      d_model=2560, num_layers=36, num_heads=32, num_kv_heads=8, mlp_dim=9728,
  )


def _qwen25_7b(c: ml_collections.ConfigDict) -> None:
  _pretrained(c)
  c.model.update(
      d_model=3584, num_layers=28, num_heads=28, num_kv_heads=4,
      mlp_dim=18_944, qk_norm=False, qkv_bias=True, tie_embeddings=False,
  )


def _llama31_8b(c: ml_collections.ConfigDict) -> None:
  _pretrained(c)
  c.model.update(
      d_model=4096, num_layers=32, num_heads=32, num_kv_heads=8,
      mlp_dim=14_336, qk_norm=False, tie_embeddings=False, rope_theta=5e5,
      rms_eps=1e-5,
  )


VARIANTS = {
    'default': lambda c: None,
    'smoke': _smoke,
    'qwen3_4b': _qwen3_4b,
    'qwen25_7b': _qwen25_7b,
    'llama31_8b': _llama31_8b,
}
