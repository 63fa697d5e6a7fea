"""The benchmarks run, small, and print what outside checks read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.end_to_end.conftest import ROOT

SMALL_STEP = "--layers 2 --width 64 --sequence 32 --batch 1 --blocks 2 --rounds 1"


@pytest.mark.parametrize(
    ("command", "cases"),
    [
        ("aggregate --rounds 1 --rows 32 --width 32 --sources 3", {"native", "lean", "reference", "stack and einsum"}),
        (f"step {SMALL_STEP}", {"standard", "block", "full"}),
        (
            "two_phase --rounds 1 --rows 32 --width 32 --queries 2",
            {"native, 2 queries", "two-phase (torch), 2 queries"},
        ),
    ],
)
def test_a_benchmark_prints_one_json_object_of_rows(command: str, cases: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", *f"tests.bench.{command} --json".split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert cases <= {row["case"] for row in rows}
    assert all(row["ratio"] > 0 for row in rows)
