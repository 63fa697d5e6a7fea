"""Memory of every rank, as plain arithmetic.

The estimate counts the tensors that stand in memory while a step runs. It leaves out what libraries below torch take
for themselves: the allocator's fragments, the CUDA context, NCCL's own buffers. Take a tenth on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnres_train.depth.layout import DepthLayout
from attnres_train.model.cost import Elements
from attnres_train.parallel.schedule import Schedule
from attnres_train.plan.state import state_bytes
from attnres_train.setup import FP32_BYTES, Setup


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of the pipeline rank that needs most, by kind; the tensor and data ranks beside it need the same.

    `depth_history` is what arrived over the wire and waits for its backward, with the gradients of one visit and
    those that wait for an earlier stage's; sources made on the rank itself are among `activations`. `buffers` is what
    else stands at the peak: for a moment, or posted for messages. `host` is in the memory of the host, beside the
    others: what `offload_optimizer` puts there. `average` is the mean of weights, if one is kept.
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
    average: int = 0

    @property
    def total(self) -> int:
        return sum(self.kinds().values())

    def kinds(self) -> dict[str, int]:
        """Bytes on the device by kind, without the total."""
        return {name: value for name, value in vars(self).items() if name not in ("rank", "host")}


@dataclass(frozen=True)
class VisitBytes:
    """Bytes that one micro-batch keeps on one stage from its forward to its backward."""

    activations: int
    history: int
    owed: int
    """Gradients that stand from that backward to the one of the rank's stage before."""


def worst_rank_memory(setup: Setup, ranks: Sequence[int] | None = None) -> MemoryPlan:
    """The pipeline rank with the largest total; of `ranks` alone, if given."""
    chosen = range(setup.wire.pipeline) if ranks is None else ranks
    return max((_rank_memory(setup, rank) for rank in chosen), key=lambda plan: plan.total)


def _rank_memory(setup: Setup, rank: int) -> MemoryPlan:
    mine, state = setup.wire.stages_of(rank), dict(vars(state_bytes(setup, rank)))
    activations, history = _at_peak([visit_bytes(setup, stage) for stage in mine], setup.schedule_to_peak, rank)
    buffers = state.pop("padding") + _pool_bytes(setup, rank)
    return MemoryPlan(
        rank,
        **state,
        activations=activations + max(_made_again_bytes(setup, stage) for stage in mine),
        depth_history=history + max(_returning_bytes(setup, stage) for stage in mine),
        buffers=buffers + max(_momentary_bytes(setup, stage) for stage in mine),
    )


def visit_bytes(setup: Setup, stage: int) -> VisitBytes:
    """What autograd keeps of one micro-batch on `stage`; the depth mix before its norm is always made again.

    A sublayer keeps what its branch states (`Cost.kept`), and its input, the normalised mix, unless recompute is
    `depth`; the embedding and the head keep theirs, the head the softmax of its logits in fp32, too. Add three fp32
    scalars a source that a reader reads, and one for a norm. Sequence parallelism divides what tensor ranks do not.
    With recompute `layer` or `block` only what leaves each span of layers stands: complete sources, and the partial
    where a block is open.

    Isolated documents add their lengths alone: there is no mask. This is the published attention over depth and the
    standard residual. The other modes run in plain torch and keep more: fp32 copies of what they read.
    """
    wire, costs, last = setup.wire, setup.costs, setup.is_last(stage)
    spans, readers = spans_of(setup, stage), wire.readers(stage)
    if spans:
        kept = Elements(sum(_leaves(wire.layout, span) for span in spans) * setup.config.model.hidden_size)
        readers = readers[2 * wire.layers_per_stage[stage] :]  # the head's, if any, is in no span
    else:
        kept = _whole_layers(setup, setup.layers_of(stage))
    kept = kept + (costs.embedding.kept if stage == 0 else Elements()) + (costs.head.kept if last else Elements())
    scalars, logits = _depth_scalars(wire.layout, readers), setup.padded_vocabulary if last else 0
    activations = _bytes(setup, kept, whole_extra=FP32_BYTES * scalars, divided_extra=FP32_BYTES * logits)
    size = setup.slice_bytes
    return VisitBytes(activations, wire.received_slices(stage) * size, wire.owed_slices(stage) * size)


def _whole_layers(setup: Setup, layers: range) -> Elements:
    """What layers keep if nothing but, perhaps, their mix is made again."""
    inputs = 0 if setup.config.training.recompute == "depth" else 2 * len(layers)
    return setup.costs.of_layers(layers).kept + Elements(inputs * setup.config.model.hidden_size)


