"""Devices that a plan can be made for, as their vendors describe them: `devices.toml`."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Device:
    """One accelerator and its place in a node. `link` is one direction of what it has for its neighbours inside the
    node, `network` its share of the node's network, one direction."""

    name: str
    driver_name: str
    """As the driver calls it."""
    bf16_flops_per_second: float
    fp32_flops_per_second: float
    """Of plain fp32: torch's matrix products use TF32 only where a program asks for it, and this one does not."""
    memory_gib: float
    """What the driver shows of it, rounded down."""
    memory_bytes_per_second: float
    link_bytes_per_second: float
    network_bytes_per_second: float
    devices_per_node: int
    source: str
    """Where the figures come from."""
    meshed: bool = False
    """Whether `link` is the sum of one link to each neighbour in the node, so that two devices have one of them between
    them; else a switch gives any two all of it."""

    def peak_flops_per_second(self, precision: str) -> float:
        return {"bf16": self.bf16_flops_per_second, "fp32": self.fp32_flops_per_second}[precision]


@functools.cache
def devices() -> Mapping[str, Device]:
    """All that are described, by the name that `--device` takes."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: Device(name=name, **facts) for name, facts in tables.items()}


def device_called(driver_name: str) -> Device | None:
    """The device that its driver calls so; None for one that is not described here."""
    return next((device for device in devices().values() if device.driver_name == driver_name), None)
