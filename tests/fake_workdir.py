"""Makes a working directory as a run of the main job leaves it, for tests.

  python -m tests.fake_workdir FOLDER

The numbers are drawn so that they hang together: groups of 8 rewards on a
4-turn task, zones by the default thresholds, a pool that takes in variants at
the start of an epoch and retires some at its end.
"""

import json
import pathlib
import sys

import numpy as np

NUM_EPOCHS, STEPS_PER_EPOCH, NUM_HUMAN = 5, 8, 64
CATEGORIES = ('base', 'miss_func', 'miss_param', 'long_context')
HOSTILE = '<script>alert("tool")</script><img src=x onerror=alert(1)>'


def make(folder: pathlib.Path | str, num_epochs: int = NUM_EPOCHS) -> None:
  """Writes all files of a finished run of `num_epochs` epochs."""
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  rng = np.random.default_rng(0)
  pool = _Pool(rng)
  rows = [{'step': 0, **_evaluation(0.0)}]
  trajectories = []
  for epoch in range(num_epochs):
    for i in range(STEPS_PER_EPOCH):
      rows.append(_step(rng, epoch, epoch * STEPS_PER_EPOCH + i + 1))
    trajectories += _trajectories(epoch, rows[-1]['step'])
    rows[-1].update(pool.close(epoch))
  rows.append({'step': rows[-1]['step'], **_evaluation(1.0)})
  write_lines(folder / 'metrics.jsonl', rows)
  write_lines(folder / 'pool.jsonl', pool.events)
  write_lines(folder / 'trajectories.jsonl', trajectories)
  config = {
      'rng_seed': 0,
      'boundary': {'hard_below': 0.2, 'mastered_above': 0.85},
      'train': {'num_epochs': NUM_EPOCHS},
  }
  (folder / 'config.json').write_text(json.dumps(config))
  (folder / 'eval.json').write_text(json.dumps(_evaluation_file(rows[-1])))


def write_lines(path: pathlib.Path, records) -> None:
  path.write_text(''.join(json.dumps(r) + '\n' for r in records))


def _evaluation(part: float) -> dict[str, float]:
  return {
      'eval/heldout_variants_progress': 0.31 + 0.16 * part,
      'eval/heldout_variants_accuracy': 0.09 + 0.12 * part,
      'eval/heldout_scenarios_progress': 0.22 + 0.05 * part,
      'eval/heldout_scenarios_accuracy': 0.05 - 0.01 * part,
  }


def _evaluation_file(row) -> dict:
  splits = {}
  for split, num_tasks in (('heldout_variants', 32), ('heldout_scenarios', 16)):
    categories = {
        name: {
            'progress': row[f'eval/{split}_progress'] + 0.05 * (1 - i),
            'accuracy': row[f'eval/{split}_accuracy'],
            'num_tasks': num_tasks,
        }
        for i, name in enumerate(CATEGORIES)
    }
    categories['all'] = {
        'progress': row[f'eval/{split}_progress'],
        'accuracy': row[f'eval/{split}_accuracy'],
        'num_tasks': 4 * num_tasks,
    }
    splits[split] = categories
  return {'step': row['step'], 'splits': splits}


def _step(rng, epoch: int, step: int) -> dict[str, float | int]:
  rollout, host, update = 6 + rng.random(), 0.4, 3 + rng.random()
  if step == 1:
    rollout += 14  # compilation
  return {
      'step': step,
      'train/epoch': epoch,
      'reward/mean': 0.3 + 0.004 * step + 0.06 * rng.standard_normal(),
      'reward/std_within_group': 0.2,
      'reward/flat_groups': int(rng.integers(0, 4)) / 8,
      'rollout/tokens': int(rng.integers(20_000, 30_000)),
      'rollout/tool_error_rate': 0.12 - 0.001 * step + 0.02 * rng.random(),
      'rollout/parse_error_rate': 0.05 - 0.001 * step + 0.005 * rng.random(),
      'rollout/status_DONE': 60 / 64,
      'rollout/status_MAX_ROUNDS': 3 / 64,
      'rollout/status_MAX_TOKENS': 1 / 64,
      'rollout/status_ENV_TIMEOUT': 0.0,
      'loss/total': 0.01 * rng.standard_normal(),
      'time/rollout': rollout,
      'time/host': host,
      'time/update': update,
      'time/total': rollout + host + update + 0.05,
      'time/host_share': host / (rollout + host + update + 0.05),
  }


