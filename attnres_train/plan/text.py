"""A plan as a page of plain text, and as the object that `attnres plan --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from attnres_train.parallel.wire import Hop
from attnres_train.plan.page import in_mib, page_table
from attnres_train.plan.speeds import Machine
from attnres_train.plan.timing import TimePlan
from attnres_train.plan.whole import Plan, StagePlan
from attnres_train.words import GIB, MIB, counted

_MOST_RUNS = 5
"""Of consecutive sources that the line of a stage lists; beyond that it counts them."""


def plan_text(plan: Plan, title: str) -> str:
    """Facts, the stages with what each receives, the wire and the memory of the fullest rank."""
    rates = " ".join(f"{rate:.3g}" for rate in plan.learning_rates)
    facts = [
        ("model", _model(plan)),
        ("parameters", _parameters(plan)),
        ("ranks", _ranks(plan)),
        ("step", _step(plan)),
        ("run", _run(plan)),
        ("work", _work(plan)),
        ("first rates", f"{rates}, one a step"),
    ]
    facts += [("wire", _wire(plan)), ("", _kept(plan)), ("bubble", _bubble(plan))] if plan.wire.plan.hops() else []
    if plan.tensor_bytes:
        facts.append(("tensor", f"the tensor ranks reduce {in_mib(plan.tensor_bytes)} MiB of activations a step"))
    facts += [*_memory_rows(plan), *_time_rows(plan)]
    return "\n".join([title, "", *page_table(facts), "", *_stage_table(plan)])


def as_json(plan: Plan) -> dict[str, Any]:
    """The object that `attnres plan --json` prints."""
    setup = plan.setup
    memory = {kind: size / GIB for kind, size in plan.memory.kinds().items()}
    return {
        "parameters": {"total": plan.parameters_total, "per_rank": list(plan.parameters_per_rank)},
        "vocabulary": {"size": setup.vocabulary, "padded": setup.padded_vocabulary},
        "grid": setup.degrees,
        "stages": [asdict(stage) for stage in plan.stages],
        "global_batch_size": setup.config.training.global_batch_size,
        "micro_batches": setup.micro_batches,
        "accumulation": setup.micro_batches,
        "tokens_per_step": setup.step_tokens,
        "steps": setup.config.training.steps,
        "flops_per_step": setup.step_flops,
        "isolate_documents": setup.config.data.isolate_documents,
        "bubble_fraction": plan.bubble_fraction,
        "learning_rates": list(plan.learning_rates),
        "wire": plan.wire.as_json(),
        "tensor_bytes": plan.tensor_bytes,
        "memory_gib": memory | {"total": plan.memory.total / GIB},
        "memory_rank": plan.memory.rank,
        "memory_host_gib": plan.memory.host / GIB,
        "checkpoint": asdict(plan.checkpoint),
        "groups": plan.groups.as_json(),
        "device": None if plan.machine is None else _device_json(plan.machine),
        "fits": plan.fits,
        "time": None if plan.time is None else _time_json(plan.time),
    }


def _device_json(machine: Machine) -> dict[str, Any]:
    shown = ("name", "measured", "memory_gib", "usable_gib", "peak_flops_per_second", "devices_per_node", "assumptions")
    return {name: getattr(machine, name) for name in shown}


def _time_json(time: TimePlan) -> dict[str, Any]:
    named = {"kinds": "kinds_seconds", "stages": "stages_seconds"}
    return {named.get(name, name): value for name, value in asdict(time).items()}


def _model(plan: Plan) -> str:
    layout = plan.setup.layout
    layers = counted(layout.num_sublayers // 2, "layer")
    if not layout.has_sources:
        return f"{layers}, standard residual"
    blocks = "every sublayer a source" if layout.mode == "full" else f"blocks of {layout.block_size} sublayers"
    return f"{layers}, attention over depth, {blocks}; the head reads {layout.head_reads().count} sources"


def _parameters(plan: Plan) -> str:
    held = plan.parameters_per_rank
    span = f"{held[0]:,}" if min(held) == max(held) else f"{min(held):,} to {max(held):,}"
    rank = f", {span} on a rank" if plan.setup.config.parallel.model_ranks > 1 else ""
    vocabulary = f"vocabulary {plan.setup.vocabulary:,} padded to {plan.setup.padded_vocabulary:,}"
    return f"{plan.parameters_total:,}{rank}; {vocabulary}"


def _ranks(plan: Plan) -> str:
    setup, parallel = plan.setup, plan.setup.config.parallel
    text = f"{setup.world} = tensor {parallel.tensor} * pipeline {parallel.pipeline} * data {setup.data}"
    text += f", {parallel.virtual} stages each" if parallel.virtual > 1 else ""
    text += ", sequence-parallel" if parallel.sequence else ""
    return f"{text}; {plan.groups.in_words()}" if setup.world > 1 else text


def _step(plan: Plan) -> str:
    setup, training = plan.setup, plan.setup.config.training
    product = f"micro-batch {training.micro_batch_size} * {setup.micro_batches} * data {setup.data}"
    samples = f"{counted(training.global_batch_size, 'sample')} ({product})"
    return f"{samples} of {counted(training.sequence_length, 'token')} = {counted(setup.step_tokens, 'token')}"


def _run(plan: Plan) -> str:
    """Its length, and its saves."""
    steps, size = plan.setup.config.training.steps, plan.checkpoint.total_bytes
    length = f"{counted(steps, 'step')}, {counted(steps * plan.setup.step_tokens, 'token')}"
    whole = f"{size / GIB:.3g} GiB" if size >= GIB else f"{in_mib(size)} MiB"
    seconds = "" if plan.time is None else f", written in {_seconds(plan.time.checkpoint_seconds)} beside the training"
    return f"{length}; a save {whole}{seconds}"


def _work(plan: Plan) -> str:
    flops, config = plan.setup.step_flops, plan.setup.config
    text = f"{flops:.3g} model FLOPs a step, {flops * config.training.steps:.3g} in all"
    return text + ("; at most: attention inside documents is less" if config.data.isolate_documents else "")


def _wire(plan: Plan) -> str:
    wire, mib = plan.wire.plan, in_mib(plan.wire.bytes_total)
    back = "" if wire.slices_back_total == wire.slices_total else f" ({wire.slices_back_total} back)"
    sent = f"{counted(wire.slices_total, 'slice')}{back}, {mib} MiB a micro-batch and direction"
    return f"{sent}, widest hop {wire.slices_max}; the standard residual sends {wire.slices_standard}"


def _kept(plan: Plan) -> str:
    fullest = max(plan.wire.ranks, key=lambda rank: rank.kept_slices)
    slices = counted(fullest.kept_slices, "slice")
    kept = f"{slices}, {in_mib(fullest.kept_bytes)} MiB kept at once on rank {fullest.rank}"
    if not plan.wire.plan.layout.has_sources:
        return kept
    return kept + ("; a rank keeps what it has seen" if plan.wire.plan.cache else "; the whole prefix on every hop")


def _bubble(plan: Plan) -> str:
    equal = f"{100 * plan.bubble_fraction:.1f} % of a step, were all stages equal"
    return equal if plan.time is None else f"{equal}; {100 * plan.time.bubble_fraction:.1f} % as they are, with hops"


def _memory_rows(plan: Plan) -> list[tuple[str, str]]:
    """Of the fullest rank: in all, whether that fits and what the host takes beside it, and by kind."""
    memory, machine = plan.memory, plan.machine
    unit, name = (GIB, "GiB") if memory.total >= GIB else (MIB, "MiB")
    whole = f"about {memory.total / unit:.3g} {name}"
    whole += f" on pipeline rank {memory.rank}, the fullest" if plan.setup.wire.pipeline > 1 else ""
    if machine is not None:
        verdict = "fits" if plan.fits else "does NOT fit"
        whole += f"; {verdict} {machine.usable_gib:.3g} GiB, {machine.memory_gib:.3g} less a tenth"
    whole += f"; {memory.host / GIB:.3g} GiB of the host a rank" if memory.host else ""
    kinds = ", ".join(f"{kind.replace('_', ' ')} {size / unit:.3g}" for kind, size in memory.kinds().items() if size)
    return [("memory", whole), ("", f"{name}: {kinds}")]


def _time_rows(plan: Plan) -> list[tuple[str, str]]:
    """What a step and the run take, what of it goes where, and what that rests on."""
    time, machine = plan.time, plan.machine
    if time is None or machine is None:
        return []
    share = f"{100 * time.model_flops_utilisation:.1f} % of the peak in model FLOPs"
    step = f"{_seconds(time.step_seconds)} a step on {plan.setup.world} x {machine.name}"
    kinds = sorted(time.kinds.items(), key=lambda item: -item[1])
    least = time.step_seconds / 50  # what takes less is not worth a word
    spent = [f"{kind.replace('_', ' ')} {_seconds(seconds)}" for kind, seconds in kinds if seconds >= least]
    rank = f" (pipeline rank {time.busiest_rank})" if plan.setup.wire.pipeline > 1 else ""
    return [
        ("time", f"{step}, {time.tokens_per_second:,.0f} tokens/s, {share}"),
        ("", f"{_hours(time.run_hours)} hours for the run, {_hours(time.device_hours)} device-hours"),
        ("of it", ", ".join(spent) + rank),
        ("taken" if machine.measured else "assumed", machine.assumptions),
    ]


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def _stage_table(plan: Plan) -> list[str]:
    """Lines of every stage, with what it receives of one micro-batch on one tensor rank. Those that differ in their
    layers' numbers alone share one, within a chunk."""
    stages, hops, size = plan.stages, plan.wire.plan.hops(), plan.wire.slice_bytes
    received = ["tokens", *(_received(hop) for hop in hops)]
    mib = ["", *(in_mib(hop.slices * size) for hop in hops)]

    def likeness(number: int) -> tuple[int, int, int, str]:
        return stages[number].chunk, stages[number].layers, stages[number].parameters, received[number]

    rows = [("stage", "rank", "chunk", "layers", "parameters", "MiB", "receives of a micro-batch")]
    for _, alike in groupby(range(len(stages)), key=likeness):
        numbers = list(alike)
        first, last = stages[numbers[0]], stages[numbers[-1]]
        each = " each" if len(numbers) > 1 else ""
        ranks, layers = _span(first.rank, last.rank), _layers(first, last)
        held = (str(first.chunk), f"{layers}{each}", f"{first.parameters:,}{each}")
        rows.append((_span(numbers[0], numbers[-1]), ranks, *held, mib[numbers[0]], received[numbers[0]]))
    return page_table(rows, right=(0, 1, 2, 4, 5))


def _layers(first: StagePlan, last: StagePlan) -> str:
    if not first.layers:
        return "0"
    return f"{first.layers} ({_span(first.first_layer, last.first_layer + last.layers - 1)})"


def _received(hop: Hop) -> str:
    sources = hop.sources
    parts = [f"source {_ranges(sources)}" if len(sources) == 1 else f"sources {_ranges(sources)}"] if sources else []
    return " + ".join(parts + (["partial"] if hop.partial else [])) or "nothing"


def _ranges(numbers: Sequence[int]) -> str:
    """`0-2, 5` of 0, 1, 2, 5."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    if len(starts) > _MOST_RUNS:
        return f"{numbers[0]}, ..., {numbers[-1]} ({len(numbers)} of them)"
    return ", ".join(_span(a, b) for a, b in zip(starts, ends, strict=True))


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"
