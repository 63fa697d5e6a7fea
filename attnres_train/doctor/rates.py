"""One process that measures a device file's rates: `python -m attnres_train.doctor.rates RANK RANKS FILE SHAPES`.

SHAPES is JSON (`device.Shapes`). Each rate is what `plan/work.py` counts of an operation over the time that
it takes with autograd, at the model's own shapes: first on rank 0 while the others wait, then on all at once.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from attnres_train.depth.aggregation import aggregate_sources
from attnres_train.depth.mix import DTYPES, Norm
from attnres_train.depth.source import Source
from attnres_train.doctor.device import Shapes
from attnres_train.doctor.processes import join_group, seconds_together, synchronize, there_and_back
from attnres_train.plan.step_end import ADAM_BYTES
from attnres_train.plan.work import (
    ATTENTION_BACKWARD,
    CAST_BYTES,
    ELEMENTS_BACKWARD,
    OPERATIONS_BACKWARD,
    SOFTMAX_BACKWARD_BYTES,
    SOFTMAX_FORWARD_BYTES,
)

LEAST_TIMES, LEAST_SECONDS = 5, 0.4
"""An action is repeated until both are reached; its shortest time counts."""
MEETINGS = 20
CHAINED = 200
"""Operations in a row, to time one."""
SMALLEST = 1


def main() -> None:
    """Meet the others at FILE, measure, and let rank 0 print what it found as JSON."""
    shapes = Shapes(**json.loads(sys.argv[4]))
    rank, ranks, device = join_group()
    torch.manual_seed(1)
    found: dict[str, Any] = {}
    actions = actions_of(shapes, device)
    of_rank_0 = actions if rank == 0 else {}
    found["alone"] = {name: amount / _seconds(action, device) for name, (amount, action) in of_rank_0.items()}
    dist.barrier()
    found["together"] = {}
    for name, (amount, action) in actions.items():
        dist.barrier()
        found["together"][name] = amount / _seconds(action, device)
    found["link"] = _links(shapes, rank, ranks, device)
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def actions_of(shapes: Shapes, device: torch.device) -> dict[str, tuple[float, Callable[[], object]]]:
    """By rate: what one run of the action amounts to, in FLOPs, bytes or operations, and the action."""
    dtype = DTYPES[shapes.precision]

    def random(*size: int) -> Tensor:
        return torch.randn(*size, dtype=dtype, device=device)

    n, width, t = shapes.tokens, shapes.width, shapes.tensor
    queries, ffn, vocabulary = shapes.queries, shapes.ffn // t, shapes.vocabulary // t
    heads = queries + shapes.key_value
    matrices = [((queries + 2 * shapes.key_value) // t, width), (width, queries // t), (2 * ffn, width), (width, ffn)]
    products = [(random(n, columns), random(rows, columns), random(n, rows)) for rows, columns in matrices]
    head = (random(n, width), random(vocabulary, width), random(n, vocabulary))
    size = dtype.itemsize
    element_bytes = n * size * shapes.passes * (1 + ELEMENTS_BACKWARD)
    attention_flops = 2 * queries / t * shapes.sequence * n * (1 + ATTENTION_BACKWARD)
    slices = 4 * shapes.sources + 3
    softmax_bytes = SOFTMAX_FORWARD_BYTES + SOFTMAX_BACKWARD_BYTES + (2 * CAST_BYTES if size == 2 else 0)
    square = random(shapes.square, shapes.square)
    return {
        "matmul_flops_per_second": (6 * n * sum(r * c for r, c in matrices), partial(_products, products)),
        "attention_flops_per_second": (attention_flops, _attention(shapes, random)),
        "head_flops_per_second": (6 * n * vocabulary * width, partial(_products, [head])),
        "softmax_bytes_per_second": (n * vocabulary * softmax_bytes, _softmax(random(n, vocabulary))),
        "memory_bytes_per_second": (element_bytes, _elements(random, n, heads // t, width, ffn)),
        "depth_bytes_per_second": (slices * n * width * size / shapes.shards, _depth(shapes, random)),
        "optimizer_bytes_per_second": (ADAM_BYTES * sum(r * c for r, c in matrices), _adam(matrices, device)),
        "operations_per_second": (CHAINED * (1 + OPERATIONS_BACKWARD), _chain(torch.ones(SMALLEST, device=device))),
        "peak_flops_per_second": (2 * shapes.square**3, lambda: square @ square),
    }


def _products(products: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Forward, and both products of backward."""
    for rows, weight, gradient in products:
        _ = rows @ weight.T, gradient @ weight, gradient.T @ rows


