"""A launcher that imports while the configuration is still being checked, and begins when it is told to.

    python -m attnres_train.launch.gate WORDS_FILE MODULE [ARGUMENTS ...]

runs MODULE's `main` as `python -m MODULE ARGUMENTS` would, once a line comes by standard input; without one it ends.
What the launcher itself says (its log lines, its traceback when a rank fails or a signal comes) goes to WORDS_FILE: the
terminal is for the ranks, whose standard error stays as it is.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import NoReturn

from attnres_train.errors import ExitCode


def main(arguments: list[str]) -> NoReturn:
    """Import, wait, run; ends the process."""
    words, module, *rest = arguments
    # Before the import: torch's logging takes the stream that is there when it is imported.
    sys.stderr = open(words, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - as long as the process lives
    try:
        launcher = importlib.import_module(module)
    except Exception:
        traceback.print_exc()
        leave(ExitCode.FAILED)
    if not sys.stdin.buffer.readline():
        leave(ExitCode.REFUSED)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    sys.argv = [str(launcher.__file__), *rest]
    try:
        launcher.main()
    except SystemExit as ended:
        leave(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
    except BaseException:
        traceback.print_exc()
        leave(ExitCode.FAILED)
    leave(ExitCode.DONE)


def leave(code: int) -> NoReturn:
    """End this process at once: all is said and written, and to take torch apart takes longer than some runs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
