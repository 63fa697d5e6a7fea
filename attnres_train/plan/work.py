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

from attnres_train.config.run_config import RunConfig
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.modes.choose import mode_of
from attnres_train.model.size import costs_of
from attnres_train.parallel.wire import WirePlan
from attnres_train.plan.memory import StageParameters, spans_of
from attnres_train.plan.units import element_bytes

ATTENTION_BACKWARD = 2.5
"""Backward of flash attention over its forward: five products against two."""
PLAIN_TORCH_PASSES = 3
"""Passes over memory that plain torch makes where a kernel makes one, for residual modes that have no kernel."""
# Elements that torch's unfused operations read and write, a token; megatron-core 0.16.1 without TransformerEngine.
ROTARY_PASSES = 9
"""Over q and k: rotate half (copy, negate), two products, one sum."""
HEAD_NORM_PASSES = 4
"""Over q and k, with `qk_norm`."""
SWIGLU_PASSES = 5
"""Over F: silu reads and writes, the product reads two and writes one."""
COPY_PASSES = 2
"""Over D: the attention kernel's output into rows."""
ADD_PASSES = 3
"""Over D, each sublayer: its output joins the running sum."""
ELEMENTS_BACKWARD = 2.0
"""Elementwise bytes of backward over forward: every product has two gradients."""
# Bytes a logit; fp32 softmax in torch (t = 1) and in megatron-core's vocabulary-parallel cross-entropy.
SOFTMAX_FORWARD_BYTES = 8
SOFTMAX_BACKWARD_BYTES = 16
PARALLEL_SOFTMAX_FORWARD_BYTES = 36
PARALLEL_SOFTMAX_BACKWARD_BYTES = 20
CAST_BYTES = 6
"""A bf16 logit to fp32, or back."""
LAYER_OPERATIONS = 70
"""Operations of torch in the forward of a layer, an estimate: they weigh only where layers are small."""
HEAD_OPERATIONS = 15
OPERATIONS_BACKWARD = 2.0
"""Operations of backward over forward, gradient sums included."""


