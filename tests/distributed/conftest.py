"""With `--nccl-rules` every process group of these tests keeps the rules of NCCL (tests/nccl_rules.py); with `--nccl`
their ranks have a GPU each, and tests of more ranks than that are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import nccl_rules
from tests.distributed import ranks
from tests.gpu.machine import FORKS, GpuMeeting, gpus_here


@pytest.fixture(scope="session", autouse=True)
def meeting_that_is_asked_for(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--nccl-rules"):
            patch.setattr(ranks, "Meeting", nccl_rules.Meeting)
        if request.config.getoption("--nccl"):
            os.environ |= FORKS
            patch.setattr(GpuMeeting, "most_ranks", gpus_here())
            patch.setattr(ranks, "Meeting", GpuMeeting)
        yield
