"""The mix on a GPU by Triton: one program a row forward, one a short run of rows backward.

For every row (token) with sources v_1 .. v_n of width D, q = query * gain and w = gain of the norm:

    r_j = 1 / sqrt(mean(v_j^2) + eps) ;  p_j = q . v_j ;  a = softmax(p r) ;  h = sum_j a_j v_j
    without norm:  y = h              with norm:  R = 1 / sqrt(mean(h^2) + norm_eps) ;  y = R h w

Forward reads a source once: the softmax is online, its sums rescaled whenever the largest score grows.
Backward, with G = dL/dy (the formulas are those of attnres_train/depth/kernels/lean.py):

    with norm:  g = R (w G - R h mean(w G . R h)) ;  dL/dw = sum over rows of G h R       without:  g = G
    u_j = g . v_j ;  delta_j = a_j (u_j - g . h), for g . h = sum_k a_k u_k
    dL/dv_j = a_j g + delta_j r_j q - (delta_j p_j r_j^3 / D) v_j ;  dL/dq = sum over rows, j of delta_j r_j v_j

reads them twice: once to make h again, once for the rest.

The sources stay where they are: a kernel gets their addresses in a small tensor and loops over it, so their
number is no part of what is compiled. Sums over rows are made in runs of ROWS_A_PROGRAM, without atomics: they
depend neither on the order in which programs run nor on how many run at once.

Legend: S sources, N tokens, D width, P programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

from attnres_train.depth.mix import Norm, compute_dtype
from attnres_train.depth.source import Target

# Few, so that a micro-batch fills the GPU; enough that the partial sums, one row a program, are a small traffic.
ROWS_A_PROGRAM = 8
WIDEST_ACCESS = 16  # bytes a thread moves at once, if addresses are multiples of it
BYTES_A_WARP = 2048  # of a row in the compute dtype: 16 numbers of fp32 a thread
MOST_WARPS = 16
SMALLEST_BLOCK_S = 64  # any smaller number of sources shares one compiled kernel


def why_not_triton(device_type: str) -> str | None:
    """Why the kernels cannot run on tensors of this device type, None if they can."""
    if isinstance(_forward_kernel, JITFunction):
        if device_type == "cuda":
            return None
        return f"it runs on a GPU, the sources are on {device_type}; TRITON_INTERPRET=1 runs it on the CPU for tests"
    if device_type != "cpu":
        # The interpreter would follow their addresses on the host.
        return f"TRITON_INTERPRET=1 runs it on the CPU, the sources are on {device_type}"
    return "TRITON_INTERPRET=1 was set after triton had been imported" if isinstance(tl.sum, JITFunction) else None


class TritonKernel:
    """Launches the kernels below. Keeps p, r and a, `[N, S]` each, and, with a norm, R, `[N]`."""

    def forward(
        self, values_ND: Sequence[Tensor], direction_D: Tensor | None, eps: float, norm: Norm | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        rows, sources = values_ND[0].shape[0], len(values_ND)
        mixed_ND = torch.empty_like(values_ND[0])
        like = mixed_ND.new_empty(0, dtype=compute_dtype(mixed_ND.dtype))
        attention_NS = () if direction_D is None else tuple(like.new_empty(rows, sources) for _ in range(3))
        norm_N = () if norm is None else (like.new_empty(rows),)
        if rows:
            addresses_S, constants = _arguments(values_ND, mixed_ND)
            with torch.cuda.device_of(mixed_ND):
                _forward_kernel[(rows,)](
                    addresses_S,
                    direction_D,
                    eps,
                    *(attention_NS or (None,) * 3),
                    None if norm is None else norm.gain,
                    0.0 if norm is None else norm.eps,
                    *(norm_N or (None,)),
                    mixed_ND,
                    sources,
                    BLOCK_S=max(SMALLEST_BLOCK_S, triton.next_power_of_2(sources)),
                    **constants,
                )
        return mixed_ND, (*attention_NS, *norm_N)

    def backward(
        self,
        grad_ND: Tensor,
        values_ND: Sequence[Tensor],
        kept: tuple[Tensor, ...],
        direction_D: Tensor | None,
        norm: Norm | None,
        targets: Sequence[Target | None],
    ) -> tuple[Tensor | None, Tensor | None]:
        rows, width = values_ND[0].shape
        programs = triton.cdiv(rows, ROWS_A_PROGRAM)
        grad_direction_PD = None if direction_D is None else direction_D.new_empty(programs, width)
        grad_norm_PD = None if norm is None else norm.gain.new_empty(programs, width)
        if rows:
            bases, outs = zip(*(target or (None, None) for target in targets), strict=True)
            addresses_3S, constants = _arguments([*values_ND, *bases, *outs], values_ND[0])
            with torch.cuda.device_of(grad_ND):
                _backward_kernel[(programs,)](
                    addresses_3S,
                    grad_ND,
                    direction_D,
                    *((None,) * 3 if direction_D is None else kept[:3]),
                    *((None, None) if norm is None else (norm.gain, kept[-1])),
                    grad_direction_PD,
                    grad_norm_PD,
                    len(values_ND),
                    rows,
                    ROWS=ROWS_A_PROGRAM,
                    **constants,
                )
        return _total(grad_direction_PD), _total(grad_norm_PD)


def _arguments(tensors_ND: Sequence[Tensor | None], like_ND: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """The addresses of tensors like `like_ND` on its device, 0 for None, and what the kernels are compiled for."""
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors_ND]
    # From pinned memory the copy is queued like a kernel: the host does not wait for the device.
    on_host = torch.tensor(addresses, dtype=torch.int64, pin_memory=like_ND.is_cuda)
    width, compute = like_ND.shape[1], compute_dtype(like_ND.dtype)
    block = triton.next_power_of_2(width)
    return on_host.to(like_ND.device, non_blocking=True), {
        "STORED": _TYPES[like_ND.dtype],
        "COMPUTE": _TYPES[compute],
        "WIDTH": width,
        "BLOCK_D": block,
        "ALIGNMENT": 1 if any(address % WIDEST_ACCESS for address in addresses) else WIDEST_ACCESS,
        "num_warps": min(max(block * compute.itemsize // BYTES_A_WARP, 1), MOST_WARPS),
        "enable_fp_fusion": True,
        **_REGISTERS,
    }


def _total(partial_PD: Tensor | None) -> Tensor | None:
    return None if partial_PD is None else partial_PD.sum(0)


_TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}

# Backward would take more, for no gain but one program less on a multiprocessor. Only CUDA knows the option.
_REGISTERS = {} if torch.version.hip else {"maxnreg": 128}

# ---- device code: parameters are pointers to tensors of the shape that their name tells ----


@triton.jit
def _row(
    address: tl.tensor, row: tl.tensor, STORED: tl.constexpr, WIDTH: tl.constexpr, ALIGNMENT: tl.constexpr
) -> tl.tensor:
    """Pointer to a row of the tensor at `address`; `row` is int64, as N * D may exceed 2^31."""
    # Without the hint, which must follow the cast, a thread would move one element at a time.
    return tl.multiple_of(address.to(tl.pointer_type(STORED)), ALIGNMENT) + row * WIDTH


@triton.jit
def _reciprocal(value: tl.tensor) -> tl.tensor:
    """1 / value of a scalar, correctly rounded: the weight of a single source is exactly 1."""
    if value.dtype == tl.float64:  # whose division always is
        return 1.0 / value
    else:
        return tl.div_rn(1.0, value)


@triton.jit
def _inverse_rms(value: tl.tensor, eps: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """1 / sqrt(mean(value^2) + eps)."""
    mean = (tl.sum(value * value) / WIDTH + eps).to(value.dtype)  # eps is float64, whatever the values are
    return _reciprocal(tl.sqrt(mean) if value.dtype == tl.float64 else tl.sqrt_rn(mean))


@triton.jit(do_not_specialize=["num_sources"])
def _forward_kernel(
    addresses_S: tl.tensor,
    direction_D: tl.tensor,
    eps: tl.float64,
    projection_NS: tl.tensor,
    inverse_rms_NS: tl.tensor,
    weights_NS: tl.tensor,
    norm_gain_D: tl.tensor,
    norm_eps: tl.float64,
    norm_N: tl.tensor,
    mixed_ND: tl.tensor,
    num_sources: tl.int32,
    BLOCK_S: tl.constexpr,
    STORED: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ALIGNMENT: tl.constexpr,
) -> None:
    """One row; `direction_D` or `norm_gain_D` is None where it is not wanted."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK_D)
    inside = lanes < WIDTH
    if direction_D is None:
        source = _row(tl.load(addresses_S), row, STORED, WIDTH, ALIGNMENT)
        mixed = tl.load(source + lanes, mask=inside, other=0).to(COMPUTE)
    else:
        direction = tl.load(direction_D + lanes, mask=inside, other=0)
        slots = tl.arange(0, BLOCK_S)
        scores = tl.full([BLOCK_S], float("-inf"), COMPUTE)
        largest = tl.full([], float("-inf"), COMPUTE)
        total = tl.full([], 0, COMPUTE)
        mixed = tl.zeros([BLOCK_D], COMPUTE)
        for index in range(num_sources):
            source = _row(tl.load(addresses_S + index), row, STORED, WIDTH, ALIGNMENT)
            value = tl.load(source + lanes, mask=inside, other=0).to(COMPUTE)
            projection = tl.sum(value * direction)
            inverse_rms = _inverse_rms(value, eps, WIDTH)
            tl.store(projection_NS + row * num_sources + index, projection)
            tl.store(inverse_rms_NS + row * num_sources + index, inverse_rms)
            score = projection * inverse_rms
            scores = tl.where(slots == index, score, scores)
            larger = tl.maximum(largest, score)
            shrink = tl.exp(largest - larger)
            weight = tl.exp(score - larger)
            mixed = mixed * shrink + weight * value
            total = total * shrink + weight
            largest = larger
        scale = _reciprocal(total)
        mixed *= scale
        weights = tl.exp(scores - largest) * scale
        tl.store(weights_NS + row * num_sources + slots, weights, mask=slots < num_sources)
    if norm_gain_D is not None:
        norm = _inverse_rms(mixed, norm_eps, WIDTH)
        tl.store(norm_N + row, norm)
        mixed = mixed * norm * tl.load(norm_gain_D + lanes, mask=inside, other=0)
    tl.store(mixed_ND + row * WIDTH + lanes, mixed.to(STORED), mask=inside)


