"""Every way in prints any text on a stdout that is ASCII, as in the C locale and many a job's log."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnres_train.console_encoding import quietly
from attnres_train.launch import start
from data_tools.command import Tool

NAME = "Übung.toml"


def ascii_stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii")


def a_command() -> int:
    print(NAME)
    return 0


def a_launch() -> int:
    return start.main(["torchrun", "--ranks", "1", "--dry-run", "--", NAME])


def a_data_tool(*options: str) -> int:
    return Tool("test", "", lambda parser: None, lambda _: {"file": NAME, "odd": "\udcff"})(options)


@pytest.mark.parametrize("way_in", [lambda: quietly(a_command), a_launch, a_data_tool])
def test_what_stdout_has_no_letter_for_is_printed_as_its_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way_in: Callable[[], int]
) -> None:
    stream = ascii_stream()
    monkeypatch.setattr(sys, "stdout", stream)
    assert way_in() == 0
    stream.flush()
    assert rb"\xdcbung.toml" in stream.buffer.getvalue()


def test_a_report_in_json_parses_on_any_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ascii_stream()
    monkeypatch.setattr(sys, "stdout", stream)
    assert a_data_tool("--json") == 0
    assert json.loads(stream.buffer.getvalue()) == {"file": NAME, "odd": "\udcff"}


def test_a_report_that_cannot_be_printed_does_not_undo_the_work(capfd: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w") as full, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert a_data_tool() == 0
    assert "the report cannot be printed: [Errno 28]" in capfd.readouterr().err
