"""How far the work is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_SECONDS = 30.0
"""Between two lines where stderr is no terminal; short work prints none."""

Tell = Callable[[int, int], None]
"""Told the bytes read and the tokens made so far, in total."""


@contextmanager
def progress(label: str, total_bytes: int) -> Iterator[Tell]:
    """Shows the way to `total_bytes` on stderr; gives the function that is told how far it is."""

    def words(read_bytes: int, tokens: int, seconds: float) -> str:
        left = (total_bytes - read_bytes) * seconds / read_bytes if read_bytes else None
        rest = "" if left is None else f", {max(0.0, left) / 60:.0f} min left"
        return f"{read_bytes / max(1, total_bytes):.1%}, {speed_words(read_bytes, tokens, seconds)}{rest}"

    if sys.stderr.isatty():
        with _bar(label, total_bytes) as tell:
            yield tell
    else:
        yield _lines(label, words)


@contextmanager
def waiting(label: str) -> Iterator[Callable[[], None]]:
    """Shows on stderr that work goes on whose end is not known; gives the function that is called now and then."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(label):
            yield lambda: None
    else:
        tell = _lines(label, lambda read_bytes, tokens, seconds: f"{seconds / 60:.1f} min so far")
        yield lambda: tell(0, 0)


@contextmanager
def _bar(label: str, total_bytes: int) -> Iterator[Tell]:
    # A library that only this needs.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    speed = TextColumn("{task.fields[speed]}")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), speed, TimeRemainingColumn())
    started = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total_bytes, speed="")

        def tell(read_bytes: int, tokens: int) -> None:
            speed = speed_words(read_bytes, tokens, time.monotonic() - started)
            bar.update(task, completed=read_bytes, speed=speed)

        yield tell


def _lines(label: str, words: Callable[[int, int, float], str]) -> Tell:
    """Prints `words` now and then: of what it is told and the seconds since the beginning."""
    started = last = time.monotonic()

    def tell(read_bytes: int, tokens: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_SECONDS:
            last = now
            print(f"{label}: {words(read_bytes, tokens, now - started)}", file=sys.stderr, flush=True)

    return tell


def speed_words(read_bytes: int, tokens: int, seconds: float) -> str:
    """What a second brought, for people: bytes as read from disk."""
    seconds = max(seconds, 1e-9)
    speed = f"{read_bytes / 1e6 / seconds:.1f} MB/s"
    return f"{speed}, {tokens / 1e6 / seconds:.2f} million tokens/s" if tokens else speed
