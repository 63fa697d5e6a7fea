"""Seconds: devices and device files, a schedule played through, and what a step is made of."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.config.load import load
from attnres_train.depth.layout import DepthLayout
from attnres_train.errors import Refused
from attnres_train.parallel.schedule import Schedule
from attnres_train.parallel.wire import WirePlan
from attnres_train.plan import as_json, plan
from attnres_train.plan.device_file import DeviceFile, device_file_text, find_machine, read_device_file
from attnres_train.plan.devices import devices
from attnres_train.plan.simulate import TurnSeconds, play, play_long
from attnres_train.plan.speeds import Links, Machine, machine_of
from attnres_train.plan.text import plan_text
from tests.pace import slowdown
from tests.unit.config_files import flags, small

PUBLISHED = Path(__file__).parents[2] / "configs/published"
H100 = machine_of(devices()["h100-sxm"], "bf16")


def wire_of(pipeline: int, virtual: int) -> WirePlan:
    stages = pipeline * virtual
    return WirePlan(DepthLayout(2 * stages, "block", 2), (1,) * stages, pipeline, virtual, cache=virtual > 1)


def costs_of(forward: list[float], backward: list[float], hop: float = 0.0, ahead: bool = False) -> TurnSeconds:
    stages = len(forward)
    hops, nothing = (0.0, *[hop] * (stages - 1)), (0.0,) * stages
    return TurnSeconds(tuple(forward), tuple(backward), hops, hops, nothing, nothing, ahead)


@given(pipeline=st.integers(1, 5), virtual=st.integers(1, 3), groups=st.integers(1, 4))
def test_equal_stages_without_messages_have_the_bubble_of_the_formula(pipeline: int, virtual: int, groups: int) -> None:
    virtual = virtual if pipeline > 1 else 1
    stages, count = pipeline * virtual, groups * pipeline
    played = play(
        Schedule(pipeline, virtual, count), wire_of(pipeline, virtual), costs_of([1.0] * stages, [2.0] * stages)
    )
    assert played.seconds == pytest.approx(3 * (count * virtual + pipeline - 1))
    assert played.bubble_fraction == pytest.approx((pipeline - 1) / (virtual * count + pipeline - 1))


@settings(deadline=None)
@given(
    pipeline=st.integers(2, 5),
    virtual=st.integers(1, 3),
    groups=st.integers(8, 14),
    hop=st.sampled_from([0.0, 0.1, 0.7]),
    ahead=st.booleans(),
    data=st.data(),
)
def test_a_long_step_is_as_long_as_its_groups_say(
    pipeline: int, virtual: int, groups: int, hop: float, ahead: bool, data: st.DataObject
) -> None:
    stages = pipeline * virtual
    uneven = data.draw(st.lists(st.sampled_from([1.0, 1.5, 2.0]), min_size=stages, max_size=stages))
    costs = costs_of(uneven, [2 * seconds for seconds in uneven], hop, ahead)
    schedule, wire = Schedule(pipeline, virtual, groups * pipeline), wire_of(pipeline, virtual)
    whole, short = play(schedule, wire, costs), play_long(schedule, wire, costs)
    assert short.seconds == pytest.approx(whole.seconds, rel=0.02)
    assert short.bubble_fraction == pytest.approx(whole.bubble_fraction, abs=0.02)


def test_the_pace_of_a_long_step_is_that_of_groups_that_alternate() -> None:
    """One group takes 16.3 seconds and the next 14.9, by turns."""
    costs, wire = costs_of([1.0, 1.5, 1.5], [2.0, 3.0, 3.0], hop=0.7, ahead=True), wire_of(3, 1)
    one, two, three = (play(Schedule(3, 1, 3 * groups), wire, costs).seconds for groups in (10, 11, 12))
    assert (two - one, three - two) == (pytest.approx(16.3), pytest.approx(14.9))
    long = Schedule(3, 1, 3 * 41)
    assert play_long(long, wire, costs).seconds == pytest.approx(play(long, wire, costs).seconds, rel=0.005)


def test_a_dear_stage_sets_the_pace_and_a_hop_delays_what_waits_for_it() -> None:
    schedule, wire = Schedule(2, 1, 8), wire_of(2, 1)
    assert play(schedule, wire, costs_of([1.0, 3.0], [2.0, 6.0])).seconds == pytest.approx(1 + 8 * 9 + 2)
    even, late = (play(schedule, wire, costs_of([1.0, 1.0], [2.0, 2.0], hop)).seconds for hop in (0.0, 0.5))
    assert late >= even + 1.0, "a history there, a gradient back"
    ahead = play(schedule, wire, costs_of([1.0, 1.0], [2.0, 2.0], 0.5, ahead=True)).seconds
    assert even < ahead <= late


def test_no_message_overtakes_another_on_its_link() -> None:
    played = play(Schedule(2, 2, 4), wire_of(2, 2), costs_of([1.0] * 4, [2.0] * 4, hop=1.5, ahead=True))
    for forward in (True, False):
        for sender in (0, 1):
            mine = sorted(m for m in played.messages if m.forward == forward and m.from_stage % 2 == sender)
            times = sorted((m.start, m.end) for m in mine)
            assert all(after >= before for (_, before), (after, _) in zip(times, times[1:], strict=False))


@pytest.mark.parametrize("name", devices())
def test_every_device_says_where_its_figures_come_from(name: str) -> None:
    device = devices()[name]
    assert "data sheet" in device.source
    assert device.fp32_flops_per_second < device.bf16_flops_per_second
    assert device.network_bytes_per_second < device.link_bytes_per_second < device.memory_bytes_per_second


FIGURES = {
    "a100-80gb": (312e12, 19.5e12, 79, 2.039e12, 300e9, 25e9),
    "h100-sxm": (989e12, 67e12, 79, 3.35e12, 450e9, 50e9),
    "h200": (989e12, 67e12, 139, 4.8e12, 450e9, 50e9),
    "b200": (2250e12, 75e12, 178, 8e12, 900e9, 50e9),
    "mi300x": (1307.4e12, 163.4e12, 191, 5.3e12, 448e9, 50e9),
}
"""Dense bf16, plain fp32 (no TF32), GiB, memory, the node's links and network one way, all by a device."""


