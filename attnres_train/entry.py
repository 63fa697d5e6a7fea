"""Where `attnres` begins, and how it ends without a traceback where it is interrupted or nobody listens any more."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from attnres_train.console_encoding import print_every_character

INTERRUPTED = 128 + signal.SIGINT
NOBODY_LISTENS = 128 + signal.SIGPIPE
"""As a shell has it for a process that ended by a signal."""


def main() -> int:
    """The console command: what it imports takes long enough to be interrupted, too."""

    def command() -> int:
        from attnres_train.cli.run import main as run

        return run()

    return quietly(command)


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


if __name__ == "__main__":
    sys.exit(main())
