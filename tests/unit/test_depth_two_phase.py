"""The two-phase form is the same function."""

from __future__ import annotations

import pytest
import torch

from attnres_train.depth import aggregate
from attnres_train.depth.two_phase import attend_finished, merge_partial
from tests.unit.test_depth_aggregate import error, make


@pytest.mark.parametrize("scale", [1.0, 1e3], ids=["even", "one source takes all"])
@pytest.mark.parametrize("finished", [1, 2, 9])
def test_two_phases_equal_one_pass_with_all_gradients(finished: int, scale: float) -> None:
    sources, _, gain = make(finished + 1, (5, 3, 32), torch.float64)
    queries = [scale * make(1, (1, 32), torch.float64, seed)[1] for seed in (1, 2, 3)]
    leaves = [tensor.clone().requires_grad_() for tensor in (*sources, *queries, gain)]
    *values, gain_leaf = leaves
    values, query_leaves = values[: finished + 1], values[finished + 1 :]
    generator = torch.Generator().manual_seed(5)
    upstream = [torch.randn(5, 3, 32, generator=generator, dtype=torch.float64) for _ in queries]

    states = attend_finished(values[:-1], query_leaves, [gain_leaf] * 3, eps=1e-5)
    partials = [None, values[-1], values[-1]]
    merged = [
        merge_partial(state, partial, query, gain_leaf, eps=1e-5, dtype=torch.float64)
        for state, partial, query in zip(states, partials, query_leaves, strict=True)
    ]
    got = torch.autograd.grad(merged, leaves, upstream)

    whole = [
        aggregate(values[:-1] if partial is None else values, query, gain_leaf, eps=1e-5, backend="reference")
        for partial, query in zip(partials, query_leaves, strict=True)
    ]
    expected = torch.autograd.grad(whole, leaves, upstream)
    for one, other in zip(merged, whole, strict=True):
        # A score of size `scale` is rounded in its last place, and so is what the exponential makes of it.
        assert error(one, other) < 1e-14 * max(1.0, scale / 100)
    for one, other in zip(got, expected, strict=True):
        assert (one - other).abs().max() <= 1e-11 * max(1.0, other.abs().max().item())


def test_bf16_is_rounded_once() -> None:
    sources, query, gain = make(4, (64, 32), torch.bfloat16)
    (state,) = attend_finished(sources[:-1], [query], [gain], eps=1e-5)
    merged = merge_partial(state, sources[-1], query, gain, eps=1e-5, dtype=torch.bfloat16)
    wide = aggregate([s.double() for s in sources], query.double(), gain.double(), eps=1e-5, backend="reference")
    assert (merged.double() - wide).abs().max() <= 2**-8 * wide.abs().max()
    assert error(merged, wide) < 2.0**-9
