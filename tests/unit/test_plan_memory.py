"""The memory estimate."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.pipeline_parallel.schedules import get_schedule_table

from attnres_train.parallel.schedule import Schedule
from attnres_train.plan import plan
from attnres_train.plan.memory import VisitBytes, _at_peak
from tests.unit.config_files import flags, small


def memory(tmp_path: Path, world_size: int | None = None, **settings: object) -> dict[str, int]:
    return plan(small(tmp_path, *flags(**settings)), world_size).memory.kinds()


def test_fp32_has_no_masters_and_bf16_keeps_depth_vectors_in_fp32(tmp_path: Path) -> None:
    total = plan(small(tmp_path)).parameters_total
    depth = (2 * 4 + 1) * 2 * 64
    single = memory(tmp_path, training__precision="fp32")
    assert (single["weights"], single["gradients"], single["masters"]) == (4 * total, 4 * total, 0)
    half = memory(tmp_path)
    assert half["weights"] == 2 * (total - depth) + 4 * depth
    assert half["gradients"] == 4 * total
    assert half["masters"] == 4 * (total - depth)
    assert half["moments"] == 8 * total


def test_data_ranks_share_masters_and_moments_and_nothing_else(tmp_path: Path) -> None:
    one, two = memory(tmp_path, 1), memory(tmp_path, 2)
    for kind in ("masters", "moments"):  # of the rank with the larger half: buckets are cut anywhere
        assert one[kind] / 2 <= two[kind] < 1.01 * one[kind] / 2
    for kind in ("weights", "gradients", "activations"):
        assert two[kind] == one[kind]


def zero(tmp_path: Path, stage: int, world_size: int, **settings: object) -> dict[str, int]:
    chosen = {"engine__kind": "deepspeed", "engine__deepspeed__zero_stage": stage}
    return memory(tmp_path, world_size, **chosen, engine__deepspeed__reduce_bucket_size=1, **settings)


def test_zero_divides_more_with_every_stage(tmp_path: Path) -> None:
    total = plan(small(tmp_path)).parameters_total
    one, two, three = (zero(tmp_path, stage, 4) for stage in (1, 2, 3))
    megatron = memory(tmp_path, 4)
    for found in (one, two, three):
        assert found["moments"] == 8 * total // 4 and found["activations"] == megatron["activations"]
    assert (one["gradients"], two["gradients"], three["gradients"]) == (5 * total, total + 4, total + 4)
    assert one["weights"] == two["weights"] == megatron["weights"]
    assert megatron["weights"] // 4 < three["weights"] < megatron["weights"] // 2
    assert one["masters"] == total and 0.99 * megatron["masters"] < three["masters"] <= megatron["masters"]


def test_offloading_takes_masters_moments_and_own_gradients_off_the_device(tmp_path: Path) -> None:
    total = plan(small(tmp_path)).parameters_total
    offloaded = {"engine__deepspeed__offload_optimizer": "true"}
    found = zero(tmp_path, 1, 2, **offloaded)
    config = small(tmp_path, *flags(engine__kind="deepspeed", engine__deepspeed__offload_optimizer="true"))
    assert plan(config, 2).memory.host == (4 + 4 + 8) * total // 2
    assert (found["gradients"], found["masters"], found["moments"]) == (4 * total, 0, 0)
    assert zero(tmp_path, 2, 2, **offloaded)["gradients"] == 4


def test_tensor_ranks_share_matrices_and_sequence_shards_share_the_rest_of_activations(
    tmp_path: Path,
) -> None:
    unpadded = {"model__pad_vocabulary_to": 32}
    one = memory(tmp_path, **unpadded)
    tensor = memory(tmp_path, **unpadded, parallel__tensor=2)
    sequence = memory(tmp_path, **unpadded, parallel__tensor=2, parallel__sequence="true")
    assert one["weights"] / 2 < tensor["weights"] < 0.6 * one["weights"]
    assert one["activations"] / 2 < tensor["activations"] < one["activations"]
    assert sequence["activations"] == one["activations"] // 2


def test_the_history_of_one_rank_alone_is_nothing_and_grows_with_what_is_received(tmp_path: Path) -> None:
    assert memory(tmp_path)["depth_history"] == 0
    settings = {"parallel__pipeline": 2, "model__num_layers": 8}
    standard = memory(tmp_path, **settings, residual__mode="standard", residual__block_size="none")
    block = memory(tmp_path, **settings)
    full = memory(tmp_path, **settings, residual__mode="full", residual__block_size="none")
    assert 0 < standard["depth_history"] < block["depth_history"] < full["depth_history"]


def test_more_micro_batches_than_the_pipeline_is_deep_need_no_more_memory(tmp_path: Path) -> None:
    four = memory(tmp_path, parallel__pipeline=2, training__global_batch_size=8)
    many = memory(tmp_path, parallel__pipeline=2, training__global_batch_size=80)
    assert many == four


def peak_by_simulation(visits: list[VisitBytes], pipeline: int, rank: int, micro_batches: int) -> int:
    """megatron-core's order of forwards and backwards, played through for every micro-batch."""
    chunks = len(visits)
    table = get_schedule_table(micro_batches, chunks, pipeline)
    if chunks == 1:
        warmup = pipeline - rank - 1
    else:
        warmup = (pipeline - rank - 1) * 2 + (chunks - 1) * pipeline
    warmup = min(warmup, len(table))
    backwards = iter(table)
    kept = peak = 0

    def back(chunk: int) -> int:
        visit = visits[chunk]
        settled = visits[chunk + 1].owed if chunk + 1 < chunks else 0
        return (visit.owed if chunk else 0) - settled - visit.activations - visit.history

    for position, (_, chunk) in enumerate(table):
        kept += visits[chunk].activations + visits[chunk].history
        peak = max(peak, kept)
        if position >= warmup:
            kept += back(chunks - 1 - next(backwards)[1])
            peak = max(peak, kept)
    for _, chunk in backwards:
        kept += back(chunks - 1 - chunk)
        peak = max(peak, kept)
    assert kept == 0
    return peak


