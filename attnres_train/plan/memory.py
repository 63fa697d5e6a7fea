"""Parameters and memory of every rank, as plain arithmetic.

The estimate counts the tensors that stand in memory while a step runs. It leaves out what libraries below torch take
for themselves: the allocator's fragments, the CUDA context, NCCL's own buffers. Take a tenth on top.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnres_train.config.run_config import RunConfig
from attnres_train.depth.layout import DepthLayout
from attnres_train.model.describe import describe
from attnres_train.parallel.schedule import Schedule
from attnres_train.parallel.wire import WirePlan
from attnres_train.plan.buffers import momentary_bytes, pool_bytes
from attnres_train.plan.state import StateBytes, state_bytes
from attnres_train.plan.units import element_bytes, wire_slice_bytes

_FP32_BYTES = 4


@dataclass(frozen=True)
class StageParameters:
    """Parameters of one pipeline stage, whole, by how ranks hold them."""

    divided: int
    """Matrices, of which every tensor rank holds its share."""
    replicated: int
    """Norm gains, whole on every tensor rank."""
    depth: int
    """Those of the depth readers, whole on every tensor rank and always fp32."""
    tied_copy: int
    """The last stage's copy of a tied embedding; counted with the first stage, held by both."""

    @property
    def counted(self) -> int:
        """Each parameter once; over all stages these sum to the model's total."""
        return self.divided + self.replicated + self.depth

    def held(self, tensor: int) -> int:
        """What one of `tensor` ranks holds, copies included."""
        return (self.divided + self.tied_copy) // tensor + self.replicated + self.depth


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of the pipeline rank that needs most, by kind; the tensor and data ranks beside it need the same.

    `depth_history` is what arrived over the wire and waits for its backward, with the gradients of one visit and
    those that wait for an earlier stage's; sources made on the rank itself are among `activations`. `buffers` is what
    else stands at the peak (`buffers.py`). `host` is in the memory of the host, beside the others: what
    `offload_optimizer` puts there.
    """

    rank: int
    weights: int
    gradients: int
    masters: int
    moments: int
    activations: int
    depth_history: int
    buffers: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        return sum(self.kinds().values())

    def kinds(self) -> dict[str, int]:
        """Bytes on the device by kind, without the total."""
        return {name: value for name, value in vars(self).items() if name not in ("rank", "host")}


@dataclass(frozen=True)
class _Visit:
    """Bytes that one micro-batch keeps on one stage from its forward to its backward."""

    activations: int
    history: int
    owed: int
    """Gradients that stand from that backward to the one of the rank's stage before."""


def stage_parameters(config: RunConfig, padded_vocabulary: int, wire: WirePlan) -> tuple[StageParameters, ...]:
    """Of every global stage: its layers, on the first the embedding, on the last the head."""
    said = describe(config.model, config.residual, padded_vocabulary, padded_vocabulary)
    stages = []
    for stage in range(wire.num_stages):
        first = wire.first_sublayer(stage) // 2
        layers = range(first, first + wire.layers_per_stage[stage])
        tensors = said.stage(layers, stage == 0, stage == wire.num_stages - 1)
        stages.append(
            StageParameters(
                divided=sum(t.size for t in tensors if t.divided and t.owned),
                replicated=sum(t.size for t in tensors if not t.divided and not t.fp32),
                depth=sum(t.size for t in tensors if t.fp32),
                tied_copy=sum(t.size for t in tensors if not t.owned),
            )
        )
    return tuple(stages)


def worst_rank_memory(
    config: RunConfig,
    padded_vocabulary: int,
    wire: WirePlan,
    micro_batches: int,
    data: int,
    ranks: Sequence[int] | None = None,
    state_of: Callable[[int], StateBytes] | None = None,
) -> MemoryPlan:
    """The pipeline rank with the largest total; of `ranks` alone, if given.

    `state_of` gives the state of a rank to a caller who has counted it before; None counts it.
    """
    schedule = schedule_of(config, micro_batches)
    plans = []
    for rank in range(wire.pipeline) if ranks is None else ranks:
        mine = wire.stages_of(rank)
        visits = [_visit(config, padded_vocabulary, wire, stage) for stage in mine]
        activations, history = _at_peak(visits, schedule, rank)
        activations += max(_made_again_bytes(config, wire, stage) for stage in mine)
        returning = max(_returning_bytes(config, wire, stage) for stage in mine)
        state = state_of(rank) if state_of else state_bytes(config, padded_vocabulary, wire, rank, data)
        buffers = state.padding + max(momentary_bytes(config, padded_vocabulary, wire, stage) for stage in mine)
        plans.append(
            MemoryPlan(
                rank,
                state.weights,
                state.gradients,
                state.masters,
                state.moments,
                activations=activations,
                depth_history=history + returning,
                buffers=buffers + pool_bytes(config, wire, rank),
                host=state.host,
            )
        )
    return max(plans, key=lambda plan: plan.total)


def schedule_of(config: RunConfig, micro_batches: int) -> Schedule:
    """The schedule of a step; it repeats after every group, so a few groups show the peak of any number."""
    parallel = config.parallel
    group = parallel.micro_batch_group or parallel.pipeline
    return Schedule(parallel.pipeline, parallel.virtual, min(micro_batches, 4 * group), group)


