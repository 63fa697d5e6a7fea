"""The benchmarks run, small, and print what outside checks read."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.end_to_end.conftest import ROOT

SMALL_STEP = "--layers 2 --width 64 --sequence 32 --batch 1 --blocks 2 --rounds 1"
SMALL_WIRE = "--virtual 2 --layers 4 --width 32 --sequence 16 --batch 1 --micro-batches 2 --blocks 4 --steps 2"


@pytest.mark.parametrize(
    ("command", "cases"),
    [
        ("aggregate --rounds 1 --rows 32 --width 32 --sources 3", {"native", "lean", "reference", "stack and einsum"}),
        (f"step {SMALL_STEP}", {"standard", "block", "full"}),
        (f"observe {SMALL_STEP}", {"standard", "block", "full"}),
    ],
)
def test_a_benchmark_prints_one_json_object_of_rows(command: str, cases: set[str]) -> None:
    rows = rows_of(command)
    assert cases <= {row["case"] for row in rows}
    assert all(row["ratio"] > 0 for row in rows)


@pytest.mark.slow
def test_the_wire_benchmark_sends_what_the_plan_says() -> None:
    rows = rows_of(f"wire --rates loopback {SMALL_WIRE}")
    assert {"standard", "whole prefix", "cached", "cached, not eager", "cached, exact gradients"} <= {
        row["case"] for row in rows
    }
    for row in rows:
        assert row["bytes_sent"] == row["bytes_plan"] > 0, row["case"]
        assert row["ratio"] > 0


def rows_of(command: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", *f"tests.bench.{command} --json".split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["rows"]
    return rows