@settings(deadline=None)
@given(
    pipeline=st.integers(1, 5),
    costs=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=4),
    groups=st.integers(1, 9),
    extra=st.integers(0, 3),
    data=st.data(),
)
def test_the_peak_is_that_of_the_whole_schedule(
    pipeline: int, costs: list[tuple[int, int, int]], groups: int, extra: int, data: st.DataObject
) -> None:
    if pipeline == 1:
        costs = costs[:1]
    rank = data.draw(st.integers(0, pipeline - 1))
    micro_batches = groups * pipeline + (extra % pipeline if len(costs) == 1 else 0)
    visits = [VisitBytes(*cost) for cost in costs]
    shown = Schedule(pipeline, len(costs), min(micro_batches, 4 * pipeline))
    assert sum(_at_peak(visits, shown, rank)) == peak_by_simulation(visits, pipeline, rank, micro_batches)


def test_1f1b_keeps_as_many_micro_batches_as_stages_lie_ahead() -> None:
    peaks = [_at_peak([VisitBytes(10, 1, 0)], Schedule(4, 1, 100), rank) for rank in range(4)]
    assert peaks == [(10 * n, n) for n in (4, 3, 2, 1)]


def test_kept_sources_owe_their_gradients_between_two_backwards_of_a_rank(tmp_path: Path) -> None:
    """With the cache a source is held once, and its gradient waits for the stage that received it."""
    settings = {"parallel__pipeline": 2, "parallel__virtual": 2, "model__num_layers": 8}
    off = memory(tmp_path, **settings, parallel__history_cache="off")
    on = memory(tmp_path, **settings, parallel__history_cache="on")
    exact = memory(tmp_path, **settings, parallel__history_cache="on", parallel__exact_gradients="true")
    assert exact["depth_history"] < off["depth_history"]
    assert on["depth_history"] != exact["depth_history"]


def test_the_mean_of_weights_is_divided_like_a_moment_and_saved(tmp_path: Path) -> None:
    """Where it stands in host memory, too; `tests/distributed/test_average.py` holds it against what ranks hold."""
    kept = {"optimizer__average_decay": 0.999}
    for ranks in (1, 4):
        found = memory(tmp_path, ranks, **kept)
        assert found["average"] == found["moments"] // 2 and memory(tmp_path, ranks)["average"] == 0
    assert zero(tmp_path, 3, 2, **kept)["average"] == zero(tmp_path, 3, 2)["moments"] // 2
    offloaded = {"engine__kind": "deepspeed", "engine__deepspeed__offload_optimizer": "true"}
    total = plan(small(tmp_path)).parameters_total
    assert plan(small(tmp_path, *flags(**offloaded, **kept)), 2).memory.host == (4 + 4 + 8 + 4) * total // 2
    assert zero(tmp_path, 1, 2, **kept, engine__deepspeed__offload_optimizer="true")["average"] == 0
    plain, more = (plan(small(tmp_path, *flags(**own))).checkpoint.state_bytes for own in ({}, kept))
    assert more * 3 == plain * 4