def _attention(shapes: Shapes, random: Callable[..., Tensor]) -> Callable[[], object]:
    heads, groups, size = shapes.heads // shapes.tensor, shapes.groups // shapes.tensor, shapes.queries // shapes.heads
    batch = shapes.tokens // shapes.sequence
    query, key, value = (random(batch, count, shapes.sequence, size) for count in (heads, groups, groups))
    leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
    gradient = random(batch, heads, shapes.sequence, size)

    def run() -> None:
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=groups != heads)
        torch.autograd.grad(output, leaves, gradient)

    return run


def _softmax(logits: Tensor) -> Callable[[], object]:
    logits.requires_grad_()
    labels = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    return lambda: torch.autograd.grad(F.cross_entropy(logits.float(), labels, reduction="none").sum(), logits)


def _elements(random: Callable[..., Tensor], n: int, heads: int, width: int, ffn: int) -> Callable[[], object]:
    """Rotary, a copy, SwiGLU and two additions of one layer."""
    query, stacked, output, running = random(n, heads), random(n, 2 * ffn), random(n, width), random(n, width)
    cosine, sine = random(n, heads), random(n, heads)
    leaves = [tensor.requires_grad_() for tensor in (query, stacked, output, running)]

    def run() -> None:
        left, right = query.chunk(2, -1)
        turned = query * cosine + torch.cat((-right, left), -1) * sine
        gate, up = stacked.chunk(2, -1)
        once = running + output
        torch.autograd.grad([turned.sum(), (F.silu(gate) * up).sum(), (once + output.clone()).sum()], leaves)

    return run


def _depth(shapes: Shapes, random: Callable[..., Tensor]) -> Callable[[], object]:
    rows = shapes.tokens // shapes.shards
    values = [random(rows, shapes.width).requires_grad_() for _ in range(shapes.sources)]
    query, gain, scale = (random(shapes.width).float().requires_grad_() for _ in range(3))
    gradient = random(rows, shapes.width)

    def run() -> None:
        sources = [Source.open(value) for value in values]
        mixed = aggregate_sources(sources, query, gain, eps=1e-5, norm=Norm(scale, 1e-5))
        torch.autograd.grad(mixed, values, gradient)

    return run


def _adam(matrices: list[tuple[int, int]], device: torch.device) -> Callable[[], object]:
    weights = [torch.ones(rows, columns, device=device, requires_grad=True) for rows, columns in matrices]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    return torch.optim.AdamW(weights, lr=1e-4).step


def _chain(small: Tensor) -> Callable[[], object]:
    small.requires_grad_()

    def run() -> None:
        value = small
        for _ in range(CHAINED):
            value = value * small
        torch.autograd.grad(value, small)

    return run


def _links(shapes: Shapes, rank: int, ranks: int, device: torch.device) -> dict[str, float]:
    """Bus rates (plan/speeds.py) between the ranks, and latencies from messages of next to nothing."""
    if ranks == 1:
        return {}
    hop = torch.ones(shapes.hop_bytes // 4, device=device)
    whole = torch.ones(max(shapes.collective_bytes // 4 // ranks, 1) * ranks, device=device)
    part, small = torch.ones(len(whole) // ranks, device=device), torch.ones(ranks, device=device)

    def timed(action: Callable[[], object]) -> float:
        return seconds_together(action, device, MEETINGS)

    def round_trip(tensor: Tensor) -> float:
        return timed(lambda: there_and_back(tensor, rank))

    latency, collective = round_trip(small) / 2, timed(lambda: dist.all_reduce(small))
    one_way = whole.nbytes * (ranks - 1) / ranks

    def bus_rate(bytes_: float, action: Callable[[], object]) -> float:
        return bytes_ / _beyond(timed(action), collective)

    return {
        "send_bytes_per_second": hop.nbytes / _beyond(round_trip(hop) / 2, latency),
        "send_latency_seconds": latency,
        "all_reduce_bytes_per_second": bus_rate(2 * one_way, lambda: dist.all_reduce(whole)),
        "reduce_scatter_bytes_per_second": bus_rate(one_way, lambda: dist.reduce_scatter_tensor(part, whole)),
        "all_gather_bytes_per_second": bus_rate(one_way, lambda: dist.all_gather_into_tensor(whole, part)),
        "collective_latency_seconds": collective,
    }


def _beyond(seconds: float, latency: float) -> float:
    """What a message takes beyond its latency, at least half of it all: the two are measured apart."""
    return max(seconds - latency, seconds / 2)


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    """The shortest of some times that `action` takes, after one that does not count.

    On one CPU thread it is the processor's time, so that other programs on the machine do not count.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    times: list[float] = []
    action()
    while len(times) < LEAST_TIMES or sum(times) < LEAST_SECONDS:
        synchronize(device)
        started = clock()
        action()
        synchronize(device)
        times.append(clock() - started)
    return min(times)


if __name__ == "__main__":
    main()
