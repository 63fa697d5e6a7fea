"""With `--nccl-rules` every process group of these tests keeps the rules of NCCL (tests/nccl_rules.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import nccl_rules
from tests.distributed import ranks


@pytest.fixture(scope="session", autouse=True)
def rules_where_asked(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--nccl-rules"):
            patch.setattr(ranks, "Meeting", nccl_rules.Meeting)
        yield
