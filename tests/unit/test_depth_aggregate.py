"""One contract for every backend of the aggregation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnres_train.depth import aggregate

BACKENDS = ("reference", "lean", "native")


def formula(sources: list[Tensor], query: Tensor, gain: Tensor, eps: float) -> Tensor:
    """The definition, stacked, in float64."""
    values = torch.stack([source.double() for source in sources])
    keys = values / (values.square().mean(-1, keepdim=True) + eps).sqrt() * gain.double()
    weights = (keys * query.double()).sum(-1).softmax(0)
    return (weights.unsqueeze(-1) * values).sum(0)


def make(count: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> tuple[list[Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sources = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(count)]
    width = shape[-1]
    vector = torch.float64 if dtype == torch.float64 else torch.float32
    query = torch.randn(width, generator=generator, dtype=torch.float64).to(vector) / width**0.5
    gain = 1 + torch.randn(width, generator=generator, dtype=torch.float64).to(vector) / 4
    return sources, query, gain


def gradients(backend: str | None, sources: list[Tensor], query: Tensor, gain: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Output, and gradients of all sources, the query and the gain, for a fixed upstream gradient."""
    wide = backend is None
    leaves = [t.detach().double() if wide else t.detach().clone() for t in (*sources, query, gain)]
    for leaf in leaves:
        leaf.requires_grad_()
    *inputs, leaf_query, leaf_gain = leaves
    if wide:
        output = formula(inputs, leaf_query, leaf_gain, 1e-5)
    else:
        output = aggregate(inputs, leaf_query, leaf_gain, eps=1e-5, backend=backend)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    output.backward(upstream.to(output.dtype))
    return output.detach(), [leaf.grad for leaf in leaves]


def error(value: Tensor, reference: Tensor) -> float:
    return ((value.double() - reference).norm() / reference.norm().clamp_min(1e-300)).item()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [1, 2, 9, 65])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_output_and_gradients_agree_with_float64(backend: str, count: int, dtype: torch.dtype, bound: float) -> None:
    sources, query, gain = make(count, (5, 3, 32), dtype)
    output, grads = gradients(backend, sources, query, gain)
    expected, expected_grads = gradients(None, sources, query, gain)
    assert output.dtype == dtype
    assert error(output, expected) < bound
    for index, (grad, reference) in enumerate(zip(grads, expected_grads, strict=True)):
        # Query and gain gradients are differences that cancel: their own tolerance.
        slack = 10 if index >= count else 1
        if count == 1 and index >= count:
            assert grad.abs().max() < 1e-6, "one source: its weight is 1 whatever the query says"
        else:
            assert error(grad, reference) < bound * slack, f"gradient {index}"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("magnitude", [1e-15, 1e15])
def test_magnitudes_neither_overflow_nor_vanish(backend: str, magnitude: float) -> None:
    sources, query, gain = make(4, (7, 32), torch.float32)
    sources = [source * magnitude for source in sources]
    output, grads = gradients(backend, sources, query, gain)
    expected, expected_grads = gradients(None, sources, query, gain)
    assert error(output, expected) < 2e-6
    for grad, reference in zip(grads, expected_grads, strict=True):
        assert error(grad, reference) < 2e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_vectors_repeated_sources_and_strided_inputs(backend: str) -> None:
    sources, query, gain = make(3, (6, 4, 16), torch.float64)
    zero = torch.zeros_like(sources[0])
    strided = sources[2].transpose(0, 1).contiguous().transpose(0, 1)
    output = aggregate([sources[0], zero, sources[1], sources[1], strided], query, gain, eps=1e-6, backend=backend)
    expected = formula([sources[0], zero, sources[1], sources[1], sources[2]], query, gain, 1e-6)
    assert error(output, expected) < 1e-13


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_that_is_not_finite_stays_visible(backend: str, broken: float, dtype: torch.dtype) -> None:
    """A weight of zero must not hide it: the step that it belongs to is to be skipped and counted."""
    sources, query, gain = make(3, (5, 32), dtype)
    sources[1][2, 7] = broken
    output, grads = gradients(backend, sources, query, gain)
    assert output.isnan().any(-1).tolist() == [False, False, True, False, False]
    assert grads[-2].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch_has_an_empty_mix_and_zero_gradients(backend: str) -> None:
    sources, query, gain = make(2, (0, 8), torch.float32)
    output, grads = gradients(backend, sources, query, gain)
    assert output.shape == (0, 8)
    assert all(grad is not None and not grad.any() for grad in grads)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_zero_query_gives_the_mean_and_no_gain_gradient(backend: str) -> None:
    sources, query, gain = make(4, (5, 32), torch.float64)
    output, grads = gradients(backend, sources, torch.zeros_like(query), torch.ones_like(gain))
    assert error(output, torch.stack(sources).mean(0)) < 1e-14
    assert not grads[-1].any()
    assert grads[-2].norm() > 0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**31))
def test_lean_gradients_pass_for_any_shape(count: int, tokens: int, width: int, seed: int) -> None:
    sources, query, gain = make(count, (tokens, width), torch.float64, seed)
    _, grads = gradients("lean", sources, query, gain)
    _, expected = gradients(None, sources, query, gain)
    scale = max(reference.abs().max().item() for reference in expected)
    for grad, reference in zip(grads, expected, strict=True):
        assert (grad - reference).abs().max() <= 1e-12 * max(scale, 1.0)


def test_lean_keeps_no_copy_of_the_history() -> None:
    sources, query, gain = make(9, (64, 128), torch.float32)
    kept: list[int] = []
    inputs = [source.requires_grad_() for source in sources]
    owned = {source.untyped_storage().data_ptr() for source in inputs}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in owned:
            kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        aggregate(inputs, query.requires_grad_(), gain.requires_grad_(), eps=1e-5, backend="lean")
    scalars_and_vectors = 3 * 9 * 64 * 4 + 2 * 128 * 4
    assert sum(kept) == scalars_and_vectors


def test_double_backward_is_refused() -> None:
    sources, query, gain = make(2, (3, 8), torch.float64)
    leaf = query.requires_grad_()
    output = aggregate(sources, leaf, gain, eps=1e-5, backend="lean")
    (gradient,) = torch.autograd.grad(output.square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s, q, g: ([], q, g), "at least one source"),
        (lambda s, q, g: ([s[0], s[1][:2]], q, g), r"source 1 is \(2, 8\)"),
        (lambda s, q, g: ([s[0], s[1].double()], q, g), "source 1 .*float64"),
        (lambda s, q, g: ([s[0], s[1].to("meta")], q, g), "source 1 .*meta, source 0 .*cpu"),
        (lambda s, q, g: (s, q.to("meta"), g), "query is .*meta"),
        (lambda s, q, g: (s, q[:4], g), r"query is \(4,\).*width 8"),
        (lambda s, q, g: (s, q, g[None]), r"gain is \(1, 8\)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: object, told: str) -> None:
    sources, query, gain = make(2, (3, 8), torch.float32)
    arguments = change(sources, query, gain)  # type: ignore[operator]
    with pytest.raises(ValueError, match=told):
        aggregate(*arguments, eps=1e-5)
