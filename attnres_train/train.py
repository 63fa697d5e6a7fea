"""What every rank runs: `torchrun ... -m attnres_train.train CONFIG.toml [--section.key value ...]`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from attnres_train.errors import ExitCode, Refused, refuse
from attnres_train.trainer.signals import StopRequest

log = logging.getLogger(__name__)

LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
"""What gloo and NCCL say when the other end of a connection is gone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the configuration says and return the exit code."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    stop = StopRequest(partial(_give_up, rank))
    stop.listen()
    code = train(sys.argv[1:] if arguments is None else arguments, rank, world_size, stop)
    _leave_code(code, rank)
    return code


def train(arguments: Sequence[str], rank: int, world_size: int, stop: StopRequest) -> ExitCode:
    """Check, open, train. What can be refused is refused before any rank computes."""
    # Only now, when signals are answered: these take a while.
    from attnres_train.checkpoint.folder import candidates
    from attnres_train.config.load import load_checked
    from attnres_train.config.resolve import run_folder
    from attnres_train.corpora import open_corpora
    from attnres_train.observe.console import start_logging

    folder: Path | None = None
    try:
        path, overrides = _arguments(arguments)
        loaded = load_checked(path, overrides, world_size)
        corpora = open_corpora(loaded.config)
        folder = run_folder(loaded.config, path)
        candidates(loaded.config.checkpoint.resume, folder)  # refuses early; all ranks verify and choose later
        start_logging(folder, rank)
        # Only now: importing torch and megatron-core takes seconds, and their warnings belong in the log.
        from attnres_train.trainer.run import run

        return run(loaded, folder, corpora, stop)
    except Refused as refusal:
        if rank == 0:
            print(f"refused:\n{refusal}", file=sys.stderr)
        return ExitCode.REFUSED
    except Exception as error:
        log.exception("rank %d failed", rank)
        print(_failure(error, rank, folder), file=sys.stderr)
        return ExitCode.FAILED


def _leave_code(code: ExitCode, rank: int) -> None:
    """Launchers turn every code but 0 into 1, so rank 0 also leaves its code for the launch scripts."""
    if rank == 0:
        _leave(str(int(code)))


def _give_up(rank: int) -> None:
    """A stop signal before the first step: end at once, whatever the main thread waits for.

    Launchers end all ranks by this signal if one of them dies; it was a stop only if every rank says so.
    """
    _leave(f"stopped rank {rank}")
    if rank == 0:
        print("stopped on a signal before the first step: nothing was trained, nothing saved", flush=True)
    os._exit(ExitCode.STOPPED_ON_SIGNAL)


def _leave(line: str) -> None:
    """Add `line` to the file that the launch scripts name by the environment variable ATTNRES_EXIT_CODE_FILE."""
    if "ATTNRES_EXIT_CODE_FILE" in os.environ:
        with open(os.environ["ATTNRES_EXIT_CODE_FILE"], "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _failure(error: Exception, rank: int, folder: Path | None) -> str:
    """The failure in words. A connection that broke is the consequence of another rank's end, never the cause."""
    if any(words in str(error) for words in LOST_PEER):
        return f"rank {rank} ended because another rank did; the cause is in that rank's last lines or log"
    from attnres_train.observe.console import log_file

    where = f"\n  log: {log_file(folder, rank)}" if folder else ""
    return f"rank {rank} failed: {type(error).__name__}: {error}{where}"


def _arguments(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    if not arguments or arguments[0].startswith("-"):
        usage = "give CONFIG.toml [--section.key value ...]"
        raise refuse("command line", "the configuration file comes first", usage)
    return arguments[0], arguments[1:]


if __name__ == "__main__":
    sys.exit(main())
