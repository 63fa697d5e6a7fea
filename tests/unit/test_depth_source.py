"""Gradients of a source add up in its buffer, each once, in the order autograd runs the consumers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnres_train.depth.aggregation import aggregate_sources, normalise
from attnres_train.depth.history import History
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.mix import Norm
from attnres_train.depth.source import GradientBuffer, Source
from tests.unit.test_depth_aggregate import BACKENDS, error, make


def test_what_consumers_deposit_is_what_autograd_would_have_summed() -> None:
    leaf = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    source = Source.open(leaf * 2)
    (source.tap().sin().sum() + (source.tap() * 3).sum() + source.value.exp().sum()).backward()
    x = leaf.detach() * 2
    assert torch.allclose(leaf.grad, 2 * (x.cos() + 3 + x.exp()), rtol=1e-14)


def test_a_second_backward_through_a_kept_graph_starts_from_nothing() -> None:
    leaf = torch.ones(3, requires_grad=True)
    loss = (Source.open(leaf * 1).tap() * 5).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert leaf.grad.tolist() == [10.0] * 3


def test_a_source_that_nobody_reads_sends_no_gradient() -> None:
    leaf = torch.ones(3, requires_grad=True)
    source, other = Source.open(leaf), torch.ones(3, requires_grad=True)
    (0 * source.value.detach() + other).sum().backward()
    assert leaf.grad is None


def test_a_gradient_that_others_share_is_not_written_to() -> None:
    shared = torch.ones(3)
    source = Source.open(torch.zeros(3, requires_grad=True))
    assert source.gradient is not None
    source.gradient.deposit(shared)
    source.gradient.deposit(torch.ones(3))
    source.gradient.deposit(torch.ones(3))
    assert shared.tolist() == [1.0] * 3
    assert source.gradient.take().tolist() == [3.0] * 3  # type: ignore[union-attr]
    assert source.gradient.take() is None


def test_a_kernel_adds_to_a_shared_gradient_in_a_tensor_of_its_own() -> None:
    shared, like = torch.ones(3), torch.zeros(3)
    buffer = GradientBuffer()
    buffer.deposit(shared)
    first = buffer.target(like)
    assert first.base is shared and first.out is not shared
    first.out.copy_(first.base + 1)
    second = buffer.target(like)
    assert second.base is first.out and second.out is first.out, "from then on in place"


def test_without_gradients_there_is_no_buffer() -> None:
    with torch.no_grad():
        assert Source.open(torch.ones(2, requires_grad=True)).gradient is None
    assert Source.open(torch.ones(2)).gradient is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 4e-6), (torch.bfloat16, 2e-2)])
def test_a_stack_of_readers_with_norms_agrees_with_float64(backend: str, dtype: torch.dtype, bound: float) -> None:
    """Several readers of the same sources, each through its norm: deposits with and without a base."""

    def run(kind: torch.dtype, name: str) -> list[Tensor]:
        sources, query, gain = make(4, (6, 2, 40), torch.float64)
        leaves = [source.to(dtype).to(kind).requires_grad_() for source in sources]
        vectors = [v.to(torch.promote_types(kind, torch.float32)).requires_grad_() for v in (query, gain, gain + 0.5)]
        w, g, norm_gain = vectors
        opened, norm = [Source.open(leaf) for leaf in leaves], Norm(norm_gain, 1e-5)
        total = torch.zeros((), dtype=torch.float64)
        for count in (4, 3, 1):
            read = aggregate_sources(opened[:count], w, g, eps=1e-5, norm=norm, backend=name)  # type: ignore[arg-type]
            total = total + read.double().sin().sum()
        total = total + normalise(opened[1], norm, backend=name).double().cos().sum()  # type: ignore[arg-type]
        return list(torch.autograd.grad(total, [*leaves, *vectors]))

    for found, exact in zip(run(dtype, backend), run(torch.float64, "reference"), strict=True):
        assert error(found, exact) < bound


def test_history_numbers_its_sources_and_never_changes() -> None:
    layout = DepthLayout(4, "block", 2, window=1)
    start = History.start(torch.zeros(2, 1, 3), layout)
    after = start.add(torch.ones(2, 1, 3), False).add(torch.ones(2, 1, 3), True)
    assert list(start.sources) == [0] and start.partial is None
    assert list(after.sources) == [0, 1] and after.sources[1].value.eq(2).all()
    with pytest.raises(AssertionError, match="the history has none"):
        after.read(layout.reads(3))


def test_a_leaf_keeps_its_gradient_and_shares_its_buffer() -> None:
    tensor = torch.ones(2, 1, 3)
    first = Source.leaf(tensor)
    again = Source.leaf(first.value, first.gradient)
    total = first.tap().sum() + 2 * again.tap().sum()
    total.backward()
    assert first.gradient is not None and first.gradient.deposits == 2
    taken = first.gradient.take()
    assert taken is not None and taken.eq(3).all()
    assert first.value.grad is None and again.value.grad is None and tensor.grad is None


def test_a_gradient_to_be_released_is_added_into_and_a_lent_one_never() -> None:
    released: list[torch.Tensor] = []
    for release in (released.append, None):
        leaf, sent = Source.leaf(torch.ones(3)), torch.full((3,), 4.0)
        local, tap = leaf.tap().sum(), leaf.tap(release)  # the last consumer is the first in backward
        torch.autograd.backward([local, tap], [torch.ones(()), sent])
        assert leaf.gradient is not None
        taken = leaf.gradient.take()
        assert taken is not None and taken.eq(5).all()
        assert (taken is sent) == (release is not None) and sent.eq(5 if release else 4).all()
    assert released == [], "it was kept"


def test_a_gradient_that_is_added_to_another_is_released() -> None:
    released: list[torch.Tensor] = []
    leaf, sent = Source.leaf(torch.ones(3)), torch.full((3,), 4.0)
    tap, local = leaf.tap(released.append), leaf.tap().sum()
    torch.autograd.backward([local, tap], [torch.ones(()), sent])
    assert leaf.gradient is not None
    taken = leaf.gradient.take()
    assert taken is not None and taken.eq(5).all()
    assert len(released) == 1 and released[0] is sent and sent.eq(4).all()


def test_a_leaf_wants_no_gradient_in_evaluation() -> None:
    with torch.no_grad():
        assert Source.leaf(torch.ones(3)).gradient is None
