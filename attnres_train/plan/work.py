"""What one micro-batch asks of one tensor rank on one stage: FLOPs, bytes, operations, messages, told apart by kind.

Of n tokens, width D, key/value width K, MLP width F, vocabulary V, window T, t tensor ranks, elements of e bytes:

    layers      2 FLOPs a matrix parameter and token, over t; backward twice that
    attention   2 D T FLOPs a token (causal: half of T is seen), over t; backward 2.5 times that, as flash attention
                makes the scores again (arXiv 2307.08691, section 3)
    depth       a reader of S sources reads them and writes the mix: S + 1 slices of n D e bytes; backward reads them
                and the incoming gradient, reads and writes S gradients, and writes the mix's again: 3 S + 2
    head        2 V D FLOPs a token, over t; cross-entropy moves bytes of its logits
    elements    what is neither: rotary, SwiGLU, the norms of q and k, additions to the running sum
    gradients   each weight's gradient of the micro-batch is added to its fp32 sum

Sequence parallelism divides the depth mix and the additions by t, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import add
from typing import NamedTuple

from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.modes.choose import mode_of
from attnres_train.model.cost import Cost
from attnres_train.plan.memory import spans_of
from attnres_train.setup import FP32_BYTES, Setup

ATTENTION_BACKWARD = 2.5
"""Backward of flash attention over its forward: five products against two."""
PLAIN_TORCH_PASSES = 3
"""Passes over memory that plain torch makes where a kernel makes one, for residual modes that have no kernel."""
ELEMENTS_BACKWARD = 2.0
"""Elementwise bytes of backward over forward: every product has two gradients."""
# Bytes a logit; fp32 softmax in torch (t = 1) and in megatron-core's vocabulary-parallel cross-entropy.
SOFTMAX_FORWARD_BYTES = 8
SOFTMAX_BACKWARD_BYTES = 16
PARALLEL_SOFTMAX_FORWARD_BYTES = 36
PARALLEL_SOFTMAX_BACKWARD_BYTES = 20
CAST_BYTES = 6
"""A bf16 logit to fp32, or back."""
OPERATIONS_BACKWARD = 2.0
"""Operations of backward over forward, gradient sums included."""


class Work(NamedTuple):
    """A sum of work. `*_flops` and `*_bytes` of computing; `operations` of the host; collectives of the tensor ranks
    by kind, in bytes of the whole tensor and in number."""

    layer_flops: float = 0.0
    attention_flops: float = 0.0
    head_flops: float = 0.0
    head_bytes: float = 0.0
    depth_bytes: float = 0.0
    element_bytes: float = 0.0
    gradient_bytes: float = 0.0
    operations: float = 0.0
    all_reduce_bytes: float = 0.0
    reduce_scatter_bytes: float = 0.0
    all_gather_bytes: float = 0.0
    collectives: float = 0.0

    def __add__(self, other: Work) -> Work:  # type: ignore[override]
        return Work._make(map(add, self, other))


@dataclass(frozen=True)
class StageWork:
    """Of one visit to a stage. `again` is forward work that backward repeats, told apart from its own."""

    forward: Work
    backward: Work
    again: Work


@lru_cache(maxsize=16)
def source_counts(layout: DepthLayout) -> tuple[int, ...]:
    """What every reader reads, the head's last; the standard residual is one source."""
    return tuple(max(1, layout.reads(reader).count) for reader in range(layout.num_sublayers + 1))


