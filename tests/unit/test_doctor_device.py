"""What measures a device file: every rate of the file has its action, counted as the plan counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnres_train.cli import main
from attnres_train.doctor.device import shapes_of
from attnres_train.doctor.rates import actions_of
from attnres_train.plan.device_file import find_machine
from attnres_train.plan.speeds import Rates
from attnres_train.plan.work import Worker
from attnres_train.setup import Setup
from tests.unit.config_files import flags, small, write


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_rate_has_an_action_that_runs(tmp_path: Path, precision: str) -> None:
    config = small(tmp_path, *flags(training__precision=precision, model__num_query_groups=2))
    actions = actions_of(shapes_of(Setup.of(config), gpu=False), torch.device("cpu"))
    rates = set(Rates.__dataclass_fields__) - {"operation_seconds"}
    assert rates | {"operations_per_second", "peak_flops_per_second"} == set(actions)
    for name, (amount, action) in actions.items():
        action()
        assert amount > 0, name


def test_the_doctor_counts_what_the_plan_counts(tmp_path: Path) -> None:
    """One layer's forward and backward, and the head's: else a rate would be of something else."""
    config = small(tmp_path, *flags(training__precision="fp32"))
    setup = Setup.of(config)
    shapes = shapes_of(setup, gpu=False)
    amounts = {name: amount for name, (amount, _) in actions_of(shapes, torch.device("cpu")).items()}
    worker = Worker(setup)
    costs = setup.costs.of_layers(range(1))
    layer = worker._forward(costs) + worker._backward(costs)
    head = worker._head + worker._head_backward
    assert amounts["matmul_flops_per_second"] == layer.layer_flops
    assert amounts["attention_flops_per_second"] == layer.attention_flops
    assert amounts["memory_bytes_per_second"] == layer.element_bytes
    assert amounts["head_flops_per_second"] == head.head_flops
    assert amounts["softmax_bytes_per_second"] == head.head_bytes


def test_a_device_file_needs_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device-file", str(tmp_path / "here.toml")]) == 2
    assert "needs a configuration" in capsys.readouterr().err


@pytest.mark.slow
def test_a_measured_machine_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, config = tmp_path / "here.toml", write(tmp_path)
    assert main(["doctor", str(config), "--world", "2", "--device-file", str(path)]) == 0
    assert "reduce-scatter" in capsys.readouterr().out
    machine = find_machine(str(path), "bf16")
    assert machine.devices_per_node == 2 and machine.measured
    assert main(["plan", str(config), "--world", "2", "--device", str(path)]) == 0
    assert "tokens/s" in capsys.readouterr().out
