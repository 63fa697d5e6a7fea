"""Work in a process of its own: its result, its errors, its end."""

from __future__ import annotations

import os
import signal
import time

import pytest

from attnres_train.errors import Refused, refuse
from attnres_train.tokenizer.apart import Apart


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def refusing() -> None:
    raise refuse("text", "will not do", "give another")


def failing() -> None:
    raise ZeroDivisionError("here")


def test_the_result_and_the_errors_come_back() -> None:
    with Apart(lambda: b"x" * 1_000_000) as work:
        assert work.result() == b"x" * 1_000_000
    with Apart(refusing) as work, pytest.raises(Refused, match="text: will not do\n    -> give another"):
        work.result()
    with Apart(failing) as work, pytest.raises(RuntimeError, match="ZeroDivisionError: here"):
        work.result()
    with (
        Apart(lambda: os.kill(os.getpid(), signal.SIGKILL)) as work,
        pytest.raises(Refused, match="killed by signal 9"),
    ):
        work.result()


def test_it_ends_with_the_block_and_tells_that_it_goes_on_until_then() -> None:
    told: list[float] = []

    def tell() -> None:
        told.append(time.monotonic())
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Apart(lambda: time.sleep(60)) as work:
        process = work._process.pid
        assert process is not None and is_running(process)
        work.result(tell)
    assert len(told) == 2 and not is_running(process)
