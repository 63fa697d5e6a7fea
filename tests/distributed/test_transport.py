"""Whatever way the history travels, the gradients are those of one process."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_train.config.run_config import RunConfig
from attnres_train.depth.source import GradientBuffer, Source
from attnres_train.model.megatron import transformer_config
from attnres_train.model.parameters import initialize, logical_parameters
from attnres_train.model.stage import StageModel, StageRole
from attnres_train.parallel.grid import Grid, build_grid
from attnres_train.parallel.lane import Lane, Transfer
from attnres_train.parallel.pipeline import Pipeline
from attnres_train.parallel.split import balanced_split, stage_layers
from attnres_train.plan.traffic import plan_traffic
from attnres_train.setup import Setup
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import MICRO_BATCH, MICRO_BATCHES, TOKENS, VOCABULARY, step_batches, tiny_config
from tests.distributed.training import Trained, build_tiny, relative_error, step_tiny, train_all

TRANSPORTS: dict[str, dict[str, Any]] = {
    "whole prefix": {"history_cache": "off", "eager": False},
    "whole prefix, eager": {"history_cache": "off", "eager": True},
    "cached": {"history_cache": "on", "eager": False},
    "cached, exact": {"history_cache": "on", "exact_gradients": True, "eager": False},
    "cached, exact, eager": {"history_cache": "on", "exact_gradients": True, "eager": True},
    "cached, eager": {"history_cache": "on", "eager": True},
    "cached, exact, offloaded": {"history_cache": "on", "exact_gradients": True, "offload": True},
    "whole prefix, offloaded, recompute": {"history_cache": "off", "offload": True, "recompute": "block"},
    "cached, no overlap": {"history_cache": "on", "overlap": False, "eager": False},
    "cached, no overlap, eager": {"history_cache": "on", "overlap": False, "eager": True},
    "cached, one group": {"history_cache": "on", "micro_batch_group": 4, "eager": False},
    "cached, one group, eager, exact": {
        "history_cache": "on", "micro_batch_group": 4, "eager": True, "exact_gradients": True,
    },
}  # fmt: skip
IN_EVERY_CASE = ("whole prefix", "cached", "cached, exact, eager")
ON_FOUR_RANKS = ("whole prefix", "cached", "cached, exact, eager", "cached, one group")
PAIRS = [(2, name) for name in TRANSPORTS] + [(4, name) for name in ON_FOUR_RANKS]
CASES = ("standard", "full", "block", "full, window")
FEW_CASES = ("full", "block")
STEPS = 2


@functools.cache
def one_process() -> dict[str, Trained]:
    configs = [tiny_config(case, layers=8, clip=None) for case in CASES]
    return dict(zip(CASES, run_ranks(train_all, 1, configs, STEPS)[0], strict=True))


@functools.cache
def transported(pipeline: int) -> dict[tuple[str, str], Trained]:
    """Eight layers on `pipeline` ranks of two stages, every transport and case in one process group."""
    names = [
        (transport, case)
        for ranks, transport in PAIRS
        if ranks == pipeline
        for case in (CASES if transport in IN_EVERY_CASE else FEW_CASES)
    ]
    configs = [
        tiny_config(case, layers=8, clip=None, pipeline=pipeline, virtual=2, **TRANSPORTS[transport])
        for transport, case in names
    ]
    return dict(zip(names, run_ranks(train_all, pipeline, configs, STEPS)[0], strict=True))


@pytest.mark.parametrize("pipeline", [2, 4])
def test_every_transport_gives_the_gradients_of_one_process(pipeline: int) -> None:
    """All in one test: each process that runs a part of them would train all of them."""
    for (transport, case), result in transported(pipeline).items():
        reference, where = one_process()[case], f"{transport}, {case}"
        assert result.losses == pytest.approx(reference.losses, rel=1e-5), where
        assert result.grad_norms == pytest.approx(reference.grad_norms, rel=1e-5), where
        for name, gradient in reference.first_gradients.items():
            assert relative_error(result.first_gradients[name], gradient) < 1e-5, f"{where}: {name}"
        if "exact" in transport or "whole" in transport:
            assert_every_bit_is_kept(result, reference, where)
    cached, reference = transported(pipeline)["cached", "full"], one_process()["full"]
    other_order = [not cached.first_gradients[name].equal(g) for name, g in reference.first_gradients.items()]
    assert any(other_order), "else nothing is said of `exact_gradients`"
    if pipeline == 4:
        assert_bytes_are_the_plans()


def assert_every_bit_is_kept(result: Trained, reference: Trained, where: str) -> None:
    assert result.losses == reference.losses, where
    for name, gradient in reference.first_gradients.items():
        assert result.first_gradients[name].equal(gradient), f"{where}: {name}"
    for name, weight in reference.weights.items():
        assert result.weights[name].equal(weight), f"{where}: weight {name} after {STEPS} steps"


def assert_bytes_are_the_plans() -> None:
    """Sent bytes exactly, in every transport; the account of what is kept has its own test in float64."""
    for (transport, case), result in transported(4).items():
        config = tiny_config(case, layers=8, pipeline=4, virtual=2, **TRANSPORTS[transport])
        plan = plan_traffic(Setup.of(config, 4, VOCABULARY))
        assert result.forward_bytes == [plan.step_forward_bytes] * STEPS, (transport, case)


def parked_by_a_step(config: RunConfig) -> tuple[int, int]:
    """Slices that a step moved to the host, and bytes that are still there afterwards."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    offload = parts.pipeline.communicator.cache.offload
    assert offload is not None
    parked, park = [], offload.park

    def counted(tensors: Iterable[Tensor], in_use: Iterable[Tensor] = ()) -> None:
        before = offload.parked_bytes
        park(tensors, in_use)
        parked.append(offload.parked_bytes - before)

    offload.park = counted  # type: ignore[method-assign, assignment]
    step_tiny(parts, config, grid, 0)
    return sum(parked) // (TOKENS * MICRO_BATCH * 32 * 4), offload.parked_bytes


