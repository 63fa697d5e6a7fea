"""Log files of every rank, and the plain lines that rank 0 prints."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path

from attnres_train.errors import refuse

CONSOLE = "attnres_train.console"


def log_file(run_folder: Path, rank: int) -> Path:
    return run_folder / "logs" / f"rank-{rank:04d}.log"


class Zoned(logging.Formatter):
    """Lines with their time and its offset from UTC: logs of ranks in several zones, or over a change of the clocks,
    can be laid beside each other."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "milliseconds")


class LogFile(WatchedFileHandler):
    """Goes on in a new file where the one that is written is taken away; what cannot be written is left out."""

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # of a file that cannot be opened again, which the library lets through
            self.handleError(record)


def start_logging(run_folder: Path, rank: int) -> None:
    """Send the log of this rank to its file; rank 0 also prints what is written to the console logger.

    Raises Refused where the run folder cannot be written.
    """
    path = log_file(run_folder, rank)
    try:
        to_file = LogFile(path, encoding="utf-8")
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}"
        raise refuse("training.run_folder", what, "choose another folder") from error
    # A disk that fills up must not bury the reason under one traceback a lost log line.
    logging.raiseExceptions = False
    to_file.setFormatter(Zoned())
    root = logging.getLogger()
    root.handlers[:] = [to_file]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    console = logging.getLogger(CONSOLE)
    console.handlers.clear()
    if rank == 0:
        to_console = logging.StreamHandler(sys.stdout)
        to_console.setFormatter(logging.Formatter("%(message)s"))
        console.addHandler(to_console)


class Remaining:
    """How long a run still takes, evaluations and checkpoints included, by the pace of one process from its first
    logged step on: what comes before warms up."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def seconds(self, now: float, step: int, steps: int, step_seconds: float) -> float:
        """From `now`, on a clock that only goes forward, when `step` of `steps` is logged.

        `step_seconds`: what a step took, to go by at the first one.
        """
        if self._first is None:
            self._first = step, now
        first_step, began = self._first
        pace = (now - began) / (step - first_step) if step > first_step else step_seconds
        return (steps - step) * pace


def step_line(step: int, steps: int, values: Mapping[str, float], seconds_left: float) -> str:
    """One line for a logged step."""
    width = len(str(steps))
    return (
        f"step {step:>{width}}/{steps}  loss {values['loss/train']:.4f}  "
        f"grad norm {values['optim/grad_norm']:.3f}  lr {values['optim/lr']:.3e}  "
        f"{values['throughput/tokens_per_second']:,.0f} tokens/s  {duration(seconds_left)} left"
    )


def validation_words(values: Mapping[str, float], name: str = "") -> str:
    """The validation loss, of all sets or of the one of this name, in the units it is known in."""
    ending = f"/{name}" if name else ""
    bits = values.get(f"loss/valid_bits_per_byte{ending}")
    words = f"{values[f'loss/valid{ending}']:.4f} nats a token"
    return words if bits is None else f"{words}, {bits:.4f} bits a byte"


def duration(seconds: float) -> str:
    """`seconds` as hours, minutes and seconds."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"