class Worker:
    """Work of every stage of a setup."""

    def __init__(self, setup: Setup):
        self.setup, self.wire, self.costs = setup, setup.wire, setup.costs
        self.tensor, self.shards = setup.config.parallel.tensor, setup.shards
        self.tokens, self.element = setup.micro_batch_tokens, setup.element_bytes
        self.whole_slice_bytes = self.tokens * setup.config.model.hidden_size * self.element
        """Of the tokens of all shards."""

    def stages(self) -> tuple[StageWork, ...]:
        """Of every global stage."""
        return tuple(self._stage(stage) for stage in range(self.wire.num_stages))

    def least(self) -> Work:
        """Of one micro-batch through the whole model, forward and backward: what any split has to share out."""
        layers = self.costs.of_layers(range(self.setup.config.model.num_layers))
        sources = source_counts(self.wire.layout)
        work = self._forward(layers) + self._backward(layers) + self._reads(sources) + self._reads_backward(sources)
        if self.setup.config.training.recompute in ("layer", "block"):
            work = work + self._forward(layers)
        return work + self._head + self._head_backward

    def tensor_bytes(self) -> float:
        """That the tensor ranks of the busiest pipeline rank reduce for one micro-batch, as an all-reduce counts them:
        the gather and the scatter that stand in its place are half of it each."""
        stages = [visit.forward + visit.backward + visit.again for visit in self.stages()]
        bytes_ = [work.all_reduce_bytes + (work.all_gather_bytes + work.reduce_scatter_bytes) / 2 for work in stages]
        return max(sum(bytes_[stage] for stage in self.wire.stages_of(rank)) for rank in range(self.wire.pipeline))

    def _stage(self, stage: int) -> StageWork:
        layers, readers = self.costs.of_layers(self.setup.layers_of(stage)), self.wire.readers(stage)
        sources = source_counts(self.wire.layout)[readers.start : readers.stop]
        inside = sources[: 2 * self.wire.layers_per_stage[stage]]
        forward = self._forward(layers) + self._reads(inside)
        backward = self._backward(layers) + self._reads_backward(inside)
        again = self._again(stage, forward, inside)
        if self.setup.is_last(stage):
            head = sources[len(inside) :]
            forward = forward + self._reads(head) + self._head
            backward = backward + self._reads_backward(head) + self._head_backward
        if stage == 0:
            forward = forward + self._embedding
        held = self.setup.stages[stage].held(self.tensor)
        tables = self.setup.padded_vocabulary * self.setup.config.model.hidden_size // self.tensor if stage == 0 else 0
        # The gradient is read, its sum read and written; that of the embedding is first filled with zeros.
        gradients = Work(gradient_bytes=held * (self.element + 2 * FP32_BYTES) + tables * self.element)
        return StageWork(forward, backward + gradients, again)

    def _again(self, stage: int, layers: Work, sources: Sequence[int]) -> Work:
        if self.setup.config.training.recompute == "depth":
            return self._reads(sources)
        return layers if spans_of(self.setup, stage) else Work()

    def _forward(self, cost: Cost) -> Work:
        passes = cost.passes.divided / self.tensor + cost.passes.whole / self.shards
        attention = cost.attention_flops(self.setup.config.training.sequence_length)
        compute = Work(
            layer_flops=2 * cost.matrices * self.tokens / self.tensor,
            attention_flops=attention * self.tokens / self.tensor,
            element_bytes=self.tokens * self.element * passes,
            operations=cost.operations,
        )
        return compute + self._collectives(cost.gathers, cost.scatters)

    def _backward(self, cost: Cost) -> Work:
        forward = self._forward(cost)
        compute = Work(
            layer_flops=2 * forward.layer_flops,
            attention_flops=ATTENTION_BACKWARD * forward.attention_flops,
            element_bytes=ELEMENTS_BACKWARD * forward.element_bytes,
            operations=OPERATIONS_BACKWARD * forward.operations,
        )
        return compute + self._collectives_backward(cost)

    def _collectives_backward(self, cost: Cost) -> Work:
        """With sequence shards megatron-core gathers the input of column-parallel products once more."""
        return self._collectives(cost.scatters + cost.gathers * (self.shards > 1), cost.gathers)

    def _collectives(self, gathers: int, scatters: int) -> Work:
        """Of the tensor ranks: `gathers` and `scatters` with sequence shards, else an all-reduce for each scatter."""
        if self.tensor == 1:
            return Work()
        if self.shards == 1:
            return Work(all_reduce_bytes=scatters * self.whole_slice_bytes, collectives=scatters)
        return Work(
            all_gather_bytes=gathers * self.whole_slice_bytes,
            reduce_scatter_bytes=scatters * self.whole_slice_bytes,
            collectives=gathers + scatters,
        )

    def _reads(self, sources: Sequence[int]) -> Work:
        slices = sum(count + 1 for count in sources)
        return Work(depth_bytes=self._passes * slices * self.whole_slice_bytes / self.shards)

    def _reads_backward(self, sources: Sequence[int]) -> Work:
        slices = sum(3 * count + 2 for count in sources)
        return Work(depth_bytes=self._passes * slices * self.whole_slice_bytes / self.shards)

    @cached_property
    def _passes(self) -> int:
        config = self.setup.config
        return 1 if mode_of(config.residual, config.model.norm_eps).has_kernel else PLAIN_TORCH_PASSES

    @cached_property
    def _embedding(self) -> Work:
        """Every tensor rank looks all tokens up, whoever keeps them."""
        cost = self.costs.embedding
        bytes_ = self.tokens * self.element * cost.passes.whole
        return Work(element_bytes=bytes_, operations=cost.operations) + self._collectives(cost.gathers, cost.scatters)

    @cached_property
    def _head(self) -> Work:
        bytes_each = SOFTMAX_FORWARD_BYTES if self.tensor == 1 else PARALLEL_SOFTMAX_FORWARD_BYTES
        return self._logits(1, bytes_each) + self._collectives(self.costs.head.gathers, self.costs.head.scatters)

    @cached_property
    def _head_backward(self) -> Work:
        bytes_each = SOFTMAX_BACKWARD_BYTES if self.tensor == 1 else PARALLEL_SOFTMAX_BACKWARD_BYTES
        return self._logits(2, bytes_each) + self._collectives_backward(self.costs.head)

    def _logits(self, products: int, bytes_each: int) -> Work:
        cost, logits = self.costs.head, self.tokens * self.setup.padded_vocabulary / self.tensor
        cast = CAST_BYTES if self.element < FP32_BYTES else 0
        return Work(
            head_flops=products * 2 * cost.matrices * self.tokens / self.tensor,
            head_bytes=logits * (bytes_each + cast),
            operations=products * cost.operations,
        )