def test_offloaded_slices_leave_and_come_back() -> None:
    config = tiny_config("block", layers=8, pipeline=2, virtual=2, history_cache="on", offload=True)
    (first, left_first), (last, left_last) = run_ranks(parked_by_a_step, 2, config)
    assert left_first == left_last == 0
    # Of each micro-batch: stage 0 makes sources 0 and 1, stage 2 receives some more and makes others. Rank 1 keeps
    # what stage 1 needs; stage 3, the last, runs backward at once.
    assert first >= 2 * MICRO_BATCHES and last >= 2 * MICRO_BATCHES


def gradients_in_float64(configs: list[RunConfig], chunk_bytes: int | None) -> list[dict[str, Tensor]]:
    """Gradients of one step by name, of this rank's stages, under each of `configs`."""
    grid = build_grid(configs[0].parallel, seed=1)
    return [_gradients(config, grid, chunk_bytes) for config in configs]


def _gradients(config: RunConfig, grid: Grid, chunk_bytes: int | None) -> dict[str, Tensor]:
    pipeline, stages = _float64_pipeline(config, grid)
    communicator = pipeline.communicator
    communicator.forward.chunk_bytes = communicator.backward.chunk_bytes = chunk_bytes
    kept = pipeline.run(stages, step_batches(0)).traffic.kept_bytes
    planned = plan_traffic(pipeline.setup).ranks[grid.pipeline_rank].kept_slices
    assert kept == planned * TOKENS * MICRO_BATCH * config.model.hidden_size * 8
    return {name: p.grad.clone() for stage in stages for name, p in stage.named_parameters() if p.grad is not None}


