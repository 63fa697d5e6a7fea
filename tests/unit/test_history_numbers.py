"""A completed block gets the next number, whatever a window has left of those before it."""

from __future__ import annotations

import torch

from attnres_train.depth.history import History
from attnres_train.depth.source import Source


def test_a_completed_block_follows_the_newest_source_and_not_their_count() -> None:
    sources = {number: Source.leaf(torch.zeros(1)) for number in (0, 5, 6)}
    assert list(History(sources, None).add(torch.ones(1), completes_block=True).sources) == [0, 5, 6, 7]
