"""What the doctor says of speeds and of what a step needs, with measured seconds given: by hand, to the last digit."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnres_train.config.load import load_checked
from attnres_train.doctor import device, processes, rates, speed
from attnres_train.doctor.device import Shapes, measure_device, shapes_of
from attnres_train.doctor.look import needs
from attnres_train.plan import plan
from attnres_train.setup import Setup
from tests.unit.config_files import flags, small, write

MIB = 2**20
SECONDS_A_BYTE = {"all_reduce": 1e-9, "reduce_scatter": 2e-9, "all_gather": 3e-9, "there and back": 4e-9}
LATENCY = 1e-3


def test_the_shortest_time_counts_and_the_first_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now, takes = [0.0], iter([1.0, 7.0, 3.0, 5.0])
    monkeypatch.setattr(processes, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(processes, "dist", SimpleNamespace(barrier=lambda: None))

    def action() -> None:
        now[0] += next(takes)

    assert processes.seconds_together(action, torch.device("cpu"), 3) == 3.0


class Timed:
    """Collectives that say how long they took: a latency, and a time a byte of what is whole."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def _takes(self, kind: str, size: int) -> None:
        self.seconds = LATENCY + size * SECONDS_A_BYTE[kind]

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self._takes("all_reduce", tensor.nbytes)

    def reduce_scatter_tensor(self, part: torch.Tensor, whole: torch.Tensor) -> None:
        assert 4 * len(part) == len(whole)
        self._takes("reduce_scatter", whole.nbytes)

    def all_gather_into_tensor(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        assert 4 * len(part) == len(whole)
        self._takes("all_gather", whole.nbytes)

    def there_and_back(self, tensor: torch.Tensor, _rank: int) -> None:
        self.seconds = 2 * (LATENCY + tensor.nbytes * SECONDS_A_BYTE["there and back"])

    def seconds_together(self, action: Callable[[], object], _device: torch.device, _times: int) -> float:
        action()
        return self.seconds


def shapes(**changes: Any) -> Shapes:
    numbers = dict.fromkeys(
        ("tokens", "sequence", "width", "queries", "key_value", "heads", "groups", "ffn", "vocabulary"), 8
    )
    more = {"tensor": 1, "shards": 1, "passes": 1.0, "sources": 3, "square": 4}
    return Shapes("fp32", **numbers | more | {"hop_bytes": 4 * MIB, "collective_bytes": 8 * MIB} | changes)


def test_links_are_bus_rates_beyond_the_latency_of_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed()
    monkeypatch.setattr(rates, "dist", timed)
    monkeypatch.setattr(rates, "there_and_back", timed.there_and_back)
    monkeypatch.setattr(rates, "seconds_together", timed.seconds_together)
    found = rates._links(shapes(), 0, 4, torch.device("cpu"))
    small = 16  # bytes of the message that tells the latency
    assert found["send_latency_seconds"] == pytest.approx(LATENCY + small * 4e-9, rel=1e-12)
    assert found["collective_latency_seconds"] == pytest.approx(LATENCY + small * 1e-9, rel=1e-12)
    way = 4 * MIB * 4e-9 - small * 4e-9
    assert found["send_bytes_per_second"] == pytest.approx(4 * MIB / way, rel=1e-12)
    size, ring = 8 * MIB, 3 / 4
    for name, times, a_byte in (("all_reduce", 2, 1e-9), ("reduce_scatter", 1, 2e-9), ("all_gather", 1, 3e-9)):
        beyond = size * a_byte - small * 1e-9
        assert found[f"{name}_bytes_per_second"] == pytest.approx(times * ring * size / beyond, rel=1e-12), name
    assert rates._links(shapes(), 0, 1, torch.device("cpu")) == {}


def test_a_message_takes_at_least_half_of_its_time_beyond_the_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured apart, the latency of a tiny message may come out longer than a whole large one."""
    timed = Timed()
    monkeypatch.setattr(rates, "dist", timed)
    monkeypatch.setattr(rates, "there_and_back", timed.there_and_back)
    monkeypatch.setattr(rates, "seconds_together", timed.seconds_together)
    monkeypatch.setitem(SECONDS_A_BYTE, "there and back", -1e-12)
    found = rates._links(shapes(), 0, 4, torch.device("cpu"))
    assert found["send_bytes_per_second"] == pytest.approx(4 * MIB / ((LATENCY - 4 * MIB * 1e-12) / 2), rel=1e-12)


def test_the_speed_test_sends_both_ways(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    timed = Timed()
    timed.get_backend = lambda: "gloo"  # type: ignore[attr-defined]
    timed.destroy_process_group = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(speed, "dist", timed)
    monkeypatch.setattr(speed, "join_group", lambda: (0, 3, torch.device("cpu")))
    monkeypatch.setattr(speed, "there_and_back", timed.there_and_back)
    monkeypatch.setattr(speed, "seconds_together", timed.seconds_together)
    speed.main()
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["backend"]) == (3, "gloo")
    assert found["all_reduce_mib_per_second"] == pytest.approx(16 / (LATENCY + 16 * MIB * 1e-9))
    assert found["send_mib_per_second"] == pytest.approx(16 / (LATENCY + 16 * MIB * 4e-9))
    assert found["round_trip_seconds"] == pytest.approx(2 * (LATENCY + 4 * 4e-9))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_amounts_of_the_mix_and_of_the_softmax(tmp_path: Any, precision: str) -> None:
    config = small(tmp_path, *flags(training__precision=precision))
    found = shapes_of(Setup.of(config), gpu=False)
    amounts = {name: amount for name, (amount, _) in rates.actions_of(found, torch.device("cpu")).items()}
    element = {"fp32": 4, "bf16": 2}[precision]
    assert found.sources == 3  # 1, 2, 2, 3, 3, 4, 4, 5 and 5 of the head, on average
    assert amounts["depth_bytes_per_second"] == ((3 + 1) + (3 * 3 + 2)) * 64 * 64 * element
    casts = 0 if precision == "fp32" else 2 * 6
    assert amounts["softmax_bytes_per_second"] == 64 * 384 * (8 + 16 + casts)


def test_shapes_are_those_of_one_rank_of_the_configuration(tmp_path: Any) -> None:
    settings = {"parallel__tensor": 2, "model__num_query_groups": 2, "training__micro_batch_size": 4}
    found = shapes_of(Setup.of(small(tmp_path, *flags(**settings)), 2), gpu=False)
    assert (found.width, found.key_value, found.heads, found.groups) == (64, 32, 4, 2)
    assert (found.tokens, found.sequence, found.tensor, found.shards) == (4 * 32, 32, 2, 1)
    assert found.passes == (9 * (64 + 32) + 2 * 64 + 5 * 128) / 2 + 2 * 3 * 64
    assert (found.hop_bytes, found.collective_bytes) == (4 * 32 * 64 * 2, 2 * 4 * 32 * 64 * 2)


def test_tokens_are_as_many_as_leave_room_for_their_logits(tmp_path: Any) -> None:
    """Of 2**20 entries, in fp32, 256 tokens take the most there may be."""
    settings = {"training__micro_batch_size": 20, "tokenizer__vocab_size": 2**20}
    assert shapes_of(Setup.of(small(tmp_path, *flags(**settings))), gpu=False).tokens == 256
    settings |= {"training__sequence_length": 1024}
    assert shapes_of(Setup.of(small(tmp_path, *flags(**settings))), gpu=False).tokens == 1024, "one window at least"


def test_a_device_file_has_the_memory_of_a_rank_and_the_time_of_an_operation(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = dict.fromkeys(rates.actions_of(shapes(heads=1, groups=1), torch.device("cpu")), 1e9)
    alone = numbers | {"operations_per_second": 4e5, "head_flops_per_second": 3e9}
    found = {"alone": alone, "together": numbers | {"operations_per_second": 2e5}, "link": {}}
    monkeypatch.setattr(device, "run_processes", lambda *_: found)
    loaded = load_checked(write(tmp_path), flags(), 4, "plan")
    made = measure_device(loaded, 4, 4, {"gpus": 0, "memory_gib": 12.0})
    assert (made.memory_gib, made.devices_per_node, made.asynchronous) == (3.0, 4, False)
    assert (made.alone.operation_seconds, made.together.operation_seconds) == (1 / 4e5, 1 / 2e5)
    assert made.peak_flops_per_second == 3e9, "the best product that was measured"
    assert measure_device(loaded, 4, 4, {"gpus": 4, "memory_gib": 80.0}).memory_gib == 80.0


def test_what_a_step_needs_of_the_links_of_the_busiest_rank(tmp_path: Any) -> None:
    """Two stages of unequal layers, two tensor ranks, one replica and then two of it."""
    settings = {
        "parallel__pipeline": 2,
        "parallel__tensor": 2,
        "parallel__layers_per_stage": "[3, 1]",
        "model__tie_embeddings": "true",
    }
    loaded = load_checked(write(tmp_path), flags(**settings), 4, "plan")
    one, two = needs(loaded, 4), needs(loaded, 8)
    held = plan(loaded.config, 4).parameters_per_rank
    assert held[0] > held[1]
    assert (one["gradients_mib"], two["gradients_mib"]) == (0.0, held[0] * 4 / MIB)
    slices = 4  # the embedding and three blocks, one way on each rank
    assert one["pipeline_mib"] == 4 * slices * (2 * 32 * 64 * 2) / MIB
    assert two["pipeline_mib"] == 2 * slices * (2 * 32 * 64 * 2) / MIB
    assert one["tensor_mib"] == plan(loaded.config, 4).tensor_bytes / MIB > two["tensor_mib"] > 0
