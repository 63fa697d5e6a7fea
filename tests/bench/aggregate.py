"""The operator: time of forward and backward over what the memory bus needs, kept bytes, error against float64.

    python -m tests.bench.aggregate                                9 sources of [512, 2, 1024] fp32
    python -m tests.bench.aggregate --precision bf16 --sources 25

`bus` is the time to move (3 S + 2) slices at the bandwidth of a copy measured in the same rounds: each source read
in forward, read in backward and its gradient written, the mix and its gradient once. Sources may be read twice from
a cache; a backend at 1 reads memory once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.bench.paired import arguments, interleaved, settle, show

if TYPE_CHECKING:
    from torch import Tensor

Operator = Callable[["Sequence[Tensor]", "Tensor", "Tensor"], "Tensor"]
COPY_BYTES = 2**28


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], rounds=15)
    parser.add_argument("--sources", type=int, default=9)
    parser.add_argument("--rows", type=int, default=1024, help="tokens * batch (default %(default)s)")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compiled", action="store_true", help="also torch.compile of the list form (minutes)")
    options = parser.parse_args()
    settle("tests.bench.aggregate")
    rows = measure(options)
    about = (
        f"aggregate: {options.sources} sources of [{options.rows}, {options.width}] {options.precision}, "
        "forward and backward, one thread; ratio = time / bus"
    )
    show(rows, options.json, about)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    from attnres_train.depth.mix import DTYPES

    torch.set_num_threads(1)
    dtype = DTYPES[options.precision]
    generator = torch.Generator().manual_seed(1)
    shape = (options.rows, options.width)
    leaves = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for _ in range(options.sources)]
    query = (torch.randn(options.width, generator=generator) / options.width**0.5).requires_grad_()
    gain = torch.ones(options.width).requires_grad_()
    upstream = torch.randn(shape, generator=generator).to(dtype)
    tensors = (*leaves, query, gain)

    operators = _operators(options.compiled)
    block = torch.empty(COPY_BYTES // 4)
    copied = torch.empty_like(block)

    def run(operator: Operator) -> Callable[[], object]:
        return lambda: torch.autograd.grad(operator(leaves, query, gain), tensors, upstream)

    cases = {name: run(operator) for name, operator in operators.items()}
    seconds = interleaved({**cases, "copy": lambda: copied.copy_(block)}, options.rounds)
    bandwidth = 2 * COPY_BYTES / min(seconds["copy"])
    slice_bytes = options.rows * options.width * dtype.itemsize
    bus_seconds = (3 * options.sources + 2) * slice_bytes / bandwidth
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    exact = torch.autograd.grad(operators["stack and einsum"](wide[:-2], wide[-2], wide[-1]), wide, upstream.double())
    rows = []
    for name, operator in operators.items():
        found = torch.autograd.grad(operator(leaves, query, gain), tensors, upstream)
        errors = [_error(one, other) for one, other in zip(found, exact, strict=True)]
        rows.append(
            {
                "case": name,
                "ratio": min(seconds[name]) / bus_seconds,
                "ms": 1e3 * min(seconds[name]),
                "kept_slices": _kept_bytes(operator, leaves, query, gain) / slice_bytes,
                "source_error": max(errors[:-2]),
                "query_error": errors[-2],
                "bandwidth_gb_per_second": bandwidth / 1e9,
            }
        )
    return rows


def _operators(compiled: bool) -> dict[str, Operator]:
    import functools

    import torch

    from attnres_train.depth import aggregate
    from attnres_train.depth.backends import why_not

    def stacked(sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> Tensor:
        values = torch.stack(list(sources))
        wide = values.to(torch.promote_types(values.dtype, torch.float32))
        keys = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * gain
        weights = torch.einsum("d,snd->sn", query, keys).softmax(0)
        return torch.einsum("sn,snd->nd", weights, wide).to(values.dtype)

    ours = {name: functools.partial(_call, name) for name in ("native", "lean", "reference")}
    if why_not("native", "cpu", torch.float32):
        del ours["native"]
    found: dict[str, Operator] = {**ours, "stack and einsum": stacked}
    if compiled:
        found["torch.compile of reference"] = torch.compile(
            lambda sources, query, gain: aggregate(sources, query, gain, eps=1e-5, backend="reference")
        )
    return found


def _call(backend: Any, sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> Tensor:
    from attnres_train.depth import aggregate

    return aggregate(sources, query, gain, eps=1e-5, backend=backend)


def _kept_bytes(operator: Operator, sources: Sequence[Tensor], query: Tensor, gain: Tensor) -> int:
    """What autograd keeps beside the sources."""
    import torch

    own = {tensor.untyped_storage().data_ptr() for tensor in (*sources, query, gain)}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = operator(sources, query, gain)
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del result
    return total


def _error(value: Tensor, reference: Tensor) -> float:
    return ((value.double() - reference).norm() / reference.norm().clamp_min(1e-300)).item()


if __name__ == "__main__":
    main()
