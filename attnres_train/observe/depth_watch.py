"""Looks at the depth while a step runs, with hooks that are there for that step alone: no cost when nobody looks.

Each rank adds up what its own stages do, over its own tokens; `collect` adds the ranks up and divides. Each reader is
on the ranks of one pipeline stage, and each token there once, or once on every tensor rank: so the means are those of
one process, whatever the layout.

A layer that backward makes again is looked at in its first forward, and its gradients belong to that one.

Legend: N tokens, D width, S sources, R readers, C what is added up of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnres_train.depth.history import History
from attnres_train.depth.reader import DepthReader
from attnres_train.model.head import Head
from attnres_train.model.layer import Sublayer, TransformerLayer
from attnres_train.model.stage import StageModel
from attnres_train.observe.depth_look import SIZES, DepthLook, ReaderLook, reader_name
from attnres_train.parallel.grid import Grid

_SUMS = ("tokens", "weighed", "shared", "entropy", "queries", "query", *SIZES)
"""What is added up of a reader, before its weights: tokens, those with weights, those whose weights are shares of one;
entropy; the number of learned queries and their norm; of sizes the mean squares over the width."""


class DepthWatch:
    """The sums of one rank, and the hooks that fill them."""

    def __init__(self, stages: Sequence[StageModel], grid: Grid):
        self._stages, self._grid = stages, grid
        self._layout = stages[0].layout
        self._head = self._layout.num_sublayers
        most = max(self._layout.reads(reader).count for reader in range(self._head + 1))
        self._sums_RC = torch.zeros(self._head + 1, len(_SUMS) + most, dtype=torch.float64, device=grid.device)
        self._in_forward = False

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Inside, every forward and backward of the stages counts."""
        self._sums_RC.zero_()
        hooks = [hook for stage in self._stages for hook in self._hooks(stage)]
        try:
            yield
        finally:
            self._in_forward = False
            for hook in hooks:
                hook.remove()

    def collect(self) -> DepthLook:
        """What all ranks saw, the same on every one. A collective."""
        sums_RC = self._sums_RC.cpu()
        dist.all_reduce(sums_RC, group=self._grid.control)
        return DepthLook(tuple(self._reader(index, row) for index, row in enumerate(sums_RC.tolist())))

    def _reader(self, index: int, row: Sequence[float]) -> ReaderLook:
        sums, weights, reads = dict(zip(_SUMS, row, strict=False)), row[len(_SUMS) :], self._layout.reads(index)
        read, *others = (math.sqrt(sums[size] / sums["tokens"]) for size in SIZES)
        sizes = [None] * len(others) if index == self._head else others
        return ReaderLook(
            name=reader_name(self._layout, index),
            sources=reads.sources,
            partial=reads.partial,
            weights=tuple(w / sums["weighed"] for w in weights[: reads.count]) if sums["weighed"] else None,
            entropy=sums["entropy"] / sums["shared"] if sums["shared"] else None,
            query_norm=sums["query"] / sums["queries"] if sums["queries"] else None,
            input_rms=read,
            **dict(zip(SIZES[1:], sizes, strict=True)),
        )

    def _hooks(self, stage: StageModel) -> Iterator[RemovableHandle]:
        def in_forward(running: bool, *_: Any) -> None:
            self._in_forward = running

        yield stage.register_forward_pre_hook(partial(in_forward, True))
        yield stage.register_forward_hook(partial(in_forward, False), always_call=True)
        for number, layer in stage.layers.items():
            assert isinstance(layer, TransformerLayer)
            for reader, sublayer in enumerate(layer.sublayers, start=2 * int(number)):
                yield sublayer.register_forward_hook(partial(self._after_sublayer, reader))
                yield sublayer.branch.register_forward_hook(partial(self._after_branch, reader))
        if stage.head is not None:
            yield stage.head.register_forward_hook(partial(self._after_head, self._head))

    def _after_sublayer(self, reader: int, sublayer: Sublayer, arguments: tuple[Any, ...], after: History) -> None:
        if not self._in_forward:
            return
        self._read(reader, sublayer.depth, arguments[0])
        written = after.sources[max(after.sources)] if after.partial is None else after.partial
        self._add(reader, "partial_rms", _squares(written.value))

    def _after_head(self, reader: int, head: Head, arguments: tuple[Any, ...], _losses: Tensor) -> None:
        self._read(reader, head.depth, arguments[0])  # the head is never made again

    def _after_branch(self, reader: int, _branch: nn.Module, _inputs: Any, outputs: tuple[Tensor, Any]) -> None:
        if not self._in_forward:
            return
        output_TBD = outputs[0]
        self._add(reader, "output_rms", _squares(output_TBD))
        if output_TBD.requires_grad:
            output_TBD.register_hook(lambda grad_TBD: self._add(reader, "gradient_rms", _squares(grad_TBD)))

    @torch.no_grad()
    def _read(self, reader: int, depth: DepthReader, history: History) -> None:
        look = depth.look(history)
        tokens = look.mix_ND.shape[0]
        self._add(reader, "tokens", tokens)
        self._add(reader, "input_rms", _squares(look.mix_ND))
        if look.weights_SN is not None:
            self._add(reader, "weighed", tokens)
            start = len(_SUMS)
            self._sums_RC[reader, start : start + len(look.weights_SN)] += look.weights_SN.sum(1, dtype=torch.float64)
        if look.entropy_N is not None:
            self._add(reader, "shared", tokens)
            self._add(reader, "entropy", look.entropy_N.sum(dtype=torch.float64))
        query = depth._parameters.get("query")
        if query is not None:
            self._add(reader, "queries", 1)
            self._add(reader, "query", torch.linalg.vector_norm(query, dtype=torch.float64))

    def _add(self, reader: int, what: str, value: Tensor | float) -> None:
        self._sums_RC[reader, _SUMS.index(what)] += value


def _squares(values: Tensor) -> Tensor:
    """The mean square over the width, summed over tokens."""
    rows_ND = values.detach().flatten(0, -2)
    rows_ND = rows_ND.to(torch.promote_types(rows_ND.dtype, torch.float32))
    return torch.linalg.vecdot(rows_ND, rows_ND).sum(dtype=torch.float64) / rows_ND.shape[-1]
