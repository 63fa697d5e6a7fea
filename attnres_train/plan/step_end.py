"""Seconds of what follows the schedule of a step: gradients over the data ranks, the update, weights over them again.

Gradients are not reduced while backward runs (`engine/megatron.py`); ZeRO-2 and ZeRO-3 reduce those of every
micro-batch, and are charged for them here.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.config.run_config import RunConfig
from attnres_train.plan.links import Links
from attnres_train.plan.memory import StageParameters
from attnres_train.plan.speeds import Rates
from attnres_train.plan.units import FP32_BYTES, element_bytes

ADAM_BYTES = 28
"""An element of AdamW: weight, gradient and both moments read, weight and moments written, fp32."""
NORM_AND_CLIP_BYTES = 12
"""The gradient read for the norm, read and written by the clipping."""
WHOLE_GRADIENT_BYTES = 12
"""The whole fp32 gradient filled with zeros, and divided by the count of tokens."""
OFFLOAD_BYTES_PER_SECOND = 10e9
"""Of an update in host memory, per rank: DeepSpeed's CPU Adam with its copies over PCIe; an assumption."""


@dataclass(frozen=True)
class EndSeconds:
    """Of one rank: all reduce their gradients, meet for the norm of all of them, then update and gather."""

    reduce: float
    update: float
    gather: float


@dataclass(frozen=True)
class StepEnd:
    """The end of a step of `micro_batches`, whose stages have `parameters`."""

    config: RunConfig
    padded_vocabulary: int
    parameters: tuple[StageParameters, ...]
    micro_batches: int
    links: Links
    rates: Rates

    def seconds(self, rank: int) -> EndSeconds:
        """Of pipeline rank `rank`."""
        return EndSeconds(self._reduce_seconds(rank), self._update_seconds(rank), self._gather_seconds(rank))

    def _reduce_seconds(self, rank: int) -> float:
        """Of the gradients: over the data ranks, and of a tied table over the two ends of the pipeline."""
        (near, far), wire = self.links.between_data_ranks(), self.links.wire
        seconds = 0.0
        if self.links.data > 1:
            rate = self.links.data_rate(near.reduce_scatter_bytes_per_second, far.reduce_scatter_bytes_per_second)
            seconds += self._reductions * FP32_BYTES * self._held(rank) * self._ring / rate
            seconds += near.collective_latency_seconds
        if self.config.model.tie_embeddings and wire.pipeline > 1 and rank in (0, wire.pipeline - 1):
            table = self.padded_vocabulary * self.config.model.hidden_size // self.links.tensor
            seconds += FP32_BYTES * table / self.links.into(wire.num_stages - 1).all_reduce_bytes_per_second
        return seconds

    def _update_seconds(self, rank: int) -> float:
        """Of the norm, the clipping and AdamW, on what the rank owns; its whole gradient is cleared, too."""
        held, deepspeed = self._held(rank), self.config.engine.deepspeed
        copied = 0 if self.config.training.precision == "fp32" else FP32_BYTES + element_bytes(self.config)
        own = held / self.links.data * (ADAM_BYTES + NORM_AND_CLIP_BYTES + copied)
        offloaded = self.config.engine.kind == "deepspeed" and deepspeed.offload_optimizer
        rate = OFFLOAD_BYTES_PER_SECOND if offloaded else self.rates.optimizer_bytes_per_second
        return own / rate + held * WHOLE_GRADIENT_BYTES / self.rates.memory_bytes_per_second

    def _gather_seconds(self, rank: int) -> float:
        """Of the new weights over the data ranks."""
        if self.links.data == 1:
            return 0.0
        near, far = self.links.between_data_ranks()
        rate = self.links.data_rate(near.all_gather_bytes_per_second, far.all_gather_bytes_per_second)
        weights = element_bytes(self.config) * self._held(rank)
        return self._gathers * weights * self._ring / rate + near.collective_latency_seconds

    def _held(self, rank: int) -> int:
        return sum(self.parameters[s].held(self.links.tensor) for s in self.links.wire.stages_of(rank))

    @property
    def _ring(self) -> float:
        return (self.links.data - 1) / self.links.data

    @property
    def _zero_stage(self) -> int:
        return self.config.engine.deepspeed.zero_stage if self.config.engine.kind == "deepspeed" else 1

    @property
    def _reductions(self) -> int:
        """ZeRO-2 and ZeRO-3 reduce the gradients of every micro-batch."""
        return self.micro_batches if self._zero_stage > 1 else 1

    @property
    def _gathers(self) -> int:
        """ZeRO-3 gathers the weights for every forward and every backward."""
        return 2 * self.micro_batches if self._zero_stage > 2 else 1
