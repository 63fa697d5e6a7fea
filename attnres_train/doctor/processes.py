"""Processes of this machine that measure, one a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from attnres_train.errors import Problem, Refused
from attnres_train.words import counted

SPEED_SECONDS = 120


def run_processes(module: str, ranks: int, argument: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What rank 0 of `ranks` processes of `module` prints as JSON; each gets its rank, their number, a file to meet at
    and `argument` as JSON.

    Raises Refused, with the reason, if one fails or all take longer than SPEED_SECONDS.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | os.environ
        words = [sys.executable, "-W", "ignore", "-m", module]
        more = [] if argument is None else [json.dumps(argument)]
        processes = [
            subprocess.Popen([*words, str(rank), str(ranks), f"{folder}/meet", *more], env=environment, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            said = [process.communicate(timeout=SPEED_SECONDS) for process in processes]
        except subprocess.TimeoutExpired:
            what = f"{counted(ranks, 'rank')} on this machine did not finish the speed test in {SPEED_SECONDS} s"
            raise Refused(Problem("links", what, "is the machine overloaded, or the loopback closed?")) from None
        finally:
            for process in processes:
                process.kill()
        for rank, process in enumerate(processes):
            if process.returncode != 0:
                reason = (said[rank][1].strip().splitlines() or ["no words"])[-1]
                raise Refused(Problem("links", f"rank {rank} of the speed test failed: {reason}", "mend that first"))
        found: dict[str, Any] = json.loads(said[0][0])
        return found
