"""Attention over depth on one device; nothing here knows of other ranks.

    README.md       the idea, every mode's formula, which to choose
    layout.py       which sources each sublayer and the head read (pure)
    history.py      the value that flows through the layers: complete sources and the running partial
    source.py       one source, and the buffer that its readers' gradients add up in
    aggregation.py  the operator: softmax over sources, one contract
    backends.py     which implementation runs; kernels/ holds them, mix.py makes them a node of the graph
    modes/          the residual modes behind one small interface; reader.py makes a module of one
    config.py       the [residual] section; rules.py what it may say

`aggregate` is imported on first use: the layout is plain arithmetic, and `attnres check` and `attnres plan`
need it in a fraction of the time that importing torch takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnres_train.depth.layout import DepthLayout

if TYPE_CHECKING:
    from attnres_train.depth.aggregation import aggregate

__all__ = ["DepthLayout", "aggregate"]


def __getattr__(name: str) -> Any:
    if name == "aggregate":
        from attnres_train.depth.aggregation import aggregate

        return aggregate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
