"""A source: one output that readers look at, and the one buffer that their gradients add up in.

A source is read by every later sublayer. Left to autograd, each reader makes a fresh gradient tensor and each
but the first is added to the sum by one more pass: traffic that is quadratic in depth for Full. Here every
consumer *deposits* into one buffer instead, and the node that opened the source hands the sum on:

    producer -> [open] -> value -> readers, the running sum, the wire
                  |                   |
                  +--- total <--- GradientBuffer <--- deposits, in the order autograd runs the consumers

The graph still has an edge from each consumer to the opening node, so autograd runs that node last; the edge
carries no gradient. A consumer that is plain autograd code reads through `tap`, whose backward is the deposit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Target(NamedTuple):
    """Where a kernel writes: `out = base + contribution`, or the contribution alone where `base` is None.

    `base` may be `out` itself. All are contiguous.
    """

    base: Tensor | None
    out: Tensor


class GradientBuffer:
    """The gradient of one source so far. Sums in the order of the deposits, in the source's dtype."""

    def __init__(self) -> None:
        self.deposits = 0
        """Gradients that have arrived, for the account of the transport."""
        self._total: Tensor | None = None
        self._owned = False

    def target(self, like: Tensor) -> Target:
        """Where a kernel adds its contribution; it must then do so."""
        self.deposits += 1
        base = self._total
        if base is None or not self._owned:
            # A borrowed gradient may be shared with other branches of the graph: never written to.
            self._total = torch.empty_like(like, memory_format=torch.contiguous_format)
            self._owned = True
        assert self._total is not None
        return Target(base, self._total)

    def deposit(self, gradient: Tensor, release: Callable[[Tensor], None] | None = None) -> None:
        """Add `gradient`. It stays the caller's, unless `release` is given: then it is either kept, and later ones
        are added into it, or released once it has been added."""
        self.deposits += 1
        if self._total is None:
            self._total, self._owned = gradient.contiguous(), release is not None
            return
        if self._owned:
            self._total += gradient
        else:
            self._total, self._owned = self._total + gradient, True
        if release is not None:
            release(gradient)

    def take(self) -> Tensor | None:
        """The sum, None if nothing was deposited; the buffer is empty afterwards."""
        total, self._total, self._owned = self._total, None, False
        return total


@dataclass(frozen=True)
class Source:
    """`value`, `[..., D]`, and the buffer of its gradient; `gradient` is None where none is wanted."""

    value: Tensor
    gradient: GradientBuffer | None

    @classmethod
    def open(cls, tensor: Tensor) -> Source:
        """`tensor` as a source. All its later consumers must go through the source."""
        if not (torch.is_grad_enabled() and tensor.requires_grad):
            return cls(tensor, None)
        buffer = GradientBuffer()
        return cls(_Open.apply(tensor, buffer), buffer)

    @classmethod
    def leaf(cls, tensor: Tensor, buffer: GradientBuffer | None = None) -> Source:
        """`tensor`, computed elsewhere, as a source whose gradient waits in `buffer` (None makes one) to be taken."""
        if not torch.is_grad_enabled():
            return cls(tensor, None)
        return cls(tensor.detach().requires_grad_(), GradientBuffer() if buffer is None else buffer)

    def tap(self, release: Callable[[Tensor], None] | None = None) -> Tensor:
        """The value for one consumer in plain autograd code; its gradient is deposited, with `release`."""
        return self.value if self.gradient is None else _Tap.apply(self.value, self.gradient, release)


class _Open(torch.autograd.Function):
    """Identity; backward returns what was deposited."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, buffer: GradientBuffer) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.buffer = buffer
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, None]:
        if grad_outputs[0] is not None:
            ctx.buffer.deposit(grad_outputs[0])
        return ctx.buffer.take(), None


class _Tap(torch.autograd.Function):
    """Identity; backward deposits, and sends nothing along the edge."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, buffer: GradientBuffer, release: Callable[[Tensor], None] | None) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.buffer, ctx.release = buffer, release
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[None, None, None]:
        if grad_outputs[0] is not None:
            ctx.buffer.deposit(grad_outputs[0], ctx.release)
        return None, None, None
