"""Which backend runs, and what is said where a faster one cannot."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnres_train.depth import aggregate
from attnres_train.depth.backends import automatic
from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.describe import backend_in_words
from attnres_train.depth.kernels.build import NativeUnavailable, load_library
from attnres_train.depth.kernels.lean import LeanKernel
from attnres_train.depth.kernels.native import NativeKernel
from attnres_train.depth.mix import Norm
from attnres_train.depth.source import Target


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "attnres_train"


def compiler(folder: Path, script: str) -> str:
    path = folder / "cxx"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_auto_is_native_on_a_cpu_for_what_it_takes() -> None:
    assert automatic("cpu", torch.float32) == ("native", None)
    name, reason = automatic("cpu", torch.float16)
    assert name == "lean" and reason is not None and "torch.float16" in reason


def test_an_unknown_or_impossible_backend_is_refused_by_name() -> None:
    sources = [torch.ones(2, 4)]
    with pytest.raises(ValueError, match="unknown aggregation backend 'fast'"):
        aggregate(sources, torch.ones(4), torch.ones(4), eps=1e-5, backend="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'native': it takes .*float16"):
        aggregate([torch.ones(2, 4).half()], torch.ones(4), torch.ones(4), eps=1e-5, backend="native")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (None, "no C\\+\\+ compiler .*/nowhere"),
        ("echo 'mix.cpp:1: error: no such thing' >&2; exit 1", "failed: mix.cpp:1: error: no such thing"),
        ('while [ $# -gt 0 ]; do [ "$1" = -o ] && echo garbage > "$2"; shift; done', "invalid ELF|too short"),
    ],
    ids=["no compiler", "a compiler that fails", "a compiler that writes nonsense"],
)
def test_a_library_that_cannot_be_had_is_told_in_words(
    script: str | None, told: str, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/cxx" if script is None else compiler(tmp_path, script))
    with pytest.raises(NativeUnavailable, match=told):
        load_library()


def test_a_cache_that_cannot_be_written_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NativeUnavailable, match="file"):
        load_library()


def test_many_processes_may_compile_at_once(empty_cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=load_library) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 3
    assert [path.suffix for path in empty_cache.iterdir()] == [".so"]


def test_the_words_of_a_run_say_which_and_why() -> None:
    assert backend_in_words(ResidualConfig(mode="full"), "cpu", "fp32") == "native"
    assert backend_in_words(ResidualConfig(mode="full", backend="lean"), "cpu", "bf16") == "lean (residual.backend)"
    assert backend_in_words(ResidualConfig(mode="full", heads=2), "cpu", "bf16").startswith("plain torch")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [1, 15, 16, 63, 64, 100, 1024])
def test_native_gives_the_same_bits_for_any_number_of_threads_and_any_width(
    width: int, threads: int, set_threads: Callable[[int], None]
) -> None:
    """Tiles, short vectors and unaligned rows; 37 rows are two blocks and a piece of one."""
    generator = torch.Generator().manual_seed(width)
    values = [torch.randn(37, width, generator=generator) for _ in range(5)]
    grad, base = torch.randn(37, width, generator=generator), torch.randn(37, width, generator=generator)
    direction, norm = torch.randn(width, generator=generator) / width**0.5, Norm(torch.ones(width), 1e-5)

    def run(kernel: NativeKernel | LeanKernel) -> list[torch.Tensor]:
        mixed, kept = kernel.forward(values, direction, 1e-5, norm)
        outs = [torch.full_like(base, float("nan")) for _ in values]
        targets = [Target(base, outs[0]), Target(None, outs[1]), None, Target(None, outs[3]), Target(base, outs[4])]
        return [
            mixed,
            *kernel.backward(grad, values, kept, direction, norm, targets),
            outs[0],
            outs[1],
            outs[3],
            outs[4],
        ]

    kernel = NativeKernel(load_library())
    set_threads(1)
    single, lean = run(kernel), run(LeanKernel())
    set_threads(threads)
    for one, many, plain in zip(single, run(kernel), lean, strict=True):
        assert many.equal(one)
        assert (one - plain).norm() <= 1e-5 * plain.norm()


@pytest.fixture
def set_threads() -> Callable[[int], None]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