def _float64_pipeline(config: RunConfig, grid: Grid) -> tuple[Pipeline, list[StageModel]]:
    parallel, model = config.parallel, config.model
    split = balanced_split(model.num_layers, parallel.num_stages)
    megatron = transformer_config(
        model, dtype=torch.float64, pipeline=parallel.pipeline, virtual=parallel.virtual, overlap=parallel.overlap
    )
    stages = []
    for chunk, stage in enumerate(grid.stages()):
        first, last = stage == 0, stage == parallel.num_stages - 1
        number = chunk if parallel.virtual > 1 else None
        role = StageRole(stage=stage, layers=stage_layers(split, stage), first=first, last=last, chunk=number)
        module = StageModel(model, config.residual, megatron, grid.groups, role, VOCABULARY, 88).double()
        initialize(module, seed=1)
        for logical in logical_parameters(module):
            if ".depth." in logical.name:
                noise = torch.Generator().manual_seed(sum(logical.name.encode()))
                logical.parameter.data += 0.1 * torch.randn(logical.parameter.shape, generator=noise)
        stages.append(module)
    return Pipeline(Setup.of(config, grid.world_size, VOCABULARY), grid, megatron, finalize=None), stages


@pytest.mark.parametrize("pipeline", [2, 4])
def test_in_float64_the_cache_equals_the_whole_prefix_to_rounding(pipeline: int) -> None:
    """Messages are cut into 100-byte pieces here; and what each rank keeps is counted against the plan."""
    cases = ("full", "block", "full, window")
    grid = {"layers": 8, "pipeline": pipeline, "virtual": 2}
    modes: list[dict[str, Any]] = [
        {"history_cache": "off"},
        {"history_cache": "on"},
        {"history_cache": "on", "eager": True},
    ]
    configs = [tiny_config(case, **grid, **mode) for case in cases for mode in modes]
    for found in run_ranks(gradients_in_float64, pipeline, configs, 100):
        for number in range(len(cases)):
            off, on, eager = found[3 * number : 3 * number + 3]
            assert off.keys() == on.keys() and len(off) > 10
            for name, gradient in off.items():
                assert relative_error(on[name], gradient) < 1e-12, name
                assert eager[name].equal(on[name]), name


def step_that_loses_a_gradient(config: RunConfig) -> None:
    """Micro-batch 2 reads what is held through a buffer that nobody will empty."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    cache = parts.pipeline.communicator.cache
    known = cache._known

    def loses(micro_batch: int, stage: int, number: int) -> Source:
        source = known(micro_batch, stage, number)
        return Source(source.value, GradientBuffer()) if micro_batch == 2 else source

    cache._known = loses  # type: ignore[method-assign]
    step_tiny(parts, config, grid, 0)


def test_a_lost_gradient_ends_the_step_and_names_where() -> None:
    config = tiny_config("block", layers=8, pipeline=2, virtual=2, history_cache="on")
    named = r"HistoryError: rank \d .*: source \d of micro-batch 2 lost the gradients of stage \d"
    with pytest.raises(AssertionError, match=named):
        run_ranks(step_that_loses_a_gradient, 2, config)


def most_kept_for_sending(config: RunConfig) -> int:
    """Messages of one direction at once, where none is ever found through: as on a GPU, whose host runs ahead."""
    Transfer.is_through = property(lambda _: False)  # type: ignore[assignment, method-assign]
    counts, let_go = [0], Lane._let_go

    def counted(lane: Lane) -> None:
        let_go(lane)
        counts.append(len(lane._leaving))

    Lane._let_go = counted  # type: ignore[method-assign]
    grid = build_grid(config.parallel, seed=1)
    step_tiny(build_tiny(config, grid), config, grid, 0)
    return max(counts)


def test_two_messages_of_a_direction_are_kept_for_sending_however_far_the_host_runs_ahead() -> None:
    config = tiny_config("block", layers=8, pipeline=2, virtual=2, eager=False)
    assert run_ranks(most_kept_for_sending, 2, config) == [2, 2]
