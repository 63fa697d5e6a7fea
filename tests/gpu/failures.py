"""Whole launches that fail, as the launch scripts' tests make them: a rank that is killed, and one that hangs."""

from __future__ import annotations

import subprocess
import sys

from tests.gpu.machine import Machine
from tests.gpu.section import Section, judged

HERE = "tests/end_to_end/test_failures.py"
CASES = {
    "rank 1 is killed": f"{HERE}::test_the_first_cause_is_told_last[torchrun, killed]",
    "rank 1 hangs": f"{HERE}::test_a_rank_that_does_not_come_is_named_with_its_stack[torchrun]",
    "rank 1 is killed, under DeepSpeed's launcher": f"{HERE}::test_the_first_cause_is_told_last[deepspeed, killed]",
}


def run(machine: Machine) -> Section:
    if machine.gpus < 2:
        return Section("Failures", "not run", "needs two GPUs")
    rows, notes = [], []
    for name, test in machine.some(list(CASES.items())):
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", test], capture_output=True, text=True)
        rows.append({"case": name, "ok": done.returncode == 0})
        if done.returncode:
            notes += done.stdout.splitlines()[-30:]
    return judged("Failures", "The launch ends soon, with the rank that is at fault named and its reason.", rows, notes)
