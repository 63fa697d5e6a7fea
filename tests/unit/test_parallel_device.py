"""Where ranks compute: GPUs that torch cannot use are never passed over, and what is wished holds everywhere."""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

import pytest
import torch

from attnres_train.cli import check
from attnres_train.doctor import machine as doctor_machine
from attnres_train.errors import Refused
from attnres_train.launch.gpus import NodeGpus, gpus_here
from attnres_train.parallel import device
from attnres_train.parallel.config import DeviceWish
from attnres_train.parallel.device import TorchGpus, device_problem, device_type, hide_gpus, torch_gpus
from attnres_train.trainer import machine
from tests.unit.config_files import small, write

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC version:\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\nGCC version: 9.3.0\n"
NODE, NONE = NodeGpus(8, "470.57.02"), NodeGpus()
CUDA = TorchGpus("2.13.0", "CUDA 13.0", 0, "The driver is too old (found version 11040)")
CPU = TorchGpus("2.13.0", None, 0)
WORKS = TorchGpus("2.13.0", "CUDA 13.0", 8)


def node(root: Path, names: str, version: str | None = None) -> NodeGpus:
    for name in names.split():
        (root / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / name).touch()
    if version is not None:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/driver/nvidia/version").write_text(version)
    return gpus_here(root)


def test_gpus_are_counted_as_the_kernel_shows_them(tmp_path: Path) -> None:
    many = "nvidiactl nvidia-uvm nvidia0 nvidia1 nvidia10 nvidia-caps/nvidia-cap1 nvidia-modeset"
    assert node(tmp_path / "a", many, OPEN) == NodeGpus(3, "550.54.15")
    assert node(tmp_path / "b", "nvidia0", CLOSED) == NodeGpus(1, "470.57.02")
    assert node(tmp_path / "c", "nvidiactl nvidia-uvm") == NodeGpus() == node(tmp_path / "d", "null")
    assert node(tmp_path / "e", "kfd dri/card0") == NodeGpus(amd=True)


def told(wish: DeviceWish, node: NodeGpus, torch: TorchGpus, **environment: str) -> str:
    problem = device_problem(wish, node, torch, environment)
    return "" if problem is None else f"{problem.key}: {problem.message}; {problem.remedy}"


def test_gpus_that_torch_cannot_use_are_refused_by_both_versions() -> None:
    for wish in ("auto", "cuda"):
        text = told(wish, NODE, CUDA)
        assert text.startswith(f'parallel.device: "{wish}", and torch can use none of the node\'s: 8 GPUs here, ')
        assert "driver 470.57.02, torch 2.13.0 for CUDA 13.0; torch says: The driver is too old" in text
        assert "newer driver or a torch built for this one" in text and 'parallel.device = "cpu"' in text
    assert "torch 2.13.0 for CPUs alone; install torch's build for the GPUs" in told("auto", NODE, CPU)
    assert "driver of unknown version" in told("auto", NodeGpus(1), CUDA)
    assert "unknown version, torch 2 for ROCm 6.3" in told("auto", NodeGpus(amd=True), TorchGpus("2", "ROCm 6.3", 0))


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_a_variable_that_hides_them_is_no_wish(value: str) -> None:
    text = told("auto", NODE, CUDA, CUDA_VISIBLE_DEVICES=value)
    assert f"CUDA_VISIBLE_DEVICES is {value!r}, which hides them" in text and "unset CUDA_VISIBLE_DEVICES" in text
    beyond = told("auto", NodeGpus(1, "1.2"), CUDA, CUDA_VISIBLE_DEVICES="1")  # of one GPU the second
    assert "; CUDA_VISIBLE_DEVICES is '1'; torch says" in beyond and "names some that there are" in beyond


def test_what_is_as_wished_is_let_through() -> None:
    for torch_ in (CUDA, CPU):
        assert told("cpu", NODE, torch_) == told("auto", NONE, torch_) == told("cpu", NONE, torch_) == ""
        assert '"cuda", and this node has no GPU (torch 2.13.0 for C' in told("cuda", NONE, torch_)
    assert told("auto", NodeGpus(amd=True), CPU) == "", "the graphics of a processor"
    assert told("auto", NODE, WORKS) == told("cuda", NODE, WORKS, LOCAL_RANK="7", LOCAL_WORLD_SIZE="8") == ""
    assert told("auto", NONE, WORKS) == "", "torch knows better"
    assert "before they could be hidden" in told("cpu", NODE, WORKS)


