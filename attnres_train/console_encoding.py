"""Output that never ends a job: what stdout or stderr have no letter for is printed as its code."""

from __future__ import annotations

import io
import os
import sys


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
