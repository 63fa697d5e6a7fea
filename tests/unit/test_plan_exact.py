"""Terms of a plan against formulas written anew here, to the last digit: a factor that is off by a tenth is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnres_train.depth.layout import DepthLayout
from attnres_train.parallel.schedule import Schedule
from attnres_train.parallel.wire import WirePlan
from attnres_train.plan import plan
from attnres_train.plan.memory import visit_bytes, worst_rank_memory
from attnres_train.plan.simulate import TurnSeconds, play
from attnres_train.plan.speeds import Link, Machine, Rates
from attnres_train.plan.timing import Timing
from tests.unit.config_files import flags, small

LAYERS, WIDTH, INNER, TOKENS = 4, 64, 128, 64
"""Of the small configuration; tokens of a micro-batch."""
KEY_VALUE = WIDTH


def rows(tensor: int) -> int:
    """Of the table: 320 entries, padded to a multiple of 128 for each tensor rank."""
    return {1: 384, 2: 512, 4: 512}[tensor]


NEAR = Link(
    send_bytes_per_second=1e9,
    send_latency_seconds=1e-6,
    all_reduce_bytes_per_second=2e9,
    reduce_scatter_bytes_per_second=3e9,
    all_gather_bytes_per_second=5e9,
    collective_latency_seconds=7e-6,
)
RATES = Rates(
    matmul_flops_per_second=1e12,
    attention_flops_per_second=3e11,
    head_flops_per_second=7e11,
    softmax_bytes_per_second=11e9,
    memory_bytes_per_second=13e9,
    depth_bytes_per_second=17e9,
    optimizer_bytes_per_second=19e9,
    operation_seconds=2e-6,
)
MACHINE = Machine(
    name="by hand",
    peak_flops_per_second=1e13,
    memory_gib=10,
    devices_per_node=8,
    alone=RATES,
    together=RATES,
    near=NEAR,
    far=NEAR,
    disk_bytes_per_second=1e9,
    asynchronous=False,
    measured=True,
    assumptions="",
)


def planned(tmp_path: Path, world: int, machine: Machine = MACHINE, **settings: object) -> Any:
    chosen = {"training__precision": "fp32", "model__pad_vocabulary_to": 128} | settings
    return plan(small(tmp_path, *flags(**chosen)), world, machine=machine)


def kinds(tmp_path: Path, world: int, machine: Machine = MACHINE, **settings: object) -> dict[str, float]:
    return dict(planned(tmp_path, world, machine, **settings).time.kinds)


@pytest.mark.parametrize("tensor", [2, 4])
def test_rings_of_tensor_ranks_move_their_share_of_every_slice(tensor: int, tmp_path: Path) -> None:
    """Without shards an all-reduce after each branch and the embedding, and before each branch and the head back."""
    slice_bytes, ring, batches = TOKENS * WIDTH * 4, (tensor - 1) / tensor, 4
    found = kinds(tmp_path, tensor, parallel__tensor=tensor)["tensor_parallel"]
    reduces = (2 * LAYERS + 1) + (2 * LAYERS + 1)
    assert found == pytest.approx(batches * reduces * (2 * ring * slice_bytes / 2e9 + 7e-6), rel=1e-12)

    found = kinds(tmp_path, tensor, parallel__tensor=tensor, parallel__sequence="true")["tensor_parallel"]
    gathers = (2 * LAYERS + 1) + 2 * (2 * LAYERS) + 1  # again in backward, where it gathers its input once more
    scatters = (2 * LAYERS + 1) + (2 * LAYERS + 1)
    expected = gathers * (ring * slice_bytes / 5e9 + 7e-6) + scatters * (ring * slice_bytes / 3e9 + 7e-6)
    assert found == pytest.approx(batches * expected, rel=1e-12)


@pytest.mark.parametrize("data", [2, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_and_weights_go_round_the_data_ranks_once(data: int, precision: str, tmp_path: Path) -> None:
    element, ring = {"fp32": 4, "bf16": 2}[precision], (data - 1) / data
    found = planned(tmp_path, data, training__precision=precision, training__micro_batch_size=1)
    held = found.parameters_per_rank[0]
    expected = 4 * held * ring / 3e9 + 7e-6 + element * held * ring / 5e9 + 7e-6
    assert found.time.kinds["data_parallel"] == pytest.approx(expected, rel=1e-12)
    copied = 0 if precision == "fp32" else 4 + 2
    # Six passes of AdamW (weight, gradient, two moments in; weight and moments out), three of norm and clipping.
    update = held / data * (7 * 4 + 3 * 4 + copied) / 19e9 + held * 3 * 4 / 13e9
    assert found.time.kinds["optimizer"] == pytest.approx(update, rel=1e-12)


def test_a_rank_alone_sends_nothing(tmp_path: Path) -> None:
    found = kinds(tmp_path, 1)
    assert found["tensor_parallel"] == found["data_parallel"] == 0


@pytest.mark.parametrize(("stage", "reductions", "gathers"), [(1, 1, 1), (2, 4, 1), (3, 4, 8)])
def test_zero_reduces_and_gathers_as_often_as_it_says(
    stage: int, reductions: int, gathers: int, tmp_path: Path
) -> None:
    chosen = {"engine__kind": "deepspeed", "engine__deepspeed__zero_stage": stage, "training__micro_batch_size": 1}
    found = planned(tmp_path, 2, **chosen)
    held = found.parameters_per_rank[0]
    expected = reductions * 4 * held / 2 / 3e9 + 7e-6 + gathers * 4 * held / 2 / 5e9 + 7e-6
    assert found.time.kinds["data_parallel"] == pytest.approx(expected, rel=1e-12)


def source_counts() -> list[int]:
    """Of blocks of two sublayers: the embedding, complete blocks and the open one; the head last."""
    return [1 + reader // 2 + reader % 2 for reader in range(2 * LAYERS + 1)]


@pytest.mark.parametrize(("tensor", "sequence"), [(1, "false"), (2, "false"), (2, "true"), (4, "true")])
def test_the_depth_mix_reads_and_writes_what_its_readers_read(tensor: int, sequence: str, tmp_path: Path) -> None:
    """Forward S and the mix; backward S and the gradient, S gradients read and written, and the mix's twice more."""
    shards = tensor if sequence == "true" else 1
    found = kinds(tmp_path, tensor, parallel__tensor=tensor, parallel__sequence=sequence)
    slices = sum((s + 1) + (3 * s + 2) for s in source_counts())
    assert found["depth_mix"] == pytest.approx(4 * slices * TOKENS * WIDTH * 4 / shards / 17e9, rel=1e-12)


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_products_and_attention_are_shared_by_the_tensor_ranks(tensor: int, tmp_path: Path) -> None:
    found = kinds(tmp_path, tensor, parallel__tensor=tensor)
    matrices = LAYERS * (WIDTH * (2 * WIDTH + 2 * KEY_VALUE) + 3 * WIDTH * INNER)
    assert found["layers"] == pytest.approx(4 * 3 * 2 * matrices * TOKENS / tensor / 1e12, rel=1e-12)
    attended = LAYERS * 2 * WIDTH * 32  # of 32 positions half are seen, by scores and by their sum
    assert found["attention"] == pytest.approx(4 * 3.5 * attended * TOKENS / tensor / 3e11, rel=1e-12)
    logits = TOKENS * rows(tensor) / tensor
    softmax = 8 + 16 if tensor == 1 else 36 + 20
    head = 3 * 2 * rows(tensor) * WIDTH * TOKENS / tensor / 7e11 + logits * softmax / 11e9
    assert found["head"] == pytest.approx(4 * head, rel=1e-12)


