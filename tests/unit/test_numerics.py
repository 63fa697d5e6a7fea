"""What is set for a GPU before it computes, and said of it. Flags of torch are there without one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from attnres_train.trainer import numerics
from attnres_train.trainer.config import TrainingConfig
from attnres_train.trainer.numerics import CUBLAS, numerics_in_words, settle_numerics
from tests.distributed.tiny import tiny_config

TRAINING = tiny_config("block").training


def flags() -> dict[str, object]:
    cuda = torch.backends.cuda
    return {
        "tf32": (cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "efficient": (cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        "flash": cuda.flash_sdp_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "cublas": os.environ.get(CUBLAS),
    }


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(CUBLAS, raising=False)
    before = flags()
    yield
    (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) = before["tf32"]  # type: ignore[misc]
    torch.use_deterministic_algorithms(bool(before["deterministic"]))
    torch.utils.deterministic.fill_uninitialized_memory = bool(before["fill"])
    torch.backends.cuda.enable_mem_efficient_sdp(before["efficient"][0])  # type: ignore[index]
    torch.backends.cuda.enable_cudnn_sdp(before["efficient"][1])  # type: ignore[index]


def test_a_cpu_is_left_as_it_is() -> None:
    before = flags()
    settle_numerics(replace(TRAINING, tf32=True, deterministic=True), "cpu")
    assert flags() == before
    assert list(numerics_in_words(TRAINING, "cpu")) == []


@pytest.mark.parametrize("tf32", [False, True])
def test_fp32_is_what_is_asked_for_and_said(tf32: bool) -> None:
    training = replace(TRAINING, tf32=tf32, precision="fp32")
    settle_numerics(training, "cuda")
    assert flags()["tf32"] == (tf32, tf32) and not flags()["deterministic"]
    (fp32, repeats) = numerics_in_words(training, "cuda")
    assert ("rounded to TF32" in fp32) is tf32 and "runs differ in rounding" in repeats
    (only,) = numerics_in_words(replace(training, precision="bf16"), "cuda")
    assert only == repeats


def test_a_run_that_is_to_repeat_has_kernels_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    training: TrainingConfig = replace(TRAINING, deterministic=True)
    settle_numerics(training, "cuda")
    found = flags()
    assert found["deterministic"] and found["efficient"] == (False, False) and found["flash"]
    assert found["cublas"] == ":4096:8" and found["fill"] is False
    assert "repeats to the bit" in list(numerics_in_words(training, "cuda"))[-1]
    monkeypatch.setenv(numerics.CUBLAS, ":16:8")
    settle_numerics(training, "cuda")
    assert os.environ[CUBLAS] == ":16:8", "what a user chose stays"