@dataclass(frozen=True)
class Work:
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

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(self.values, other.values, strict=True)))

    def __mul__(self, factor: float) -> Work:
        return Work(*(factor * value for value in self.values))

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(vars(self).values())  # in the order of the fields, in which they were set


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
    """Work of every stage of `wire`, for a checked configuration.

    Layers are alike but for what they read, so that the work of one is counted once.
    """

    def __init__(
        self, config: RunConfig, padded_vocabulary: int, wire: WirePlan, parameters: tuple[StageParameters, ...]
    ):
        self.config, self.wire, self.padded, self.parameters = config, wire, padded_vocabulary, parameters
        self.tensor = config.parallel.tensor
        self.shards = self.tensor if config.parallel.sequence else 1
        self.tokens = config.training.sequence_length * config.training.micro_batch_size
        self.element = element_bytes(config)
        self.slice_bytes = self.tokens * config.model.hidden_size * self.element

    def stages(self) -> tuple[StageWork, ...]:
        """Of every global stage."""
        return tuple(self._stage(stage) for stage in range(self.wire.num_stages))

    def least(self) -> Work:
        """Of one micro-batch through the whole model, forward and backward: what any split has to share out."""
        layers = self.config.model.num_layers
        sources = source_counts(self.wire.layout)
        work = (self._layer + self._layer_backward) * layers + self._reads(sources) + self._reads_backward(sources)
        if self.config.training.recompute in ("layer", "block"):
            work = work + self._layer * layers
        return work + self._head + self._head_backward

    def tensor_bytes(self) -> float:
        """That the tensor ranks of the busiest pipeline rank reduce for one micro-batch, as an all-reduce counts them:
        the gather and the scatter that stand in its place are half of it each."""
        stages = [visit.forward + visit.backward + visit.again for visit in self.stages()]
        bytes_ = [work.all_reduce_bytes + (work.all_gather_bytes + work.reduce_scatter_bytes) / 2 for work in stages]
        return max(sum(bytes_[stage] for stage in self.wire.stages_of(rank)) for rank in range(self.wire.pipeline))

    def _stage(self, stage: int) -> StageWork:
        layers, last = self.wire.layers_per_stage[stage], stage == self.wire.num_stages - 1
        readers = self.wire.readers(stage)
        sources = source_counts(self.wire.layout)[readers.start : readers.stop]
        inside, head = sources[: 2 * layers], sources[2 * layers :]
        forward = self._layer * layers + self._reads(inside)
        backward = self._layer_backward * layers + self._reads_backward(inside)
        again = self._again(stage, forward, inside)
        if last:
            forward = forward + self._reads(head) + self._head
            backward = backward + self._reads_backward(head) + self._head_backward
        if stage == 0:
            forward = forward + self._embedding
        held = self.parameters[stage].held(self.tensor)
        tables = self.padded * self.config.model.hidden_size // self.tensor if stage == 0 else 0
        # The gradient is read, its sum read and written; that of the embedding is first filled with zeros.
        gradients = Work(gradient_bytes=held * (self.element + 8) + tables * self.element)
        return StageWork(forward, backward + gradients, again)

    def _again(self, stage: int, layers: Work, sources: Sequence[int]) -> Work:
        if self.config.training.recompute == "depth":
            return self._reads(sources)
        return layers if spans_of(self.config, self.wire, stage) else Work()

    @cached_property
    def _layer(self) -> Work:
        model, n, t, e = self.config.model, self.tokens, self.tensor, self.element
        width, heads = model.hidden_size, model.hidden_size + model.query_groups * model.head_size
        divided = ROTARY_PASSES * heads + COPY_PASSES * width + SWIGLU_PASSES * model.ffn_hidden_size
        divided += HEAD_NORM_PASSES * heads if model.qk_norm else 0
        whole = 2 * ADD_PASSES * width
        compute = Work(
            layer_flops=2 * costs_of(model, self.padded).all_layers.matrices // model.num_layers * n / t,
            attention_flops=2 * width * self.config.training.sequence_length * n / t,
            element_bytes=n * e * (divided / t + whole / self.shards),
            operations=LAYER_OPERATIONS,
        )
        return compute + self._collectives(gathers=2, scatters=2)

    @cached_property
    def _layer_backward(self) -> Work:
        forward = self._layer
        compute = Work(
            layer_flops=2 * forward.layer_flops,
            attention_flops=ATTENTION_BACKWARD * forward.attention_flops,
            element_bytes=ELEMENTS_BACKWARD * forward.element_bytes,
            operations=OPERATIONS_BACKWARD * LAYER_OPERATIONS,
        )
        # With sequence shards megatron-core gathers the input of both column-parallel products once more.
        return compute + self._collectives(gathers=2 + 2 * (self.shards > 1), scatters=2)

    def _collectives(self, gathers: int, scatters: int) -> Work:
        """Of the tensor ranks: `gathers` and `scatters` with sequence shards, else an all-reduce for each scatter."""
        if self.tensor == 1:
            return Work()
        if self.shards == 1:
            return Work(all_reduce_bytes=scatters * self.slice_bytes, collectives=scatters)
        return Work(
            all_gather_bytes=gathers * self.slice_bytes,
            reduce_scatter_bytes=scatters * self.slice_bytes,
            collectives=gathers + scatters,
        )

    def _reads(self, sources: Sequence[int]) -> Work:
        slices = sum(count + 1 for count in sources)
        return Work(depth_bytes=self._passes * slices * self.slice_bytes / self.shards)

    def _reads_backward(self, sources: Sequence[int]) -> Work:
        slices = sum(3 * count + 2 for count in sources)
        return Work(depth_bytes=self._passes * slices * self.slice_bytes / self.shards)

    @property
    def _passes(self) -> int:
        mode = mode_of(self.config.residual, self.config.model.norm_eps)
        return 1 if mode.has_kernel else PLAIN_TORCH_PASSES

    @cached_property
    def _embedding(self) -> Work:
        return Work(element_bytes=2 * self.slice_bytes, operations=4) + self._collectives(gathers=0, scatters=1)

    @cached_property
    def _head(self) -> Work:
        bytes_each = SOFTMAX_FORWARD_BYTES if self.tensor == 1 else PARALLEL_SOFTMAX_FORWARD_BYTES
        return self._logits(1, bytes_each) + self._collectives(gathers=1, scatters=0)

    @cached_property
    def _head_backward(self) -> Work:
        bytes_each = SOFTMAX_BACKWARD_BYTES if self.tensor == 1 else PARALLEL_SOFTMAX_BACKWARD_BYTES
        return self._logits(2, bytes_each) + self._collectives(gathers=1 * (self.shards > 1), scatters=1)

    def _logits(self, products: int, bytes_each: int) -> Work:
        logits = self.tokens * self.padded / self.tensor
        cast = CAST_BYTES if self.element == 2 else 0
        return Work(
            head_flops=products * 2 * logits * self.config.model.hidden_size,
            head_bytes=logits * (bytes_each + cast),
            operations=products * HEAD_OPERATIONS,
        )
