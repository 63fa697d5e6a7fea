"""The command for machines with GPUs (tests/gpu.sh), as far as it can be held without one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import unittest
from pathlib import Path

import pytest
import torch

from tests.distributed import ranks
from tests.distributed.training import Trained
from tests.gpu import layouts, run
from tests.gpu.machine import Machine
from tests.gpu.never import NEVER_RUN
from tests.gpu.page import page
from tests.gpu.section import Section, judged

ROOT = Path(__file__).resolve().parents[2]


def trained(loss: float = 2.0, gradient: float = 1.0) -> Trained:
    return Trained([loss], [1.0], {"fine": torch.ones(3), "worst": torch.full((3,), gradient)}, {}, [0])


def test_the_largest_error_of_all_cases_decides_and_what_is_no_number_fails() -> None:
    reference = [trained(), trained()]
    errors = layouts._errors([trained(), trained(gradient=1.5)], reference, 0.4)
    assert (errors["gradient"], errors["of"], errors["ok"]) == (pytest.approx(0.5), "worst", False)
    assert layouts._errors([trained(), trained(gradient=1.5)], reference, 0.6)["ok"]
    assert not layouts._errors([trained(loss=math.nan), trained()], reference, 1e9)["ok"]
    for order in (1, -1):
        bad = layouts._errors([trained(gradient=math.nan), trained()][::order], reference, 1e9)
        assert (bad["of"], bad["ok"]) == ("worst", False)


def test_a_section_passes_only_if_it_has_rows_that_are_right() -> None:
    assert judged("Kernels", "", []).verdict == "failed"
    assert judged("Kernels", "", [{"ok": True}, {"ratio": 1.0}]).verdict == "passed"
    assert judged("Kernels", "", [{"ok": True}, {"ok": False}]).verdict == "failed"


def test_the_page_has_every_section_and_says_first_what_never_ran() -> None:
    sections = [
        judged("Layouts", "Against one rank.", [{"layout": "a | b", "ok": False}]),
        Section("Device", "measured", "x"),
    ]
    text = page({"GPUs": "2"}, NEVER_RUN, sections)
    assert text.index(NEVER_RUN[0]) < text.index("| GPUs | 2 |") < text.index("## Layouts: failed")
    assert "| a \\| b | **no** |" in text and "## Device: measured" in text


@pytest.fixture
def slow_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections print a word and then take long, or end without a result."""
    command = [sys.executable, "-c", "print('began', flush=True); import time, sys; time.sleep(float(sys.argv[1]))"]
    started = subprocess.Popen

    def stand_in(arguments: list[str], **settings: object) -> object:
        return started([*command, "60" if "memory" in arguments else "0"], **settings)  # type: ignore[call-overload]

    monkeypatch.setattr(run.subprocess, "Popen", stand_in)


@pytest.mark.usefixtures("slow_section")
def test_a_section_that_hangs_or_ends_without_a_result_fails_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.LIMIT_SECONDS, "memory", 1)
    monkeypatch.setattr(run, "LEAST_SECONDS", 0.5)
    machine, began = Machine(2, tmp_path, pretend=True), time.monotonic()
    hung = run._in_time("memory", machine, time.monotonic() + 60)
    assert hung.verdict == "failed" and list(hung.notes) == ["began"] and 1 <= time.monotonic() - began < 30
    assert run._in_time("layouts", machine, time.monotonic() + 60).verdict == "failed"
    assert run._in_time("layouts", machine, time.monotonic() + 0.4).verdict == "not run"


def test_an_old_result_is_not_taken_for_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(2, tmp_path, pretend=True)
    run._file(machine, "kernels").write_text(json.dumps({"title": "Kernels", "verdict": "passed", "said": ""}))
    monkeypatch.setattr(run.sys, "executable", "/bin/false")
    assert run._in_time("kernels", machine, time.monotonic() + 60).verdict == "failed"


def test_a_test_of_more_ranks_than_there_are_gpus_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks.Meeting, "most_ranks", 1)
    with pytest.raises(unittest.SkipTest, match="2 ranks, and room for 1"):
        ranks.run_ranks(int, 2)
    assert ranks.run_ranks(int, 1) == [0]


def run_the_script(folder: Path, *arguments: str) -> list[Section]:
    command = [ROOT / "tests/gpu.sh", "--pretend", "--brief", "--folder", folder, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "never run on a GPU before" in done.stdout
    found = json.loads((folder / "page.json").read_text())
    assert (folder / "page.md").read_text().startswith("# attnres_train on GPUs")
    return [Section(**section) for section in found["sections"]]


def test_the_script_ends_with_a_page(tmp_path: Path) -> None:
    (section,) = run_the_script(tmp_path, "--only", "profile")
    assert section.verdict == "measured" and section.rows


@pytest.mark.slow
def test_every_section_runs_under_the_rules_of_nccl(tmp_path: Path) -> None:
    sections = run_the_script(tmp_path)
    assert len(sections) == len(run.LIMIT_SECONDS)
    assert all(section.verdict in ("passed", "measured") for section in sections)