@triton.jit
def _through_norm(
    grad: tl.tensor, mixed: tl.tensor, gain: tl.tensor, inverse_rms: tl.tensor, WIDTH: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Of a row: the gradient of the mix, and its part of that of the norm's gain."""
    normed = mixed * inverse_rms
    scaled = grad * gain
    along = tl.sum(scaled * normed) / WIDTH
    return (scaled - normed * along) * inverse_rms, grad * normed


@triton.jit(do_not_specialize=["num_sources", "rows"])
def _backward_kernel(
    addresses_3S: tl.tensor,
    grad_ND: tl.tensor,
    direction_D: tl.tensor,
    projection_NS: tl.tensor,
    inverse_rms_NS: tl.tensor,
    weights_NS: tl.tensor,
    norm_gain_D: tl.tensor,
    norm_N: tl.tensor,
    grad_direction_PD: tl.tensor,
    grad_norm_PD: tl.tensor,
    num_sources: tl.int32,
    rows: tl.int64,
    ROWS: tl.constexpr,
    STORED: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ALIGNMENT: tl.constexpr,
) -> None:
    """ROWS rows, one after the other; the addresses are those of the sources, of the bases and of the outputs."""
    program = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK_D)
    inside = lanes < WIDTH
    grad_direction = tl.zeros([BLOCK_D], COMPUTE)
    grad_norm = tl.zeros([BLOCK_D], COMPUTE)
    sources = 1 if direction_D is None else num_sources
    for row in range(program * ROWS, tl.minimum(program * ROWS + ROWS, rows)):
        mixed = tl.zeros([BLOCK_D], COMPUTE)
        for index in range(sources):
            source = _row(tl.load(addresses_3S + index), row, STORED, WIDTH, ALIGNMENT)
            value = tl.load(source + lanes, mask=inside, other=0).to(COMPUTE)
            mixed += value if direction_D is None else tl.load(weights_NS + row * num_sources + index) * value
        grad = tl.load(grad_ND + row * WIDTH + lanes, mask=inside, other=0).to(COMPUTE)
        if norm_gain_D is not None:
            gain = tl.load(norm_gain_D + lanes, mask=inside, other=0)
            grad, grad_norm_part = _through_norm(grad, mixed, gain, tl.load(norm_N + row), WIDTH)
            grad_norm += grad_norm_part
        along_mixed = tl.sum(grad * mixed)
        for index in range(sources):
            part = grad
            if direction_D is not None:
                source = _row(tl.load(addresses_3S + index), row, STORED, WIDTH, ALIGNMENT)
                value = tl.load(source + lanes, mask=inside, other=0).to(COMPUTE)
                inverse_rms = tl.load(inverse_rms_NS + row * num_sources + index)
                weight = tl.load(weights_NS + row * num_sources + index)
                scaled = weight * (tl.sum(grad * value) - along_mixed) * inverse_rms
                # In this order nothing overflows for tiny sources.
                projection = tl.load(projection_NS + row * num_sources + index)
                shrink = scaled * (projection * inverse_rms) * (inverse_rms / WIDTH)
                grad_direction += scaled * value
                direction = tl.load(direction_D + lanes, mask=inside, other=0)
                part = weight * grad + scaled * direction - shrink * value
            base_address = tl.load(addresses_3S + num_sources + index)
            if base_address != 0:
                base = _row(base_address, row, STORED, WIDTH, ALIGNMENT)
                part += tl.load(base + lanes, mask=inside, other=0).to(COMPUTE)
            out_address = tl.load(addresses_3S + 2 * num_sources + index)
            if out_address != 0:
                out = _row(out_address, row, STORED, WIDTH, ALIGNMENT)
                tl.store(out + lanes, part.to(STORED), mask=inside)
    if direction_D is not None:
        tl.store(grad_direction_PD + program * WIDTH + lanes, grad_direction, mask=inside)
    if norm_gain_D is not None:
        tl.store(grad_norm_PD + program * WIDTH + lanes, grad_norm, mask=inside)