class _Pool:
  """Keeps the events and the counts of a pool's life."""

  def __init__(self, rng):
    self.rng, self.events, self.active = rng, [], {}
    self.num_ids = 0
    for _ in range(NUM_HUMAN):
      self._add(0, 'human')

  def _add(self, epoch, origin):
    i = self.num_ids
    self.num_ids += 1
    name = 'syn_' if origin == 'generated' else 'multi_turn_base_'
    self.active[i] = origin
    self.events.append({
        'event': 'added', 'epoch': epoch, 'id': i, 'task_id': f'{name}{i}',
        'origin': origin, 'parent': None if origin == 'human' else 'x',
        'category': CATEGORIES[i % 4], 'scenario': i, 'hash': f'{i:016x}',
    })

  def close(self, epoch):
    """Visits all, retires some, injects the next; returns the row's part."""
    row = self._visit(epoch)
    generated = [i for i, o in self.active.items() if o == 'generated']
    retired = generated[: len(generated) // 4]
    for i in retired:
      del self.active[i]
      self.events.append({
          'event': 'retired', 'epoch': epoch, 'id': i, 'reason': 'mastered',
          'mean': 0.97,
      })
    num_new = 12 - epoch
    for _ in range(num_new):
      self._add(epoch + 1, 'generated')
    return {
        **row, 'pool/size': len(self.active),
        'pool/generated': self._num_generated(),
        'pool/injected': num_new, 'pool/retired': len(retired),
    }

  def _num_generated(self):
    return sum(o == 'generated' for o in self.active.values())

  def _visit(self, epoch):
    variances = {'hard': [], 'boundary': [], 'mastered': []}
    for i in self.active:
      chance = np.clip((i * 37 % 100) / 80 - 0.1 + 0.06 * epoch, 0, 1)
      rewards = self.rng.binomial(4, chance, 8) / 4
      mean, variance = float(rewards.mean()), float(rewards.var())
      zone = 'hard' if mean < 0.2 else 'boundary'
      zone = 'mastered' if mean > 0.85 else zone
      variances[zone].append(variance)
      self.events.append({
          'event': 'visit', 'epoch': epoch, 'id': i, 'count': 8, 'mean': mean,
          'variance': variance, 'zone': zone,
      })
    row = {f'boundary/{z}': len(v) for z, v in variances.items()}
    for zone, values in variances.items():
      mean = sum(values) / len(values) if values else None
      row[f'boundary/variance_{zone}'] = mean
    for stage, rate in (('substitute', 0.7), ('augment', 0.5),
                        ('critique', 0.9)):
      attempts = 24 + epoch
      accepted = round(rate * attempts)
      row[f'synthesis/{stage}_attempts'] = attempts
      row[f'synthesis/{stage}_accepted'] = accepted
      row[f'synthesis/{stage}_rejected'] = attempts - accepted
    return row


def _trajectories(epoch: int, step: int) -> list[dict]:
  """A right, a partly right and a wrong one."""
  return [
      _trajectory(epoch, step, i, scores)
      for i, scores in enumerate(((1, 1, 1), (1, 0, 1), (0, 0, 0)))
  ]


def _trajectory(epoch, step, sample, scores) -> dict:
  reasons = {1: '', 0: "state of GorillaFileSystem differs: root.workspace"}
  events = [(0, 'system', 'Classes: GorillaFileSystem, TwitterAPI')]
  for turn in range(len(scores)):
    events += [
        (turn, 'user', f'Move the report of {2020 + turn} from "drafts" into '
         'the "final" folder, then tell me how many lines it has.'),
        (turn, 'assistant', "cd(folder='workspace')\n"
         f"mv(source='report_{2020 + turn}.txt', destination='final')\n"
         f"wc(file_name='report_{2020 + turn}.txt', mode='l')"),
        (turn, 'tool', '{"current_working_directory": "workspace"}'),
        (turn, 'tool', '{"error": "mv: no such file"}'),
        (turn, 'tool', HOSTILE if sample == 2 else
         '{"count": 128, "type": "lines", "path": "/' + 'long_name' * 14
         + '"}'),
        (turn, 'assistant', ''),
    ]
  return {
      'step': step, 'epoch': epoch,
      'task_id': f'multi_turn_base_{(27, 50, 0)[sample]}',
      'category': 'base', 'sample': sample,
      'progress': sum(scores) / len(scores),
      'status': 'DONE',
      'turn_scores': [{'score': s, 'reason': reasons[s]} for s in scores],
      'events': [
          {'turn': turn, 'role': role, 'text': text}
          for turn, role, text in events
      ],
  }


if __name__ == '__main__':
  make(sys.argv[1])