@pytest.mark.parametrize(("tensor", "sequence"), [(1, "false"), (2, "false"), (2, "true"), (4, "true")])
def test_activations_are_halved_where_tokens_are_and_nowhere_else(tensor: int, sequence: str, tmp_path: Path) -> None:
    """Elements and scalars a token, by what each part keeps; norms on queries and keys are off here."""
    shards = tensor if sequence == "true" else 1
    settings = {"parallel__tensor": tensor, "parallel__sequence": sequence, "model__qk_norm": "false"}
    found = planned(tmp_path, tensor, None, **settings).memory.activations
    divided = LAYERS * ((4 * WIDTH + 3 * KEY_VALUE) + 5 * INNER)
    whole = LAYERS * (2 * WIDTH + 2 * WIDTH) + 2 * WIDTH  # outputs, inputs; embedding and head
    scalars = sum(3 * s + 1 for s in source_counts())
    assert found == TOKENS * ((4 * whole + 4 * scalars) // shards + (4 * divided + 4 * rows(tensor)) // tensor)


def test_of_uneven_spans_that_are_made_again_the_largest_stands(tmp_path: Path) -> None:
    """Five layers in blocks of four sublayers: two spans of two layers, and one of one."""
    settings = {"model__num_layers": 5, "model__qk_norm": "false", "residual__block_size": 4}
    found = planned(tmp_path, 1, None, training__recompute="block", **settings).memory.activations
    layer = (4 * WIDTH + 3 * KEY_VALUE) + 5 * INNER + 2 * WIDTH + 2 * WIDTH
    leaves = 2 + 1  # two blocks, and the partial of the last
    head_scalars = 3 * (1 + 2 + 1) + 1
    kept = TOKENS * (4 * (leaves * WIDTH + 2 * WIDTH) + 4 * head_scalars + 4 * rows(1))
    assert found == kept + TOKENS * 4 * 2 * layer


def test_the_first_replica_that_crosses_nodes_sets_the_pace_of_the_data_ranks(tmp_path: Path) -> None:
    """Four data ranks of two tensor ranks on nodes of four: two data ranks a node share its network."""
    far = replace(NEAR, reduce_scatter_bytes_per_second=1e9, all_gather_bytes_per_second=4e9)
    machine = replace(MACHINE, devices_per_node=4, far=far)
    found = planned(tmp_path, 8, machine, parallel__tensor=2, training__micro_batch_size=1)
    held = found.parameters_per_rank[0]
    expected = 4 * held * 3 / 4 / 2e9 + 4 * held * 3 / 4 / 5e9 + 2 * 7e-6
    assert found.time.kinds["data_parallel"] == pytest.approx(expected, rel=1e-12)


def test_a_step_over_two_stages_ends_with_its_slowest(tmp_path: Path) -> None:
    """Of a tied table both ends reduce the gradient; the figures of the page follow from the step."""
    found = planned(tmp_path, 2, parallel__pipeline=2, model__tie_embeddings="true")
    time = found.time
    assert sum(time.kinds.values()) == pytest.approx(time.step_seconds, rel=1e-12)
    assert time.kinds["data_parallel"] == pytest.approx(4 * rows(1) * WIDTH / 2e9, rel=1e-12)
    assert time.tokens_per_second == pytest.approx(8 * 32 / time.step_seconds, rel=1e-12)
    assert time.run_hours == pytest.approx(20 * time.step_seconds / 3600, rel=1e-12)
    assert time.device_hours == pytest.approx(2 * time.run_hours, rel=1e-12)
    flops = found.setup.flops_per_token * 8 * 32
    assert time.model_flops_utilisation == pytest.approx(flops / (time.step_seconds * 2 * 1e13), rel=1e-12)


def test_traffic_is_counted_over_every_rank_that_sends(tmp_path: Path) -> None:
    """Three stages, tensor 2 with shards, data 2: hops of whole prefixes, in bytes of one shard on each tensor rank."""
    settings = {"parallel__pipeline": 3, "parallel__tensor": 2, "parallel__sequence": "true"}
    found = planned(tmp_path, 12, None, training__micro_batch_size=1, model__num_layers=6, **settings).wire
    slice_bytes = 32 * WIDTH * 4 // 2
    hops = 3 + 5  # two layers a stage, a block each: the embedding and two blocks, then two more
    assert found.slice_bytes == slice_bytes
    assert found.step_forward_bytes == hops * slice_bytes * 4 * 2 * 2
    assert [rank.forward_bytes for rank in found.ranks] == [3 * slice_bytes, 5 * slice_bytes, 0]
    assert [rank.backward_bytes for rank in found.ranks] == [0, 3 * slice_bytes, 5 * slice_bytes]


def test_two_ends_that_share_no_table_reduce_nothing(tmp_path: Path) -> None:
    settings = {"parallel__pipeline": 2, "model__tie_embeddings": "false"}
    assert planned(tmp_path, 2, **settings).time.kinds["data_parallel"] == 0


def test_figures_of_the_page_are_of_all_replicas_and_all_nodes(tmp_path: Path) -> None:
    """Four replicas on nodes of three devices: two disks take the save, and every device has its share of the work."""
    found = planned(tmp_path, 4, replace(MACHINE, devices_per_node=3), training__micro_batch_size=1)
    flops = found.setup.flops_per_token * 8 * 32
    assert found.time.model_flops_utilisation == pytest.approx(flops / (found.time.step_seconds * 4 * 1e13), rel=1e-12)
    assert found.time.device_hours == pytest.approx(4 * 20 * found.time.step_seconds / 3600, rel=1e-12)
    assert found.time.checkpoint_seconds == pytest.approx(found.checkpoint.total_bytes / 2e9, rel=1e-12)


def test_history_on_a_middle_stage_is_what_came_waits_and_goes_back(tmp_path: Path) -> None:
    """Three stages of two layers, a block each: 3 slices come in, 5 go on, two micro-batches are in flight."""
    found = planned(tmp_path, 3, None, parallel__pipeline=3, model__num_layers=6)
    slices = [worst_rank_memory(found.setup, [rank]).depth_history / (TOKENS * WIDTH * 4) for rank in range(3)]
    assert slices == [0 + 3, 2 * 3 + 5 + 3, 1 * 5 + 5]


def test_a_message_takes_the_latency_of_the_link_it_crosses_both_ways() -> None:
    """Of the link into each stage: 5 s into the second, 7 into the third."""
    wire = WirePlan(DepthLayout(6, "block", 2), (1, 1, 1), 3)
    hops, nothing = (0.0, 0.5, 0.25), (0.0, 0.0, 0.0)
    costs = TurnSeconds((1.0,) * 3, (2.0,) * 3, hops, hops, nothing, (0.0, 5.0, 7.0), ahead=False)
    assert play(Schedule(3, 1, 1), wire, costs).seconds == 3 * 3.0 + 2 * (0.5 + 5 + 0.25 + 7)


def layer_elements(tensor: int = 1, shards: int = 1) -> float:
    """Elements a token that a layer's forward reads and writes, without norms on queries and keys."""
    divided = 9 * (WIDTH + KEY_VALUE) + 2 * WIDTH + 5 * INNER  # rotary, a transpose, SwiGLU
    return divided / tensor + 2 * 3 * WIDTH / shards  # and two additions to the running sum


OPERATIONS = 45 + 25
"""Of a layer's forward; twice that in its backward."""


@pytest.mark.parametrize(("tensor", "sequence"), [(1, "false"), (2, "false"), (2, "true")])
def test_elements_gradients_and_operations_are_counted_once_each(tensor: int, sequence: str, tmp_path: Path) -> None:
    """The embedding, which one process looks up, is all on each tensor rank, and has its gradient cleared."""
    settings = {"parallel__tensor": tensor, "parallel__sequence": sequence, "model__qk_norm": "false"}
    found = planned(tmp_path, tensor, **settings)
    layer = layer_elements(tensor, tensor if sequence == "true" else 1)
    elements = TOKENS * 4 * (3 * LAYERS * layer + 2 * WIDTH)
    assert found.time.kinds["elements"] == pytest.approx(4 * elements / 13e9, rel=1e-12)
    sums = found.parameters_per_rank[0] * 3 * 4 + rows(tensor) * WIDTH // tensor * 4
    assert found.time.kinds["gradient_sums"] == pytest.approx(4 * sums / 13e9, rel=1e-12)
    operations = 3 * LAYERS * OPERATIONS + 4 + 3 * 15
    assert found.time.kinds["host"] == pytest.approx(4 * operations * 2e-6, rel=1e-12)


def test_a_host_that_runs_ahead_costs_what_the_device_does_not_take(tmp_path: Path) -> None:
    """With slow operations all of a step is the host's; with fast ones nothing is."""
    slow = replace(RATES, operation_seconds=1.0)
    machine = replace(MACHINE, asynchronous=True, alone=slow, together=slow)
    found = planned(tmp_path, 1, machine).time.kinds
    device = sum(seconds for kind, seconds in found.items() if kind not in ("host", "optimizer", "waiting"))
    assert found["host"] + device == pytest.approx(4 * (3 * LAYERS * OPERATIONS + 4 + 3 * 15), rel=1e-12)
    fast = replace(RATES, operation_seconds=1e-12)
    assert planned(tmp_path, 1, replace(machine, alone=fast, together=fast)).time.kinds["host"] == 0


def test_the_stages_of_a_pipeline_have_their_own_work_alone(tmp_path: Path) -> None:
    """The first looks tokens up and clears the gradient of its table, the last has the head."""
    found = planned(tmp_path, 2, parallel__pipeline=2, model__qk_norm="false", model__tie_embeddings="false")
    matrices = 2 * (WIDTH * (2 * WIDTH + 2 * KEY_VALUE) + 3 * WIDTH * INNER)
    products = 2 * matrices * TOKENS / 1e12
    attention = 2 * 2 * WIDTH * 32 * TOKENS / 3e11
    elements, host = TOKENS * 4 * 2 * layer_elements() / 13e9, 2 * OPERATIONS * 2e-6
    layers = products + attention + elements + host
    again = 2 * products + 2.5 * attention + 2 * elements + 2 * host
    slice_seconds = TOKENS * WIDTH * 4 / 17e9
    counts = source_counts()
    forward = [sum(s + 1 for s in part) * slice_seconds for part in (counts[:4], counts[4:])]
    backward = [sum(3 * s + 2 for s in part) * slice_seconds for part in (counts[:4], counts[4:])]
    embedding = TOKENS * 4 * 2 * WIDTH / 13e9 + 4 * 2e-6
    product, logits = 2 * rows(1) * WIDTH * TOKENS / 7e11, TOKENS * rows(1) / 11e9
    held = found.parameters_per_rank
    first, last = found.time.stages
    assert first.forward == pytest.approx(layers + forward[0] + embedding, rel=1e-12)
    assert first.backward == pytest.approx(again + backward[0] + (held[0] * 12 + rows(1) * WIDTH * 4) / 13e9, rel=1e-12)
    assert last.forward == pytest.approx(layers + forward[1] + product + 8 * logits + 15 * 2e-6, rel=1e-12)
    head_backward = 2 * product + 16 * logits + 2 * 15 * 2e-6
    assert last.backward == pytest.approx(again + backward[1] + held[1] * 12 / 13e9 + head_backward, rel=1e-12)
    assert found.time.busiest_rank == 1


def test_logits_of_bf16_are_cast_both_ways(tmp_path: Path) -> None:
    found = kinds(tmp_path, 1, training__precision="bf16")["head"]
    product = 3 * 2 * rows(1) * WIDTH * TOKENS / 7e11
    assert found == pytest.approx(4 * (product + TOKENS * rows(1) * (8 + 16 + 2 * 6) / 11e9), rel=1e-12)


@pytest.mark.parametrize("tensor", [1, 2])
def test_what_is_made_again_costs_its_forward(tensor: int, tmp_path: Path) -> None:
    """The mix alone, or all of the layers; what crosses the tensor ranks once more counts there."""
    settings = {"parallel__tensor": tensor, "model__qk_norm": "false"}
    none, depth, layer = (
        kinds(tmp_path, tensor, training__recompute=what, **settings) for what in ("none", "depth", "layer")
    )
    mix = sum(s + 1 for s in source_counts()[:-1]) * TOKENS * WIDTH * 4 / 17e9
    assert (none["recompute"], depth["recompute"]) == (0, pytest.approx(4 * mix, rel=1e-12))
    matrices = LAYERS * (WIDTH * (2 * WIDTH + 2 * KEY_VALUE) + 3 * WIDTH * INNER)
    once = 2 * matrices * TOKENS / tensor / 1e12 + LAYERS * 2 * WIDTH * 32 * TOKENS / tensor / 3e11
    once += TOKENS * 4 * LAYERS * layer_elements(tensor) / 13e9 + LAYERS * OPERATIONS * 2e-6
    assert layer["recompute"] == pytest.approx(4 * (mix + once), rel=1e-12)
    reduce = 2 * (tensor - 1) / tensor * TOKENS * WIDTH * 4 / 2e9 + 7e-6 if tensor > 1 else 0
    assert layer["tensor_parallel"] - none["tensor_parallel"] == pytest.approx(4 * 2 * LAYERS * reduce, rel=1e-9)
    assert depth["tensor_parallel"] == none["tensor_parallel"]


def test_modes_without_a_kernel_pass_three_times_over_memory(tmp_path: Path) -> None:
    settings = {"residual__mode": "gated", "residual__block_size": "none"}
    found = kinds(tmp_path, 1, **settings)["depth_mix"]
    slices = (2 * LAYERS + 1) * ((1 + 1) + (3 + 2))
    assert found == pytest.approx(4 * 3 * slices * TOKENS * WIDTH * 4 / 17e9, rel=1e-12)


def test_an_update_in_host_memory_has_its_own_rate(tmp_path: Path) -> None:
    chosen = {"engine__kind": "deepspeed", "engine__deepspeed__offload_optimizer": "true"}
    found = planned(tmp_path, 2, **chosen, training__micro_batch_size=1)
    held = found.parameters_per_rank[0]
    update = held / 2 * (7 * 4 + 3 * 4) / 10e9 + held * 3 * 4 / 13e9
    assert found.time.kinds["optimizer"] == pytest.approx(update, rel=1e-12)


def test_buffers_are_messages_posted_and_the_largest_moment(tmp_path: Path) -> None:
    """Three stages of two layers, a block each, under ZeRO-1, which pads nothing here; gradients of sources that a hop
    brings back are its own."""
    settings = {"parallel__pipeline": 3, "model__num_layers": 6, "engine__kind": "deepspeed"}
    setup = planned(tmp_path, 3, None, **settings).setup
    slice_bytes = TOKENS * WIDTH * 4
    mlp = 4 * (TOKENS * (3 * INNER + WIDTH) + 2 * INNER * WIDTH)
    head = TOKENS * rows(1) * (4 + 4)
    assert head > mlp
    found = [worst_rank_memory(setup, [rank]).buffers for rank in range(3)]
    assert found == [mlp + 3 * slice_bytes, mlp + (3 + 5) * slice_bytes, head + (5 + 2) * slice_bytes]


def test_what_a_rank_keeps_is_what_came_and_what_it_made_of_every_micro_batch_in_flight(tmp_path: Path) -> None:
    found = planned(tmp_path, 3, None, parallel__pipeline=3, model__num_layers=6).wire
    assert [rank.kept_slices for rank in found.ranks] == [3 * (0 + 3), 2 * (3 + 2), 1 * (5 + 2)]
    assert [rank.kept_bytes for rank in found.ranks] == [slices * TOKENS * WIDTH * 4 for slices in (9, 10, 7)]


def test_a_save_has_a_tied_table_once_and_the_streams_of_every_rank(tmp_path: Path) -> None:
    settings = {"model__tie_embeddings": "true", "training__micro_batch_size": 1}
    one, two, four = (
        planned(tmp_path, world, None, parallel__pipeline=pipeline, **settings)
        for world, pipeline in ((1, 1), (2, 2), (4, 2))
    )
    real = one.parameters_total - (rows(1) - 320) * WIDTH
    assert {found.checkpoint.state_bytes for found in (one, two, four)} == {12 * real}
    assert four.checkpoint.total_bytes - two.checkpoint.total_bytes == 2 * 22_429
    assert [found.checkpoint.files for found in (one, two, four)] == [6, 8, 12]


def test_the_peak_of_an_interleaved_step_is_not_that_of_its_first_group(tmp_path: Path) -> None:
    settings = {"parallel__pipeline": 2, "parallel__virtual": 2, "model__num_layers": 4}
    setup = planned(tmp_path, 2, None, training__global_batch_size=64, **settings).setup
    whole, shown = (schedule.at_peak(0, [1, 1]) for schedule in (setup.schedule, setup.schedule_to_peak))
    assert shown == whole and sum(whole.in_flight) == 5


def test_what_leaves_early_is_what_is_complete_before_the_senders_last_layer(tmp_path: Path) -> None:
    """Two layers a stage, a block each: the embedding and the first block of three sources."""
    setup = planned(tmp_path, 2, None, parallel__pipeline=2).setup
    assert Timing(setup, MACHINE).costs.early_shares == (0.0, 2 / 3)
    assert Timing(setup, replace(MACHINE, asynchronous=True)).costs.early_shares == (0.0, 0.0)


def test_uneven_stages_wait_by_what_all_of_them_compute() -> None:
    wire, none = WirePlan(DepthLayout(4, "block", 2), (1, 1), 2), (0.0, 0.0)
    played = play(Schedule(2, 1, 8), wire, TurnSeconds((1.0, 3.0), (2.0, 6.0), none, none, none, none, ahead=False))
    assert played.seconds == 1 + 8 * 9 + 2 and played.busy == (24.0, 72.0)
    assert played.bubble_fraction == pytest.approx(1 - (24 + 72) / (2 * 75))


def test_a_table_of_both_ends_is_cut_over_the_data_ranks_by_itself(tmp_path: Path) -> None:
    """Of an odd number of 64 elements each, the table and the rest of the last stage are both filled up to 128."""
    settings = {"parallel__pipeline": 2, "model__tie_embeddings": "true", "model__qk_norm": "false"}
    settings |= {"tokenizer__vocab_size": 321, "model__pad_vocabulary_to": 1, "training__micro_batch_size": 1}
    setup = planned(tmp_path, 4, None, **settings).setup
    table = 321 * WIDTH
    rest = setup.held_by(1) - table
    assert (table % 128, rest % 128) == (64, 64)
    found = worst_rank_memory(setup, [1])
    assert found.moments == 8 * ((table + 64) // 2 + (rest + 64) // 2)
    apart = planned(tmp_path, 4, None, **settings | {"model__tie_embeddings": "false"}).setup
    together = worst_rank_memory(apart, [1])
    assert together.moments == 8 * (table + rest) // 2
    assert found.buffers - together.buffers == (64 + 64) * (4 + 4), "what fills them is a weight and a gradient"


def test_the_largest_span_of_any_chunk_stands_while_it_is_made_again(tmp_path: Path) -> None:
    """Rank 0 has one layer of the first block, and in its second chunk both of the last one."""
    settings = {"parallel__pipeline": 2, "parallel__virtual": 2, "parallel__layers_per_stage": "[1, 1, 2, 1]"}
    settings |= {"model__num_layers": 5, "residual__block_size": 4, "model__qk_norm": "false"}
    setup = planned(tmp_path, 2, None, training__recompute="block", **settings).setup
    visits = [visit_bytes(setup, stage) for stage in (0, 2)]
    weights = [visit.activations + visit.history for visit in visits]
    standing = setup.schedule_to_peak.at_peak(0, weights, [visit.owed for visit in visits])
    kept = sum(n * visit.activations for n, visit in zip(standing.in_flight, visits, strict=True))
    layer = (4 * WIDTH + 3 * KEY_VALUE) + 5 * INNER + 2 * WIDTH + 2 * WIDTH
    assert worst_rank_memory(setup, [0]).activations == kept + TOKENS * 4 * 2 * layer


def test_the_fullest_rank_is_the_one_with_the_largest_total(tmp_path: Path) -> None:
    """Three stages: the first has most in flight, a wide vocabulary makes the last the fullest."""
    found = [
        planned(tmp_path, 3, None, parallel__pipeline=3, model__num_layers=6, tokenizer__vocab_size=entries)
        for entries in (320, 9000)
    ]
    for one, fullest in zip(found, (0, 2), strict=True):
        ranks = [worst_rank_memory(one.setup, [rank]) for rank in range(3)]
        assert one.memory == ranks[fullest] and one.memory.total == max(rank.total for rank in ranks)
