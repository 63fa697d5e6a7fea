"""Output that never ends a job: what stdout or stderr have no letter for is printed as its code."""

from __future__ import annotations

import io
import sys


def print_every_character() -> None:
    """Let this process print any text, whatever encoding its streams were opened with.

    A file name or a text may hold what an ASCII or Latin-1 terminal, or a log opened in the C locale, cannot show: a
    `ü` is then printed as `\\xfc`, where Python would raise UnicodeEncodeError over work that is done.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # it is None where the descriptor was closed
            stream.reconfigure(errors="backslashreplace")
