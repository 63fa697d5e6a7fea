"""A plan as a page of plain text."""

from __future__ import annotations

from attnres_train.plan.page import counted, in_mib, page_table
from attnres_train.plan.speeds import GIB
from attnres_train.plan.stage_table import stage_table
from attnres_train.plan.timing import TimePlan
from attnres_train.plan.whole import Plan

_MIB = 2**20
_RATES_IN_TEXT = 10


def plan_text(plan: Plan, title: str) -> str:
    """Facts, the stages with what each receives, the wire and the memory of the fullest rank."""
    facts = [
        ("model", _model(plan)),
        ("parameters", _parameters(plan)),
        ("ranks", _ranks(plan)),
        ("step", _step(plan)),
        ("run", f"{_length(plan)}; {_checkpoint(plan)}"),
        ("work", _work(plan)),
        ("first rates", _rates(plan)),
    ]
    facts += [("wire", _wire(plan)), ("", _kept(plan)), ("bubble", _bubble(plan))] if plan.wire.plan.hops() else []
    if plan.tensor_bytes:
        facts.append(("tensor", f"the tensor ranks reduce {in_mib(plan.tensor_bytes)} MiB of activations a step"))
    facts += [("memory", _memory(plan)), ("", _memory_kinds(plan)), *_time_rows(plan)]
    return "\n".join([title, "", *page_table(facts), "", *stage_table(plan)])


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
    return text + (", sequence-parallel" if parallel.sequence else "")


def _step(plan: Plan) -> str:
    setup, training = plan.setup, plan.setup.config.training
    product = f"micro-batch {training.micro_batch_size} * {setup.micro_batches} * data {setup.data}"
    samples = f"{counted(training.global_batch_size, 'sample')} ({product})"
    return f"{samples} of {counted(training.sequence_length, 'token')} = {counted(setup.step_tokens, 'token')}"


def _length(plan: Plan) -> str:
    steps = plan.setup.config.training.steps
    return f"{counted(steps, 'step')}, {counted(steps * plan.setup.step_tokens, 'token')}"


def _work(plan: Plan) -> str:
    flops, config = plan.setup.step_flops, plan.setup.config
    text = f"{flops:.3g} model FLOPs a step, {flops * config.training.steps:.3g} in all"
    return text + ("; at most: attention inside documents is less" if config.data.isolate_documents else "")


def _rates(plan: Plan) -> str:
    rates = plan.learning_rates[:_RATES_IN_TEXT]
    return " ".join(f"{rate:.3g}" for rate in rates) + ", one a step"


def _wire(plan: Plan) -> str:
    wire, traffic = plan.wire.plan, plan.wire
    back = "" if wire.slices_back_total == wire.slices_total else f" ({wire.slices_back_total} back)"
    return (
        f"{counted(wire.slices_total, 'slice')}{back}, {in_mib(traffic.bytes_total)} MiB a micro-batch and direction, "
        f"widest hop {wire.slices_max}; the standard residual sends {wire.slices_standard}"
    )


def _kept(plan: Plan) -> str:
    fullest = max(plan.wire.ranks, key=lambda rank: rank.kept_slices)
    kept = (
        f"{counted(fullest.kept_slices, 'slice')}, {in_mib(fullest.kept_bytes)} MiB kept at once on rank {fullest.rank}"
    )
    if not plan.wire.plan.layout.has_sources:
        return kept
    return kept + ("; a rank keeps what it has seen" if plan.wire.plan.cache else "; the whole prefix on every hop")


def _bubble(plan: Plan) -> str:
    equal = f"{100 * plan.bubble_fraction:.1f} % of a step, were all stages equal"
    return equal if plan.time is None else f"{equal}; {100 * plan.time.bubble_fraction:.1f} % as they are, with hops"


def _memory(plan: Plan) -> str:
    unit, name = _memory_unit(plan)
    where = f" on pipeline rank {plan.memory.rank}, the fullest" if plan.setup.wire.pipeline > 1 else ""
    return f"about {plan.memory.total / unit:.3g} {name}{where}{_fit(plan)}"


def _fit(plan: Plan) -> str:
    """Whether it fits, and what the host takes beside it."""
    host = f"; {plan.memory.host / GIB:.3g} GiB of the host a rank" if plan.memory.host else ""
    if plan.machine is None:
        return host
    usable = plan.machine.usable_bytes / GIB
    verdict = "fits" if plan.fits else "does NOT fit"
    return f"; {verdict} {usable:.3g} GiB, {plan.machine.memory_gib:.3g} less a tenth{host}"


def _checkpoint(plan: Plan) -> str:
    size = plan.checkpoint.total_bytes
    whole = f"{size / GIB:.3g} GiB" if size >= GIB else f"{in_mib(size)} MiB"
    seconds = "" if plan.time is None else f", written in {_seconds(plan.time.checkpoint_seconds)} beside the training"
    return f"a save {whole}{seconds}"


def _time_rows(plan: Plan) -> list[tuple[str, str]]:
    """What a step and the run take, what of it goes where, and what that rests on."""
    time, machine = plan.time, plan.machine
    if time is None or machine is None:
        return []
    spent = [f"{kind.replace('_', ' ')} {_seconds(seconds)}" for kind, seconds in _dearest(time)]
    rank = f" (pipeline rank {time.busiest_rank})" if plan.setup.wire.pipeline > 1 else ""
    return [
        ("time", f"{_seconds(time.step_seconds)} a step on {plan.setup.world} x {machine.name}, {_rate(time)}"),
        ("", f"{_hours(time.run_hours)} hours for the run, {_hours(time.device_hours)} device-hours"),
        ("of it", ", ".join(spent) + rank),
        ("taken" if machine.measured else "assumed", machine.assumptions),
    ]


def _rate(time: TimePlan) -> str:
    share = 100 * time.model_flops_utilisation
    return f"{time.tokens_per_second:,.0f} tokens/s, {share:.1f} % of the peak in model FLOPs"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _dearest(time: TimePlan) -> list[tuple[str, float]]:
    """Kinds that take a fiftieth of the step or more, the dearest first."""
    kinds = sorted(time.kinds.items(), key=lambda item: -item[1])
    return [(kind, seconds) for kind, seconds in kinds if seconds >= time.step_seconds / 50]


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def _memory_kinds(plan: Plan) -> str:
    unit, name = _memory_unit(plan)
    kinds = plan.memory.kinds().items()
    return f"{name}: " + ", ".join(f"{kind.replace('_', ' ')} {size / unit:.3g}" for kind, size in kinds if size)


def _memory_unit(plan: Plan) -> tuple[int, str]:
    return (GIB, "GiB") if plan.memory.total >= GIB else (_MIB, "MiB")
