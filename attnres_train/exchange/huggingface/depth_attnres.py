"""What a sublayer reads of everything before it, in every mode; plain torch, in fp32.

Part of an exported model: it imports torch and its configuration, nothing else.

Shapes: B batch, T tokens, D width, S sources, N heads over depth.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .configuration_attnres import AttnResConfig


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class DepthReader(nn.Module):
    """Reader number `reader`: a mix of the history, and what becomes of it after a sublayer. Computes in fp32."""

    def __init__(self, config: AttnResConfig, reader: int):
        super().__init__()
        numbers, partial = config.reads(reader)
        self.config, self.number, self.count = config, reader, len(numbers) + partial
        for name, (shape, value) in self._shapes().items():
            self.register_parameter(name, nn.Parameter(torch.full(shape, value)))

    def _shapes(self) -> dict[str, tuple[tuple[int, ...], float]]:
        """Shape and initial value of every parameter."""
        options, width = self.config.residual, self.config.hidden_size
        mode, is_head = options["mode"], self.number == self.config.sublayers
        if mode == "standard" or (mode == "gated" and is_head):
            return {}
        if mode == "gated":
            return {"gate": ((width,), 0.0), "gate_bias": ((1,), 4.0 if options["gate"] == "branch" else 0.0)}
        if mode == "denseformer":
            return {"coefficients": ((self.count,), 1.0)}
        if options["weights"] == "static":
            return {"logits": ((self.count, options["heads"]), 0.0)}
        rank = options["key_rank"] or width
        asks_input = options["query"] == "input"
        shapes: dict[str, tuple[tuple[int, ...], float]] = {"gain": ((width,), 1.0)}
        shapes["query_projection" if asks_input else "query"] = ((rank, width) if asks_input else (rank,), 0.0)
        if asks_input or options["key_rank"] is not None:
            shapes["key_projection"] = ((rank, width), 0.0)
        return shapes

    def _own(self, name: str) -> Tensor:
        return self.get_parameter(name).float()

    def reset(self) -> None:
        """Initial values; projections of keys are normal with variance 1/D."""
        for name, (_, value) in self._shapes().items():
            nn.init.constant_(self.get_parameter(name), value)
        if "key_projection" in self._parameters:
            nn.init.normal_(self.get_parameter("key_projection"), std=self.config.hidden_size**-0.5)

    def forward(self, history: list[Tensor], norm: RMSNorm) -> tuple[Tensor, Tensor | None]:
        """The normalised mix `[B, T, D]`, rounded once, and the weights `[S, B, T, N]`, None where nothing is weighed.

        Static weights are `[S, 1, 1, N]`.
        """
        if self.config.residual["mode"] in ("standard", "gated"):
            mixed, weights = history[-1].float(), None
        else:
            # All sources at once: of one token, as when text is written, each operation costs more than its numbers.
            values = torch.stack(history).float()
            weights = self._weights(values)
            mixed = (weights.unsqueeze(-1) * values.unflatten(-1, (weights.shape[-1], -1))).sum(0).flatten(-2)
        normed = mixed / rms(mixed, self._norm_eps(norm.eps)) * norm.weight.float()
        return normed.to(history[0].dtype), weights

    def _norm_eps(self, eps: float) -> float:
        """`norm_of` the sum: what the norm of the sum adds, scaled to the share of it that the mix starts as."""
        options = self.config.residual
        if options["norm_of"] == "mix":
            return eps
        return eps * (0.5 if options["weights"] == "sigmoid" else 1 / self.count) ** 2

    def _weights(self, values: Tensor) -> Tensor:
        options = self.config.residual
        if options["mode"] == "denseformer":
            return self._own("coefficients").view(-1, 1, 1, 1)
        scores = self._scores(values) / options["temperature"]
        return scores.sigmoid() if options["weights"] == "sigmoid" else scores.softmax(0)

    def _scores(self, values: Tensor) -> Tensor:
        """`[S, B, T, N]`: each source as a key, met by the query; a head scores its part of the keys."""
        options, eps = self.config.residual, self.config.rms_norm_eps
        if options["weights"] == "static":
            return self._own("logits")[:, None, None, :]
        keys = values / rms(values, eps) if options["key_norm"] else values
        keys = keys * self._own("gain")
        if "key_projection" in self._parameters:
            keys = keys @ self._own("key_projection").T
        if options["query"] == "input":
            newest = values[-1] / rms(values[-1], eps)
            query = newest @ self._own("query_projection").T / keys.shape[-1] ** 0.5
        else:
            query = self._own("query")
        return (query * keys).unflatten(-1, (options["heads"], -1)).sum(-1)

    def write(self, history: list[Tensor], read: Tensor, output: Tensor) -> list[Tensor]:
        """The history after the sublayer turned what it read into `output`: what the next reader sees."""
        numbers, partial = self.config.reads(self.number)
        if self.config.residual["mode"] == "gated":
            total = self._gated(history[-1], read, output)
        else:
            total = history[-1] + output if partial else output
        held = dict(zip(numbers, history, strict=False))
        if (completed := self.config.completes(self.number)) is not None:
            held[completed] = total
        next_numbers, next_partial = self.config.reads(self.number + 1)
        return [held[number] for number in next_numbers] + [total] * next_partial

    def _gated(self, stream: Tensor, read: Tensor, output: Tensor) -> Tensor:
        gate = ((read.float() @ self._own("gate")).unsqueeze(-1) + self._own("gate_bias")).sigmoid()
        kept = (1 - gate) * stream if self.config.residual["gate"] == "highway" else stream
        return (kept + gate * output).to(output.dtype)


def rms(value: Tensor, eps: float) -> Tensor:
    """sqrt(mean(value^2) + eps) over the last dimension, which stays with one entry.

    By hypot: the derivative of rsqrt holds rms^-3, which underflows in fp32.
    """
    root_mean = torch.linalg.vector_norm(value, dim=-1, keepdim=True) / value.shape[-1] ** 0.5
    return torch.hypot(root_mean, value.new_tensor(eps).sqrt())
