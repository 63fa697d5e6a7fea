"""Storages that wait in host memory."""

from __future__ import annotations

import torch

from attnres_train.parallel.offload import HostOffload


def test_what_is_parked_takes_no_memory_and_comes_back_for_all_who_hold_it() -> None:
    offload = HostOffload()
    leaf = torch.randn(4, 3, requires_grad=True)
    source = leaf * 1
    expected = source.detach().clone()
    view, alias = source[1:], source.detach()
    squared = source * source  # saves `source` for its backward
    offload.park([source, alias])
    assert alias.untyped_storage().nbytes() == 0 and offload.parked_bytes == expected.numel() * 4
    offload.fetch([alias])
    assert source.equal(expected) and view.equal(expected[1:]) and offload.parked_bytes == 0
    squared.sum().backward()
    assert leaf.grad is not None and leaf.grad.equal(2 * expected)


def test_parking_or_fetching_twice_changes_nothing() -> None:
    offload, tensor = HostOffload(), torch.arange(5)
    offload.fetch([tensor])
    offload.park([tensor])
    offload.park([tensor])
    offload.fetch([tensor])
    offload.fetch([tensor])
    assert tensor.tolist() == [0, 1, 2, 3, 4]


def test_a_view_into_a_larger_storage_parks_the_whole_of_it() -> None:
    offload, whole = HostOffload(), torch.arange(6.0)
    offload.park([whole[2:4]])
    assert whole.untyped_storage().nbytes() == 0
    offload.fetch([whole])
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]
