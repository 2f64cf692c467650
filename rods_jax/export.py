"""--mode=export: the policy of a run as a folder that others can load."""

import pathlib

import ml_collections

from rods_jax import build
from rods_jax import errors
from rods_jax import exchange
from rods_jax import huggingface
from rods_jax import pretrained
from rods_jax import run
from rods_jax import workdir as workdir_lib

FOLDER = 'exported'  # in the run's own; one folder in it per step


def export_run(
    config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> int:
  """Writes the newest checkpoint to WORKDIR/exported/STEP; prints where.

  The mesh may differ from the run's, if grpo.microbatch_rows divides by it: one
  host can export what a slice trained.

  Args:
    config: of a run that began from a Hugging Face folder.
    workdir: of that run.

  Returns:
    The exit status.

  Raises:
    UserError: no checkpoint, no Hugging Face folder to take tokenizer and
      config.json from, the step was exported already, or it can't be written.
  """
  source = pretrained.folder(config)
  if source is None:
    raise errors.UserError(
        '--mode=export needs the Hugging Face folder that the run began from '
        '(config.model.init_from); the small policy is of no family that '
        'transformers knows, its checkpoints are read by Orbax.'
    )
  config = pretrained.resolve(config)
  run.begin(config, workdir, 'export', may_differ='mesh')
  policy = build.build_policy(config)
  step, params = 0, None
  if (workdir / 'checkpoints').is_dir():  # or the initial policy is loaded
    step, params = run.latest_params(config, policy, workdir)
  if not step:
    raise errors.UserError(f'{workdir} holds no checkpoint to export.')
  out = workdir / FOLDER / str(step)
  with workdir_lib.writable(out):
    huggingface.export(out, params, policy.config, source)
  if exchange.is_first():
    print(f'Wrote {out}')
  return 0
