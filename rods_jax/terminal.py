"""What a run shows on the terminal: a progress bar and the final table."""

import io
import math
import sys
import time
from typing import Any, Sequence, TextIO

import tqdm


class Nowhere(io.TextIOBase):
  """A stream that keeps nothing of what it is given."""

  def write(self, text: str) -> int:
    return len(text)


class ProgressBar:
  """Step, epoch, reward and time left on a terminal.

  Where the stream is no terminal it writes one line at the end of an epoch.
  """

  def __init__(
      self,
      total_steps: int,
      num_epochs: int,
      *,
      initial_step: int = 0,
      stream: TextIO | None = None,
  ):
    self._stream = sys.stderr if stream is None else stream
    self._num_epochs = num_epochs
    self._reward = 'n/a'
    self._is_terminal = self._stream.isatty()
    self._bar = tqdm.tqdm(
        total=total_steps,
        initial=initial_step,
        file=self._stream,
        disable=not self._is_terminal,
        dynamic_ncols=True,
        bar_format=(
            '{desc} {percentage:3.0f}%|{bar}| step {n_fmt}/{total_fmt} '
            '[{elapsed}, {remaining} left{postfix}]'
        ),
    )
    self._step = self._initial = initial_step
    self._total = total_steps
    self._start = time.monotonic()

  def update(self, step: int, epoch: int, reward: float | None) -> None:
    """Shows that `step` steps are done; epochs count from 0."""
    if reward is not None and math.isfinite(reward):
      self._reward = f'{reward:.3f}'
    self._bar.set_description_str(
        self._epoch_text(epoch), refresh=False
    )
    self._bar.set_postfix_str(f'reward {self._reward}', refresh=False)
    self._bar.update(step - self._step)
    self._bar.refresh()
    self._step = step

  def expect(self, total_steps: int) -> None:
    """Corrects the number of steps, as the pool grows and shrinks."""
    self._total = self._bar.total = total_steps

  def end_epoch(self, epoch: int) -> None:
    """Writes the epoch's line where there is no terminal."""
    if self._is_terminal:
      return
    elapsed = time.monotonic() - self._start
    done = self._step - self._initial
    left = elapsed / done * (self._total - self._step) if done else None
    self._stream.write(
        f'{self._epoch_text(epoch)}, step {self._step}/{self._total}, reward '
        f'{self._reward}, {format_seconds(elapsed)} elapsed, '
        f'{format_seconds(left)} left\n'
    )
    self._stream.flush()

  def close(self) -> None:
    self._bar.close()

  def __enter__(self) -> 'ProgressBar':
    return self

  def __exit__(self, *unused_exception: Any) -> None:
    self.close()

  def _epoch_text(self, epoch: int) -> str:
    return f'epoch {epoch + 1}/{self._num_epochs}'


def format_seconds(seconds: float | None) -> str:
  """Such as '8 s', '3 min 20 s' or '2 h 05 min'; 'n/a' for None."""
  if seconds is None or not math.isfinite(seconds):
    return 'n/a'
  if seconds < 9.95:
    return f'{seconds:.1f} s'
  whole = round(seconds)
  if whole < 60:
    return f'{whole} s'
  if whole < 3600:
    return f'{whole // 60} min {whole % 60:02d} s'
  return f'{whole // 3600} h {whole % 3600 // 60:02d} min'


def summary_table(rows: Sequence[Sequence[Any]]) -> str:
  """Aligned plain text; the first row is the header.

  Columns whose cells below the header are all numbers or None are flushed
  right; floats get three decimals, None is shown as '-'.

  Raises:
    ValueError: the rows differ in length.
  """
  if len({len(row) for row in rows}) > 1:
    raise ValueError('all rows of a summary table need the same length.')
  columns = [_column(cells) for cells in zip(*rows)]
  lines = ['  '.join(cells).rstrip() for cells in zip(*columns)]
  if lines:
    rule = '  '.join('-' * len(column[0]) for column in columns)
    lines.insert(1, rule)
  return '\n'.join(lines)


def _column(cells: Sequence[Any]) -> list[str]:
  """One column's cells, all of one width."""
  numeric = all(
      cell is None or isinstance(cell, (int, float)) for cell in cells[1:]
  )
  texts = [_cell(cell) for cell in cells]
  width = max(len(text) for text in texts)
  return [t.rjust(width) if numeric else t.ljust(width) for t in texts]


def _cell(value: Any) -> str:
  if value is None:
    return '-'
  if isinstance(value, float):
    return f'{value:.3f}' if math.isfinite(value) else '-'
  return str(value)
