"""What every rank runs: `torchrun ... -m attnres_train.train CONFIG.toml [--section.key value ...]`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial

from attnres_train.console_encoding import print_every_character
from attnres_train.errors import ExitCode, Refused, refuse
from attnres_train.launch.facts import has_gpu
from attnres_train.launch.gate import leave
from attnres_train.launch.interfaces import interfaces, refuse_wrong_interfaces
from attnres_train.launch.names import refuse_unknown_master
from attnres_train.launch.process import raise_file_limit
from attnres_train.launch.record import JOB, End, Record
from attnres_train.launch.twice import place
from attnres_train.observe.presence import Presence
from attnres_train.trainer.signals import StopRequest
from attnres_train.words import counted

log = logging.getLogger(__name__)

LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "failed to recv",
    "Connection was likely closed",
)
"""What gloo, NCCL and the store say when the other end of a connection is gone."""

_SECONDS_BEHIND_THE_CAUSE = 1.5
"""How long a rank that lost another stays: DeepSpeed's launcher looks once a second, and tells of the first rank alone
that it finds ended, by which signal."""

TIMED_OUT = ("Timed out", "timed out", "Timeout", "timeout")
"""What they say when it does not answer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the configuration says and return the exit code."""
    print_every_character()
    raise_file_limit()
    try:
        rank, world_size = place(os.environ, has_gpu())
        refuse_wrong_interfaces(os.environ, interfaces())
        refuse_unknown_master(os.environ)
    except Refused as refusal:
        print(f"refused:\n{refusal}", file=sys.stderr)
        return ExitCode.REFUSED
    presence = Presence(rank, world_size, partial(os.kill, os.getpid(), signal.SIGTERM))
    stop = StopRequest(partial(_give_up, rank, presence))
    stop.listen()
    presence.begin()
    return train(sys.argv[1:] if arguments is None else arguments, rank, world_size, stop, presence)


def train(arguments: Sequence[str], rank: int, world_size: int, stop: StopRequest, presence: Presence) -> ExitCode:
    """Check, open, train. What can be refused is refused before any rank computes."""
    # Only now, when signals are answered: these take a while.
    from attnres_train.checkpoint.folder import candidates
    from attnres_train.config.load import load_checked
    from attnres_train.config.resolve import run_folder
    from attnres_train.corpora import open_corpora
    from attnres_train.observe.claim import refuse_in_use
    from attnres_train.observe.console import CONSOLE, log_file, start_logging
    from attnres_train.parallel.device import hide_gpus

    try:
        path, overrides = _arguments(arguments)
        loaded = load_checked(path, overrides, world_size)
        hide_gpus(loaded.config.parallel.device, os.environ)  # before torch is imported
        corpora = open_corpora(loaded.config)
        folder = run_folder(loaded.config, path)
        kept = loaded.config.checkpoint
        candidates(kept.resume, folder, kept.load)  # refuses early; all ranks verify and choose later
        refuse_in_use(folder)  # before this rank writes there; rank 0 locks it when all have come
        start_logging(folder, rank)
        presence.enter(log_file(folder, rank), loaded.config.parallel.timeout_seconds)
        # Only now: importing torch and megatron-core takes seconds, and their warnings belong in the log.
        where = f"loading torch and megatron-core on {counted(world_size, 'rank')}; logs in {folder}/logs"
        logging.getLogger(CONSOLE).info(where)
        from attnres_train.parallel.light_imports import light_imports

        with light_imports():
            from attnres_train.trainer.machine import prepare_machine
            from attnres_train.trainer.run import run

        prepare_machine(loaded.config, world_size)
        code = run(loaded, folder, corpora, stop, presence)
        presence.end("done" if code is ExitCode.DONE else "stopped")
        return code
    except Refused as refusal:
        if presence.record.step is not None:  # data that changed under the run, say: too late to be refused
            log.error("rank %d failed: %s", rank, refusal)
            presence.end("failed", str(refusal))
            print(_told(presence.record), file=sys.stderr)
            return ExitCode.FAILED
        presence.end("refused", str(refusal))
        if rank == 0 and JOB not in os.environ:  # a launch script says it at the end, behind the launcher's pages
            print(f"refused:\n{refusal}", file=sys.stderr)
        return ExitCode.REFUSED
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        log.exception("rank %d failed", rank)
        presence.end(*_failure(error, presence))
        print(_told(presence.record), file=sys.stderr)
        if presence.record.end == "lost":
            time.sleep(_SECONDS_BEHIND_THE_CAUSE)
        return ExitCode.FAILED


def _give_up(rank: int, presence: Presence) -> None:
    """A stop signal before the first step: end at once, whatever the main thread waits for.

    Launchers end all ranks by this signal if one of them dies; it was a stop only if every rank says so.
    """
    presence.end("stopped", "before the first step")
    if rank == 0:
        with contextlib.suppress(OSError):
            print("stopped on a signal before the first step: nothing was trained, nothing saved", flush=True)
    os._exit(ExitCode.STOPPED_ON_SIGNAL)


def _failure(error: BaseException, presence: Presence) -> tuple[End, str]:
    """What kind of failure it is, and the reason in words.

    A connection that broke, or a wait in vain, is the consequence of what another rank did.
    """
    text = f"{type(error).__name__}: {error}"
    if any(words in str(error) for words in LOST_PEER):
        return "lost", text
    of_torch = isinstance(error, RuntimeError | TimeoutError)  # torch's errors of this kind are RuntimeErrors
    if of_torch and any(words in str(error) for words in TIMED_OUT):
        return "timeout", presence.missing()
    if isinstance(error, SystemExit):
        return "failed", f"ended with code {error.code} before the run was done"
    return "failed", text


def _told(record: Record) -> str:
    """The failure of this rank in a line or two."""
    where = f"\n  log: {record.log}" if record.log else ""
    if record.end == "lost":
        return f"rank {record.rank} ended because another rank did; the cause is in that rank's last lines or log"
    return f"rank {record.rank} failed: {record.reason}{where}"


def _arguments(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    if arguments and arguments[0].startswith(("--local_rank=", "--local-rank=")):
        arguments = arguments[1:]  # DeepSpeed's launcher puts it there; LOCAL_RANK says the same
    if not arguments or arguments[0].startswith("-"):
        usage = "give CONFIG.toml [--section.key value ...]"
        raise refuse("command line", "the configuration file comes first", usage)
    return arguments[0], arguments[1:]


if __name__ == "__main__":
    leave(main())