def spans_of(setup: Setup, stage: int) -> list[range]:
    """Layers that backward makes again together."""
    return setup.wire.layout.spans(setup.layers_of(stage), setup.config.training.recompute)


def _leaves(layout: DepthLayout, span: range) -> int:
    """Slices that leave a span of layers and have not entered it: sources, and the partial of an open block."""
    completed = layout.sources_before(2 * span.stop) - layout.sources_before(2 * span.start)
    return completed + layout.partial_before(2 * span.stop)


def _made_again_bytes(setup: Setup, stage: int) -> int:
    """What stands for a moment, of one micro-batch: the largest span of layers made again."""
    return max((_bytes(setup, _whole_layers(setup, span)) for span in spans_of(setup, stage)), default=0)


def _bytes(setup: Setup, elements: Elements, whole_extra: int = 0, divided_extra: int = 0) -> int:
    """Bytes of a micro-batch on one rank; the extra ones are bytes a token."""
    whole = elements.whole * setup.element_bytes + whole_extra
    divided = elements.divided * setup.element_bytes + divided_extra
    return setup.micro_batch_tokens * (whole // setup.shards + divided // setup.config.parallel.tensor)


def _depth_scalars(layout: DepthLayout, readers: range) -> int:
    """Numbers a token that `readers` keep: three a source, one for the norm."""
    per_source = 3 if layout.has_sources else 0
    return sum(per_source * layout.reads(reader).count + 1 for reader in readers)


def _returning_bytes(setup: Setup, stage: int) -> int:
    """Gradients of the history in one backward visit: those that came back, and those that go on."""
    came_back = 0 if setup.is_last(stage) else setup.wire.hop_into(stage + 1).slices_back
    go_on = setup.wire.hop_into(stage).slices_back if stage else 0
    return (came_back + go_on) * setup.slice_bytes


def _at_peak(visits: Sequence[VisitBytes], schedule: Schedule, rank: int) -> tuple[int, int]:
    """Bytes of activations and of history at the moment when a rank whose chunks keep `visits` has most."""
    kept = [visit.activations + visit.history for visit in visits]
    standing = schedule.at_peak(rank, kept, [visit.owed for visit in visits])
    activations = sum(n * visit.activations for n, visit in zip(standing.in_flight, visits, strict=True))
    history = sum(n * visit.history for n, visit in zip(standing.in_flight, visits, strict=True))
    return activations, history + sum(n * visit.owed for n, visit in zip(standing.owing, visits, strict=True))


def _momentary_bytes(setup: Setup, stage: int) -> int:
    """What stands for a moment in the backward of one micro-batch on `stage`.

    The larger of two moments: in the head, logits in the weights' dtype and in fp32; in a branch, gradients of its
    inner width and the gradient of a matrix. With them the gradients of the sources that the stage reads, one buffer
    each (`depth/source.py`), but for those that crossed a hop, which `depth_history` counts.
    """
    tensor, element, tokens = setup.config.parallel.tensor, setup.element_bytes, setup.micro_batch_tokens
    moments = []
    for cost in (cost for layer in setup.layers_of(stage) for cost in setup.costs.layers[layer]):
        activations = cost.moment.divided // tensor + cost.moment.whole // setup.shards
        moments.append(element * (tokens * activations + cost.moment_parameters // tensor))
    if setup.is_last(stage):
        moments.append(tokens * setup.padded_vocabulary // tensor * (element + FP32_BYTES))
    return max(moments, default=0) + _source_gradients(setup, stage) * setup.slice_bytes


def _source_gradients(setup: Setup, stage: int) -> int:
    """Slices: of sources that the stage made and that no hop brings back."""
    returned = () if setup.is_last(stage) else setup.wire.hop_into(stage + 1).returned
    return len(set(setup.wire.made_on(stage)) - set(returned))


def _pool_bytes(setup: Setup, rank: int) -> int:
    """Receive buffers of the messages that are posted ahead on `rank`: one of each direction."""
    wire = setup.wire
    into = [wire.hop_into(stage) for stage in wire.stages_of(rank) if stage]
    back = [wire.hop_into(stage + 1) for stage in wire.stages_of(rank) if not setup.is_last(stage)]
    slices = max((hop.slices for hop in into), default=0) + max((hop.slices_back for hop in back), default=0)
    return slices * setup.slice_bytes