def test_figures_of_devices_are_those_of_their_data_sheets() -> None:
    names = ("bf16_flops", "fp32_flops", "memory_gib", "memory_bytes", "link_bytes", "network_bytes")
    for name, device in devices().items():
        keys = [key if key == "memory_gib" else f"{key}_per_second" for key in names]
        assert tuple(getattr(device, key) for key in keys) == FIGURES[name]
        assert device.devices_per_node == 8 and device.peak_flops_per_second("fp32") == device.fp32_flops_per_second
    assert devices().keys() == FIGURES.keys()


def test_shares_of_a_data_sheet_are_the_stated_ones() -> None:
    half, single = (machine_of(devices()["h100-sxm"], precision) for precision in ("bf16", "fp32"))
    assert half.alone.matmul_flops_per_second == half.alone.head_flops_per_second == 0.65 * 989e12
    assert single.alone.matmul_flops_per_second == 0.8 * 67e12
    assert half.alone.attention_flops_per_second == pytest.approx(0.6 * 0.65 * 989e12)
    assert half.alone.depth_bytes_per_second == pytest.approx(0.6 * 3.35e12)
    assert half.alone.memory_bytes_per_second == half.alone.optimizer_bytes_per_second == 0.8 * 3.35e12
    assert half.usable_bytes == pytest.approx(0.9 * 79 * 2**30)
    assert (half.near.send_latency_seconds, half.far.collective_latency_seconds) == (10e-6, 25e-6)
    assert (half.near.all_gather_bytes_per_second, half.far.send_bytes_per_second) == (0.75 * 450e9, 0.85 * 50e9)
    assert half.together == half.alone and half.asynchronous and not half.measured


def test_a_measured_network_is_the_one_between_nodes() -> None:
    network = replace(H100.near, send_bytes_per_second=1e8)
    machine = a_file(network=network).machine()
    assert (machine.near, machine.far) == (H100.near, network)


def test_kinds_sum_up_to_the_step_and_a_faster_device_is_faster() -> None:
    config = load(PUBLISHED / "llama-70b-block.toml").config
    slow, fast = (plan(config, 256, machine=machine_of(devices()[name], "bf16")).time for name in ("a100-80gb", "b200"))
    assert slow is not None and fast is not None
    assert sum(slow.kinds.values()) == pytest.approx(slow.step_seconds)
    assert all(seconds >= 0 for seconds in slow.kinds.values())
    assert fast.step_seconds < slow.step_seconds / 3
    assert 0.2 < slow.model_flops_utilisation < 0.65, "what trainings of this size reach"


@pytest.mark.parametrize("recompute", ["depth", "block", "layer"])
def test_what_is_made_again_costs_time_and_saves_memory(recompute: str) -> None:
    path = PUBLISHED / "llama-8b-block.toml"
    one, again = (plan(load(path, flags(training__recompute=r)).config, 64, machine=H100) for r in ("none", recompute))
    assert one.time is not None and again.time is not None
    assert one.time.kinds["recompute"] == 0 < again.time.kinds["recompute"]
    assert again.time.step_seconds > one.time.step_seconds and again.memory.total < one.memory.total


def test_more_data_ranks_make_a_step_shorter_by_less_than_their_number() -> None:
    config = load(PUBLISHED / "llama-8b-block.toml").config
    one, four = (plan(config, 8 * data, machine=H100).time for data in (1, 4))
    assert one is not None and four is not None
    assert one.step_seconds / 4 < four.step_seconds < one.step_seconds / 3
    assert one.kinds["data_parallel"] == 0 < four.kinds["data_parallel"]


def test_93_layers_on_1024_devices_are_planned_in_a_moment() -> None:
    config = load(PUBLISHED / "k3-like.toml", flags(training__global_batch_size=65536)).config
    started = time.process_time()
    found = plan(config, 1024, machine=H100)
    seconds = time.process_time() - started
    assert seconds < 3 * slowdown() and found.setup.micro_batches == 4096


