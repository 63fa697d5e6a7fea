"""Output that never ends a job, and a command that ends without a traceback where nobody listens any more."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable

INTERRUPTED = 128 + signal.SIGINT
NOBODY_LISTENS = 128 + signal.SIGPIPE
"""As a shell has it for a process that ended by a signal."""


def print_every_character() -> None:
    """Let this process print any text, whatever encoding its streams were opened with, or whether at all.

    A file name or a text may hold what an ASCII or Latin-1 terminal, or a log opened in the C locale, cannot show: a
    `ü` is then printed as `\\xfc`, where Python would raise UnicodeEncodeError over work that is done. Where a
    descriptor was closed, Python has no stream, and what is printed goes nowhere.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process lives
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def quietly(command: Callable[[], int]) -> int:
    """The exit status of `command`; that of a signal where Ctrl-C or the end of a reader (`| head`) ended it."""
    print_every_character()
    try:
        try:
            code = command()
        except SystemExit:  # of help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("attnres: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more when it ends, and that must not fail.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return NOBODY_LISTENS
