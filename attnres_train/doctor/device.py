"""The device file of this machine (`attnres doctor CONFIG --device-file FILE`): processes measure, this one writes."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from attnres_train.config.load import Loaded
from attnres_train.config.resolve import run_folder
from attnres_train.doctor.processes import run_processes
from attnres_train.model.size import costs_of
from attnres_train.plan.device_file import DeviceFile
from attnres_train.plan.speeds import Link, Rates, even_link
from attnres_train.plan.work import source_counts
from attnres_train.setup import FP32_BYTES, Setup
from attnres_train.words import GIB, counted

_DISK_BYTES = 64 << 20
_MOST_LOGIT_BYTES = 1 << 30
_MOST_COLLECTIVE_BYTES = 64 << 20
_SQUARE_ON_CPU, _SQUARE_ON_GPU = 1024, 8192
"""Rows and columns of the product whose rate stands for the peak."""


@dataclass(frozen=True)
class Shapes:
    """Sizes that the rates are measured at: those of a configuration, whole unless said; `tensor` ranks share them."""

    precision: Literal["fp32", "bf16"]
    tokens: int
    sequence: int
    width: int
    queries: int
    """Width of all query heads together."""
    key_value: int
    heads: int
    groups: int
    ffn: int
    vocabulary: int
    tensor: int
    shards: int
    passes: float
    """Elements a token that a rank's operations without a product read and write in the forward of a layer."""
    sources: int
    """That a reader reads, on average."""
    hop_bytes: int
    collective_bytes: int
    square: int


def shapes_of(setup: Setup, gpu: bool) -> Shapes:
    """The shapes of one micro-batch. Tokens are fewer where the logits would not fit."""
    model, training, parallel = setup.config.model, setup.config.training, setup.config.parallel
    tokens = setup.micro_batch_tokens
    while tokens > training.sequence_length and tokens * setup.padded_vocabulary * 4 > _MOST_LOGIT_BYTES:
        tokens -= training.sequence_length
    reads = source_counts(setup.layout)
    size = setup.slice_bytes
    gradients = FP32_BYTES * max(setup.held_by(rank) for rank in range(parallel.pipeline))
    # Of a layer without the norms of q and k, as `rates.py` computes them.
    passes = costs_of(replace(model, qk_norm=False), 0).of_layers(range(1)).passes
    return Shapes(
        precision=training.precision,
        tokens=tokens,
        sequence=training.sequence_length,
        width=model.hidden_size,
        queries=model.num_attention_heads * model.head_size,
        key_value=model.query_groups * model.head_size,
        heads=model.num_attention_heads,
        groups=model.query_groups,
        ffn=model.ffn_hidden_size,
        vocabulary=setup.padded_vocabulary,
        tensor=parallel.tensor,
        shards=setup.shards,
        passes=passes.divided / parallel.tensor + passes.whole,
        sources=round(sum(reads) / len(reads)),
        hop_bytes=size,
        collective_bytes=min(_MOST_COLLECTIVE_BYTES, size * parallel.tensor if parallel.tensor > 1 else gradients),
        square=_SQUARE_ON_GPU if gpu else _SQUARE_ON_CPU,
    )


def measure_device(loaded: Loaded, world: int, ranks: int, devices: dict[str, Any]) -> DeviceFile:
    """Measure this machine with `ranks` processes, at the shapes of a configuration planned for `world` ranks.

    Raises Refused if a process fails or the machine takes too long.
    """
    gpu = devices["gpus"] > 0
    shapes = shapes_of(Setup.of(loaded.config, world), gpu)
    found = run_processes("attnres_train.doctor.rates", ranks, asdict(shapes))
    # One rank sends nothing: no plan reads its rates.
    link = Link(**found["link"]) if found["link"] else even_link(1e12, 0.0)
    products = ("peak", "matmul", "head")
    return DeviceFile(
        name="this machine",
        precision=shapes.precision,
        shapes=f"{loaded.path.name}, {counted(shapes.tokens, 'token')} at a time",
        peak_flops_per_second=max(found["alone"][f"{product}_flops_per_second"] for product in products),
        memory_gib=devices["memory_gib"] / (1 if gpu else ranks),
        devices_per_node=ranks,
        disk_bytes_per_second=_disk(run_folder(loaded.config, loaded.path)),
        asynchronous=gpu,
        alone=_rates(found["alone"]),
        together=_rates(found["together"]),
        link=link,
    )


def _rates(found: dict[str, float]) -> Rates:
    names = [name for name in Rates.__dataclass_fields__ if name != "operation_seconds"]
    return Rates(operation_seconds=1 / found["operations_per_second"], **{name: found[name] for name in names})


def _disk(folder: Path) -> float:
    """Bytes a second that are written and flushed where the run will save."""
    while not folder.exists():
        folder = folder.parent
    content = os.urandom(1 << 20) * (_DISK_BYTES >> 20)
    with tempfile.TemporaryFile(dir=folder) as file:
        started = time.perf_counter()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return len(content) / (time.perf_counter() - started)


def device_summary(values: DeviceFile) -> list[str]:
    """What was measured, as lines for a page."""
    lines = []
    for what, rates in (("alone", values.alone), (f"{values.devices_per_node} at once", values.together)):
        lines.append(
            f"{what}: products {rates.matmul_flops_per_second / 1e9:,.0f}, attention "
            f"{rates.attention_flops_per_second / 1e9:,.0f} GFLOP/s; memory "
            f"{rates.memory_bytes_per_second / GIB:,.1f}, depth mix {rates.depth_bytes_per_second / GIB:,.1f}, AdamW "
            f"{rates.optimizer_bytes_per_second / GIB:,.1f} GiB/s; an operation {rates.operation_seconds * 1e6:.1f} us"
        )
    link = values.link
    lines.append(
        f"links: send {link.send_bytes_per_second / GIB:.2f}, all-reduce {link.all_reduce_bytes_per_second / GIB:.2f}, "
        f"reduce-scatter {link.reduce_scatter_bytes_per_second / GIB:.2f}, all-gather "
        f"{link.all_gather_bytes_per_second / GIB:.2f} GiB/s; disk {values.disk_bytes_per_second / GIB:.2f} GiB/s"
    )
    return lines
