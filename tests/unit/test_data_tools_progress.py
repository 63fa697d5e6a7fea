"""Progress where stderr is no terminal: a line now and then."""

from __future__ import annotations

import pytest

from data_tools import progress as module
from data_tools.progress import progress, waiting


def test_a_line_now_and_then_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with progress("read", 400_000_000) as tell:
        for done in range(1, 5):
            tell(done * 31_000_000, 0)
    assert capsys.readouterr().err == ("read: 15.5%, 2.0 MB/s, 3 min left\nread: 31.0%, 2.0 MB/s, 2 min left\n")


def test_work_whose_end_is_not_known_tells_its_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 90.0, 100.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with waiting("train") as tell:
        for _ in range(3):
            tell()
    assert capsys.readouterr().err == "train: 1.5 min so far\n"