def test_every_rank_of_a_node_has_a_gpu() -> None:
    one = TorchGpus("2.13.0", "CUDA 13.0", 1)
    text = told("auto", NODE, WORKS, LOCAL_RANK="0", LOCAL_WORLD_SIZE="9")
    assert text.startswith("ranks: rank 0 of 9 on this node has no GPU: torch sees 8 GPUs; ") and "--ranks 8" in text
    assert "LOCAL" not in text and "rank 3 of 4" in told("cuda", NODE, one, LOCAL_RANK="3", LOCAL_SIZE="4")
    seen = told("auto", NODE, one, LOCAL_RANK="1", CUDA_VISIBLE_DEVICES="1")
    assert "torch sees 1 GPU (CUDA_VISIBLE_DEVICES is '1')" in seen and "see all of its GPUs" in seen
    assert told("cpu", NODE, CPU, LOCAL_RANK="3", LOCAL_WORLD_SIZE="4") == ""


def test_cpus_are_wished_before_any_library_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    hide_gpus("auto", environment)
    hide_gpus("cuda", environment)
    assert environment == {}
    hide_gpus("cpu", environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": "-1"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [device_type(wish) for wish in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]


def test_torch_is_asked_and_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_old() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver\nis too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", too_old)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = torch_gpus()
    assert found == TorchGpus(torch.__version__, "CUDA 13.0", 0, "CUDA initialization: The NVIDIA driver is too old")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert torch_gpus().usable == 4


def test_a_rank_is_refused_before_it_joins_and_check_and_doctor_say_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (machine, check, doctor_machine):
        monkeypatch.setattr(module, "gpus_here", lambda: NODE)
    config = small(tmp_path)
    with pytest.raises(Refused, match=r"8 GPUs here, driver 470\.57\.02, torch"):
        machine.prepare_machine(config, 1)
    asked = argparse.Namespace(config=write(tmp_path), world=1, idle=False)
    (note,) = [note for note in check._check(asked, []).found["notes"] if "would be refused" in note]
    assert "driver 470.57.02" in note
    assert any(line.startswith("PROBLEM: parallel.device: ") for line in doctor_machine.machine_lines(config, 1))
    assert any(line.startswith("PROBLEM: parallel.device: ") for line in doctor_machine.machine_lines(None, 2))
    monkeypatch.setattr(device, "default_device_type", lambda: "cpu")
    on_cpus = small(tmp_path, "--parallel.device", "cpu")
    machine.prepare_machine(on_cpus, 1)
    assert not [line for line in doctor_machine.machine_lines(on_cpus, 1) if "PROBLEM: parallel" in line]


def test_a_rank_sets_its_threads_and_warns_of_a_low_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = small(tmp_path)
    said: list[int] = []
    monkeypatch.setattr(machine, "gpus_here", lambda: NODE)
    monkeypatch.setattr(machine, "torch_gpus", lambda: WORKS)
    monkeypatch.setattr(machine, "device_type", lambda _: "cuda")
    monkeypatch.setattr(machine, "usable_cores", lambda: 96)
    monkeypatch.setattr(machine, "environment_of", lambda _: {})
    monkeypatch.setattr(machine, "why_tcp", lambda: "NCCL would use TCP")
    monkeypatch.setattr(machine, "file_limit", lambda: 1024)
    monkeypatch.setattr(torch, "set_num_threads", said.append)
    for name, value in {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    machine.prepare_machine(config, 512)
    assert said == [12] and os.environ["OMP_NUM_THREADS"] == "12"
    assert "NCCL would use TCP" in caplog.text and "a process may open 1,024 files here" in caplog.text
    caplog.clear()
    machine.prepare_machine(config, 8)
    assert said == [12] and caplog.text == "", "told by now; and all ranks are on this node"


def test_the_doctor_tells_communicators_and_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine, "file_limit", lambda: 300)
    lines = doctor_machine.machine_lines(small(tmp_path, "--parallel.pipeline", "2"), 2)
    assert "open files: 300 for a process" in lines
    assert "process groups of 2 ranks: 5 communicators (5 of 2), 9 files a rank; on CPUs 38 files" in lines
    assert not [line for line in lines if "a process may open" in line]
    monkeypatch.setattr(doctor_machine, "file_limit", lambda: 200)
    lines = doctor_machine.machine_lines(small(tmp_path, "--parallel.pipeline", "2"), 2)
    assert any(line.startswith("PROBLEM: a process may open 200 files here") for line in lines)
    monkeypatch.setattr(doctor_machine, "file_limit", lambda: None)
    assert "open files: any number for a process" in doctor_machine.machine_lines(None, 2)