def a_file(**changes: object) -> DeviceFile:
    values = {
        "name": "mine",
        "precision": "bf16",
        "shapes": "a test",
        "peak_flops_per_second": 1e12,
        "memory_gib": 16.0,
        "devices_per_node": 2,
        "disk_bytes_per_second": 1e9,
        "alone": H100.alone,
        "together": replace(H100.together, matmul_flops_per_second=1e11),
        "link": H100.near,
    }
    return DeviceFile(**values | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_device_file_reads_as_it_was_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mine.{suffix}"
    path.write_text(device_file_text(a_file()), encoding="utf-8")
    if suffix == "json":
        import tomllib

        path.write_text(json.dumps(tomllib.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    machine: Machine = find_machine(str(path), "bf16")
    assert machine.measured and machine.rates(1).matmul_flops_per_second == pytest.approx(0.65 * 989e12)
    assert machine.rates(2).matmul_flops_per_second == 1e11 and machine.far == machine.near


def test_wrong_devices_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="h100-sxm"):
        find_machine("h100", "bf16")
    with pytest.raises(Refused, match="no share"):
        find_machine("h200", "bf16", 1.5)
    path = tmp_path / "mine.toml"
    path.write_text(device_file_text(a_file()).replace("memory_gib", "memory_gb"), encoding="utf-8")
    with pytest.raises(Refused) as caught:
        read_device_file(path)
    told = {problem.key.split(": ")[-1]: problem for problem in caught.value.problems}
    assert set(told) == {"memory_gib", "memory_gb"} and "memory_gib" in told["memory_gb"].remedy


def test_efficiency_scales_products_alone() -> None:
    one, half = (machine_of(devices()["h200"], "bf16", share) for share in (0.8, 0.4))
    assert half.alone.matmul_flops_per_second == one.alone.matmul_flops_per_second / 2
    assert half.alone.memory_bytes_per_second == one.alone.memory_bytes_per_second


def test_the_page_says_whether_it_fits_and_what_is_assumed(tmp_path: Path) -> None:
    config = load(PUBLISHED / "llama-70b-block.toml").config
    text = plan_text(plan(config, 256, machine=H100), "title")
    assert "fits 71.1 GiB" in text and "65 % of 989 TFLOP/s" in text and "tokens/s" in text
    assert max(map(len, text.splitlines())) <= 122
    big = plan(load(PUBLISHED / "llama-70b-block.toml", flags(parallel__tensor=1, parallel__sequence="false")).config)
    assert big.fits is None and as_json(big)["time"] is None
    assert as_json(replace(big, machine=H100))["fits"] is False
    assert "does NOT fit" in plan_text(replace(big, machine=H100), "title")


def test_the_published_parameter_count_of_llama_3_70b_comes_out() -> None:
    same = {"residual__mode": "standard", "residual__block_size": "none", "parallel__tensor": 1}
    overrides = flags(**same)
    assert plan(load(PUBLISHED / "llama-70b-block.toml", overrides).config).parameters_total == 70_553_706_496


def test_a_small_config_has_a_checkpoint_and_no_time(tmp_path: Path) -> None:
    found = plan(small(tmp_path))
    real_rows = found.parameters_total - 2 * (384 - 320) * 64
    assert found.checkpoint.state_bytes == 12 * real_rows
    assert found.time is None and found.machine is None


def test_two_devices_of_a_mesh_have_one_link_between_them_and_those_of_a_switch_all() -> None:
    """An MI300X has seven links of 64 GB/s: one to each neighbour of its node."""
    mesh, switch = machine_of(devices()["mi300x"], "bf16"), machine_of(devices()["h100-sxm"], "bf16")
    assert mesh.near_of(2).send_bytes_per_second == pytest.approx(0.75 * 64e9)
    assert mesh.near_of(4).all_reduce_bytes_per_second == pytest.approx(3 * 0.75 * 64e9)
    assert mesh.near_of(8) == mesh.near and switch.near_of(2) == switch.near
    assert "7 links" in mesh.assumptions


def test_a_hop_that_leaves_the_node_for_any_replica_is_one_between_nodes() -> None:
    """3 replicas a pipeline rank: ranks 3 to 5 send to 6 to 8, and rank 8 is in the next node of 8."""
    links = Links(H100, wire_of(3, 1), tensor=1, data=3)
    assert [links.into(stage) == H100.far for stage in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[1, 2]", "holds a list"),
        ('{"memory_gib": Infinity}', "memory_gib: inf is no finite number"),
        ('{"link": {"send_latency_seconds": NaN}}', "link.send_latency_seconds: nan is no finite number"),
        ('{"link": 3}', "link: 3 is no table"),
        ('{"precision": "fp8"}', "precision: Input should be 'fp32' or 'bf16'"),
    ],
)
def test_a_device_file_of_nonsense_is_refused_by_key(tmp_path: Path, text: str, wanted: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Refused, match=wanted):
        read_device_file(path)


def test_speeds_of_another_precision_say_so(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(device_file_text(a_file()), encoding="utf-8")
    assert "this run is in fp32" in find_machine(str(path), "fp32").assumptions
    assert "this run" not in find_machine(str(path), "bf16").assumptions