def _visit(config: RunConfig, padded_vocabulary: int, wire: WirePlan, stage: int) -> _Visit:
    """What autograd keeps of one micro-batch on `stage`; the depth mix before its norm is always made again.

    A token keeps, in elements, of width D, key/value width K and MLP width F, on each of t tensor ranks:

        each sublayer   the new partial or source:  D
        its input       the normalised mix, unless recompute is `depth`:  D
        attention       q, k, v; q and k rotated; the kernel's output, and its transpose:  (4 D + 3 K) / t
        with QK norm    what it normalises:  (D + K) / t
        MLP             the stacked gate and up, silu, up again, and their product:  5 F / t
        head            the normalised mix:  D
        logits          their softmax in fp32, over vocabulary / t

    and three fp32 scalars a source that a reader reads, one for a norm. Sequence parallelism divides what has no t
    by t, too. With recompute `layer` or `block` only what leaves each span of layers stands: complete sources, and
    the partial where a block is open.

    Isolated documents add their lengths alone: there is no mask. This is the published attention over depth and the
    standard residual. The other modes run in plain torch and
    keep more: fp32 copies of what they read.
    """
    spans, readers = spans_of(config, wire, stage), wire.readers(stage)
    if spans:
        kept = _Elements(sum(_leaves(wire.layout, span) for span in spans) * config.model.hidden_size, 0)
        readers = readers[2 * wire.layers_per_stage[stage] :]  # the head's, if any, is in no span
    else:
        kept = _whole_layers(config, wire.layers_per_stage[stage])
    ends = (stage == 0) + (stage == wire.num_stages - 1)
    kept = _Elements(kept.whole + ends * config.model.hidden_size, kept.divided)
    logits_bytes = padded_vocabulary * _FP32_BYTES if stage == wire.num_stages - 1 else 0
    one_slice = wire_slice_bytes(config)
    activations = _bytes(
        config, kept, whole_extra=_FP32_BYTES * _depth_scalars(wire.layout, readers), divided_extra=logits_bytes
    )
    return _Visit(activations, wire.received_slices(stage) * one_slice, wire.owed_slices(stage) * one_slice)


@dataclass(frozen=True)
class _Elements:
    """Elements a token: on every tensor rank (or, sequence-parallel, divided as well), and divided over them."""

    whole: int
    divided: int


def _whole_layers(config: RunConfig, layers: int) -> _Elements:
    """What `layers` layers keep if nothing but, perhaps, their mix is made again."""
    model = config.model
    width, key_value = model.hidden_size, model.query_groups * model.head_size
    inputs = 0 if config.training.recompute == "depth" else 2
    divided = 4 * width + 3 * key_value + 5 * model.ffn_hidden_size
    divided += width + key_value if model.qk_norm else 0
    return _Elements((2 + inputs) * width * layers, divided * layers)


def spans_of(config: RunConfig, wire: WirePlan, stage: int) -> list[range]:
    first = wire.first_sublayer(stage) // 2
    layers = range(first, first + wire.layers_per_stage[stage])
    return wire.layout.spans(layers, config.training.recompute)


def _leaves(layout: DepthLayout, span: range) -> int:
    """Slices that leave a span of layers and have not entered it: sources, and the partial of an open block."""
    completed = layout.sources_before(2 * span.stop) - layout.sources_before(2 * span.start)
    return completed + layout.partial_before(2 * span.stop)


def _made_again_bytes(config: RunConfig, wire: WirePlan, stage: int) -> int:
    """What stands for a moment, of one micro-batch: the largest span of layers made again."""
    largest = max((len(span) for span in spans_of(config, wire, stage)), default=0)
    return _bytes(config, _whole_layers(config, largest))


def _bytes(config: RunConfig, elements: _Elements, whole_extra: int = 0, divided_extra: int = 0) -> int:
    """Bytes of a micro-batch on one rank; the extra ones are bytes a token."""
    training, parallel, element = config.training, config.parallel, element_bytes(config)
    shards = parallel.tensor if parallel.sequence else 1
    whole, divided = elements.whole * element + whole_extra, elements.divided * element + divided_extra
    return training.sequence_length * training.micro_batch_size * (whole // shards + divided // parallel.tensor)


def _depth_scalars(layout: DepthLayout, readers: range) -> int:
    """Numbers a token that `readers` keep: three a source, one for the norm."""
    per_source = 3 if layout.has_sources else 0
    return sum(per_source * layout.reads(reader).count + 1 for reader in readers)


def _returning_bytes(config: RunConfig, wire: WirePlan, stage: int) -> int:
    """Gradients of the history in one backward visit: those that came back, and those that go on."""
    came_back = wire.hop_into(stage + 1).slices_back if stage + 1 < wire.num_stages else 0
    go_on = wire.hop_into(stage).slices_back if stage else 0
    return (came_back + go_on) * wire_slice_bytes(config)


def _at_peak(visits: Sequence[_Visit], schedule: Schedule, rank: int) -> tuple[int, int]:
    """Bytes of activations and of history at the moment when a rank whose chunks keep `visits` has most."""
    kept = [visit.activations + visit.history for visit in visits]
    standing = schedule.at_peak(rank, kept, [visit.owed for visit in visits])
    activations = sum(n * visit.activations for n, visit in zip(standing.in_flight, visits, strict=True))
    history = sum(n * visit.history for n, visit in zip(standing.in_flight, visits, strict=True))
    return activations, history + sum(n * visit.owed for n, visit in zip(standing.owing, visits, strict=True))
