"""Ranks that would compute the depth mix by different code do not train together."""

from __future__ import annotations

import os

import torch.distributed as dist

from attnres_train.errors import Refused
from attnres_train.parallel.grid import build_grid
from attnres_train.trainer.run import agreed_backend
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import tiny_config


def backend(missing_on: int | None) -> str:
    from attnres_train.depth import backends

    backends.why_not.cache_clear()
    backends._native.cache_clear()
    if dist.get_rank() == missing_on:
        os.environ["CXX"] = "/nowhere/c++"
    config = tiny_config("block", tensor=2)
    try:
        return agreed_backend(config, build_grid(config.parallel, seed=1))
    except Refused as refused:
        return str(refused.problems[0])


def test_a_compiler_missing_on_one_rank_is_refused_on_all() -> None:
    told = run_ranks(backend, 2, 1)
    assert told[0] == told[1]
    assert "rank 0 would use native, rank 1 lean (native: no C++ compiler (/nowhere/c++) on PATH)" in told[0]


def test_alike_ranks_agree() -> None:
    assert run_ranks(backend, 2, None) == ["native", "native"]
