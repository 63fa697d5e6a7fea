"""The speeds of this machine, as `attnres plan --device` reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from attnres_train.plan.device_file import read_device_file
from tests.gpu.machine import Machine
from tests.gpu.models import written
from tests.gpu.section import Section


def device_file(machine: Machine) -> Path:
    return machine.folder / "device.toml"


def run(machine: Machine) -> Section:
    config = written(machine)
    command = [
        sys.executable,
        "-m",
        "attnres_train.entry",
        "doctor",
        str(config),
        "--device-file",
        device_file(machine),
    ]
    done = subprocess.run([*map(str, command), "--world", str(machine.gpus)], capture_output=True, text=True)
    said = (
        f"`attnres doctor {config.name} --device-file device.toml`, at the shapes of the model of the section Memory."
    )
    if done.returncode:
        return Section("Device", "failed", said, notes=(done.stdout + done.stderr).splitlines()[-20:])
    read_device_file(device_file(machine))  # what it wrote can be read
    return Section("Device", "measured", said, notes=done.stdout.splitlines())
