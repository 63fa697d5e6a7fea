"""The Triton kernels: what they compute, in the interpreter or on a GPU, and that they compile for a GPU.

Whether Triton interprets is settled when it is imported, once a process, and other tests import it. So the
tests here run pytest on this file in processes of their own, where it collects `check_*` or `compile_*`. To
see one of those alone:

    TRITON_INTERPRET=1 pytest tests/unit/test_depth_triton.py -o python_functions='check_*'
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from attnres_train.depth.aggregation import aggregate_sources, normalise
from attnres_train.depth.mix import Norm
from attnres_train.depth.source import Source, Target

pytest.importorskip("triton")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
EPS, NORM_EPS = 1e-5, 1e-6
# The interpreter cuts off what a GPU rounds.
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 8e-3 if INTERPRETED else 4e-3}


@pytest.mark.parametrize(
    ("checks", "interpret"),
    [("check", "1"), pytest.param("compile", "0", marks=pytest.mark.slow), ("check", "0")],
    ids=["interpreter", "compiler", "gpu"],
)
def test_in_a_process_of_its_own(checks: str, interpret: str, tmp_path: Path) -> None:
    if (checks, interpret) == ("check", "0") and not torch.cuda.is_available():
        pytest.skip("no GPU")
    command = [sys.executable, "-m", "pytest", __file__, "-o", f"python_functions={checks}_*", "-p", "no:cacheprovider"]
    settings = {"TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, env={**os.environ, **settings}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Inputs(NamedTuple):
    """Leaves, and the gradient of the output."""

    values: list[Tensor]
    query: Tensor
    gain: Tensor
    norm_gain: Tensor
    upstream: Tensor

    def to(self, dtype: torch.dtype) -> Inputs:
        values = [value.to(dtype) for value in self.values]
        vectors = (vector.to(torch.promote_types(dtype, torch.float32)) for vector in self[1:4])
        return Inputs(values, *vectors, self.upstream.to(dtype))


class Results(NamedTuple):
    output: Tensor
    of_values: list[Tensor]
    of_vectors: list[Tensor]


def make(count: int, shape: tuple[int, ...], dtype: torch.dtype, magnitude: float = 1.0) -> Inputs:
    generator = torch.Generator().manual_seed(count)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(DEVICE)

    width = shape[-1]
    values = [magnitude * normal(*shape) for _ in range(count)]
    query, gain, norm_gain = normal(width) / width**0.5, 1 + normal(width) / 4, 1 + normal(width) / 4
    return Inputs(values, query, gain, norm_gain, normal(*shape)).to(dtype)


def exact(inputs: Inputs, attention: bool, normed: bool) -> Results:
    """By autograd of the definition, stacked, in float64."""
    values, query, gain, norm_gain = leaves = _leaves(inputs.to(torch.float64))
    stacked = torch.stack(values)
    keys = stacked / (stacked.square().mean(-1, keepdim=True) + EPS).sqrt() * gain
    weights = (keys * query).sum(-1).softmax(0)
    output = (weights.unsqueeze(-1) * stacked).sum(0) if attention else values[0]
    if normed:
        output = output / (output.square().mean(-1, keepdim=True) + NORM_EPS).sqrt() * norm_gain
    return _differentiated(output, leaves, inputs)


def computed(inputs: Inputs, attention: bool, normed: bool) -> Results:
    values, query, gain, norm_gain = leaves = _leaves(inputs)
    sources = [Source.open(value) for value in values]
    norm = Norm(norm_gain, NORM_EPS) if normed else None
    if attention:
        output = aggregate_sources(sources, query, gain, eps=EPS, norm=norm, backend="triton")
    else:
        assert norm is not None
        output = normalise(sources[0], norm, backend="triton")
    assert output.dtype == inputs.values[0].dtype
    return _differentiated(output, leaves, inputs)


def _leaves(inputs: Inputs) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    vectors = (vector.detach().clone().requires_grad_() for vector in inputs[1:4])
    return [value.detach().clone().requires_grad_() for value in inputs.values], *vectors


def _differentiated(output: Tensor, leaves: tuple[list[Tensor], Tensor, Tensor, Tensor], inputs: Inputs) -> Results:
    output.backward(inputs.upstream.to(output.dtype))
    values, *vectors = leaves
    return Results(output.detach(), [value.grad for value in values], [v.grad for v in vectors if v.grad is not None])


def error(value: Tensor, reference: Tensor) -> float:
    return ((value.double() - reference).norm() / reference.norm().clamp_min(1e-300)).item()


def assert_close(results: Results, expected: Results, bound: float, vectors_bound: float) -> None:
    assert error(results.output, expected.output) < bound
    for index, (gradient, reference) in enumerate(zip(results.of_values, expected.of_values, strict=True)):
        assert error(gradient, reference) < bound, f"source {index}"
    for index, (gradient, reference) in enumerate(zip(results.of_vectors, expected.of_vectors, strict=True)):
        if reference.abs().max() < 1e-12:
            assert gradient.abs().max() < 1e-6, "one source: its weight is 1 whatever the query says"
        else:
            # Sums over rows of differences that cancel.
            assert error(gradient, reference) < vectors_bound, f"vector {index}"


# ---- in the interpreter, or on a GPU ----


@pytest.mark.parametrize("normed", [False, True], ids=["mix", "mix-norm"])
@pytest.mark.parametrize(
    ("count", "shape", "dtype"),
    [
        *((count, shape, dtype) for count, shape in ((2, (17, 96)), (9, (3, 3, 40))) for dtype in ROUNDING),
        (1, (3, 3, 40), torch.float64),
        (65, (2, 72), torch.float64),
        (65, (2, 72), torch.bfloat16),
    ],
)
def check_output_and_gradients(count: int, shape: tuple[int, ...], dtype: torch.dtype, normed: bool) -> None:
    inputs = make(count, shape, dtype)
    bound = ROUNDING[dtype]
    assert_close(computed(inputs, True, normed), exact(inputs, True, normed), bound, min(10 * bound, 2e-5))


@pytest.mark.parametrize("dtype", ROUNDING)
def check_the_norm_alone(dtype: torch.dtype) -> None:
    inputs = make(1, (11, 40), dtype)
    bound = ROUNDING[dtype]
    assert_close(computed(inputs, False, True), exact(inputs, False, True), bound, min(10 * bound, 2e-5))


@pytest.mark.parametrize("attention", [True, False], ids=["mix", "norm-alone"])
def check_that_results_are_rounded_once(attention: bool) -> None:
    inputs = make(5 if attention else 1, (9, 96), torch.bfloat16)
    rounded, unrounded = (computed(inputs.to(dtype), attention, True) for dtype in (torch.bfloat16, torch.float32))
    for narrow, wide in zip(
        (rounded.output, *rounded.of_values), (unrounded.output, *unrounded.of_values), strict=True
    ):
        expected = (wide.view(torch.int32) >> 16 << 16).view(torch.float32) if INTERPRETED else wide.bfloat16().float()
        # A GPU may sum the two dtypes in another order.
        assert (narrow.float() != expected).float().mean() < 0.01


@pytest.mark.parametrize("magnitude", [1e-15, 1e15])
@pytest.mark.parametrize(("attention", "normed"), [(True, False), (True, True), (False, True)])
def check_magnitudes_neither_overflow_nor_vanish(magnitude: float, attention: bool, normed: bool) -> None:
    inputs = make(4 if attention else 1, (10, 40), torch.float32, magnitude)
    assert_close(computed(inputs, attention, normed), exact(inputs, attention, normed), 2e-6, 2e-5)


@pytest.mark.parametrize("normed", [False, True])
def check_zero_vectors_repeated_sources_and_strided_inputs(normed: bool) -> None:
    inputs = make(3, (4, 3, 16), torch.float64)
    one, two, three = inputs.values
    strided = three.transpose(0, 1).contiguous().transpose(0, 1)
    unaligned = torch.cat([two.new_zeros(1), two.flatten()])[1:].view(two.shape)
    results = computed(inputs._replace(values=[one, torch.zeros_like(one), two, unaligned, strided]), True, normed)
    expected = exact(inputs._replace(values=[one, torch.zeros_like(one), two, two, three]), True, normed)
    assert_close(results, expected, 1e-13, 1e-12)


@pytest.mark.parametrize(("attention", "normed"), [(True, False), (True, True), (False, True)])
def check_an_empty_batch_has_an_empty_mix_and_zero_gradients(attention: bool, normed: bool) -> None:
    results = computed(make(2 if attention else 1, (0, 8), torch.float32), attention, normed)
    assert results.output.shape == (0, 8)
    assert len(results.of_vectors) == 2 * attention + normed
    assert not any(gradient.any() for gradient in (*results.of_values, *results.of_vectors))


def check_a_zero_query_gives_the_mean_and_no_gain_gradient() -> None:
    inputs = make(4, (5, 32), torch.float64)
    results = computed(inputs._replace(query=torch.zeros_like(inputs.query)), True, False)
    assert error(results.output, torch.stack(inputs.values).mean(0)) < 1e-14
    assert not results.of_vectors[1].any()
    assert results.of_vectors[0].norm() > 0


@pytest.mark.parametrize("attention", [True, False], ids=["mix", "norm-alone"])
def check_gradients_are_added_to_their_targets(attention: bool) -> None:
    from attnres_train.depth.kernels.triton_mix import TritonKernel

    inputs = make(5 if attention else 1, (9, 24), torch.float64)
    expected = exact(inputs, attention, True)
    bases = [torch.randn_like(value) for value in inputs.values]
    norm, direction = Norm(inputs.norm_gain, NORM_EPS), inputs.query * inputs.gain if attention else None
    mixed, kept = TritonKernel().forward(inputs.values, direction, EPS, norm)
    assert error(mixed, expected.output) < 1e-13

    def deposit(targets: Sequence[Target | None]) -> None:
        grads = TritonKernel().backward(inputs.upstream, inputs.values, kept, direction, norm, targets)
        assert (grads[0] is not None) == attention and grads[1] is not None
        assert error(grads[1], expected.of_vectors[-1]) < 1e-12

    fresh, in_place, apart = ([torch.full_like(base, torch.nan) for base in bases] for _ in range(3))
    for out, base in zip(in_place, bases, strict=True):
        out.copy_(base)
    deposit([Target(None, out) for out in fresh])
    deposit([Target(out, out) for out in in_place])
    deposit([Target(base.clone(), out) for base, out in zip(bases, apart, strict=True)])
    for part, base, *outs in zip(expected.of_values, bases, fresh, in_place, apart, strict=True):
        assert error(outs[0], part) < 1e-13
        assert error(outs[1], base + part) < 1e-13
        assert torch.equal(outs[1], outs[2])
    deposit([None for _ in bases])
    if attention:
        # One buffer for two of the sources, and one source that wants none.
        shared, last = torch.full_like(bases[0], torch.nan), bases[4].clone()
        deposit([Target(None, shared), None, None, Target(shared, shared), Target(last, last)])
        assert error(shared, expected.of_values[0] + expected.of_values[3]) < 1e-13
        assert torch.equal(last, in_place[4])


def check_results_repeat_to_the_bit() -> None:
    inputs = make(3, (17, 40), torch.float32)
    first, second = (computed(inputs, True, True) for _ in range(2))
    assert torch.equal(first.output, second.output)
    for one, other in zip(first.of_values + first.of_vectors, second.of_values + second.of_vectors, strict=True):
        assert torch.equal(one, other)


def check_only_scalars_a_token_and_source_are_kept() -> None:
    inputs = make(3, (6, 64), torch.float32)
    values, query, gain, norm_gain = _leaves(inputs)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        sources = [Source(value, None) for value in values]
        aggregate_sources(sources, query, gain, eps=EPS, norm=Norm(norm_gain, NORM_EPS), backend="triton")
    assert sorted(kept) == sorted([6, *[3 * 6] * 3, *[64] * 3, *[6 * 64] * 3])


def check_why_it_cannot_run() -> None:
    from attnres_train.depth.kernels.triton_mix import why_not_triton

    assert why_not_triton(DEVICE) is None
    assert "the sources are on mps" in (why_not_triton("mps") or "")
    assert not INTERPRETED or "runs it on the CPU" in (why_not_triton("cuda") or "")


# ---- for a GPU, without one ----


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is compiled by launches that then do not take place: as on an H100, from tensors on the CPU."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class NoGpu:
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernels.append(run(kernel, *args, grid=grid, warmup=True, **options))

    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(driver, "_active", NoGpu())
    return kernels


def launch(count: int, width: int, dtype: torch.dtype, attention: bool, normed: bool, offset: int = 0) -> None:
    from attnres_train.depth.kernels.triton_mix import TritonKernel

    compute = torch.promote_types(dtype, torch.float32)
    values = [torch.zeros(3 * width + offset, dtype=dtype)[offset:].view(3, width) for _ in range(count)]
    vector = torch.zeros(width, dtype=compute)
    direction, norm = vector if attention else None, Norm(vector, NORM_EPS) if normed else None
    mixed, kept = TritonKernel().forward(values, direction, EPS, norm)
    targets = [Target(None, torch.empty_like(value)) for value in values]
    TritonKernel().backward(mixed, values, kept, direction, norm, targets)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("attention", "normed"), [(True, False), (True, True), (False, True)])
def compile_every_kind(dtype: torch.dtype, attention: bool, normed: bool, launched: list[Any]) -> None:
    launch(3 if attention else 1, 1200, dtype, attention, normed)
    assert len(launched) == 2
    for kernel in launched:
        assert kernel.asm["cubin"]
        # 128 bits a thread; without the hint on alignment it would be one element.
        assert ("ld.global.v2.b64" if dtype == torch.float64 else "ld.global.v4.b32") in kernel.asm["ptx"]
        assert "ld.global.b16" not in kernel.asm["ptx"]


def compile_narrow_accesses_for_unaligned_sources(launched: list[Any]) -> None:
    launch(2, 1024, torch.bfloat16, True, True, offset=1)
    assert all("ld.global.b16" in kernel.asm["ptx"] for kernel in launched)


def compile_the_widest_rows(launched: list[Any]) -> None:
    launch(2, 8192, torch.bfloat16, True, True)
    launch(2, 8192, torch.float32, True, True)
    assert len(launched) == 4


def compile_once_for_many_counts_of_sources(launched: list[Any]) -> None:
    for count in (1, 2, 16, 63, 64, 65, 128):
        launch(count, 256, torch.float32, True, True)
    assert len({id(kernel) for kernel in launched[::2]}) == 2, "forward: up to 64 sources, and up to 128"
    assert len({id(kernel) for kernel in launched[1::2]}) == 1


def compile_only_for_a_gpu() -> None:
    from attnres_train.depth.kernels.triton_mix import why_not_triton

    assert why_not_triton("cuda") is None
    assert "TRITON_INTERPRET=1 runs it on the CPU" in (why_not_triton("cpu") or "")
