"""Devices that a plan can be made for, as their vendors describe them.

Peaks are dense (no sparsity), at the boost clock, and no program reaches them: `speeds.py` says what is assumed of
them. Units are FLOP/s, byte/s and GiB.
"""

from __future__ import annotations

from dataclasses import dataclass


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


_400_GBIT = 50e9
"""One 400 Gbit/s port (ConnectX-7 or its like) for every device, in byte/s."""

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device(
            "a100-80gb",
            "NVIDIA A100-SXM4-80GB",
            312e12,
            19.5e12,
            79,
            2.039e12,
            300e9,
            25e9,
            8,
            "NVIDIA A100 80GB SXM data sheet: 312 / 19.5 TFLOP/s, 80 GB at 2,039 GB/s, NVLink 600 GB/s both ways; "
            "DGX A100 data sheet: one 200 Gbit/s port a GPU",
        ),
        Device(
            "h100-sxm",
            "NVIDIA H100 80GB HBM3",
            989e12,
            67e12,
            79,
            3.35e12,
            450e9,
            _400_GBIT,
            8,
            "NVIDIA H100 SXM data sheet: 1,979 TFLOP/s bf16 with sparsity, half of it dense, 67 fp32, 80 GB at "
            "3.35 TB/s, NVLink 900 GB/s both ways; DGX H100 data sheet: one 400 Gbit/s port a GPU",
        ),
        Device(
            "h200",
            "NVIDIA H200",
            989e12,
            67e12,
            139,
            4.8e12,
            450e9,
            _400_GBIT,
            8,
            "NVIDIA H200 SXM data sheet: 1,979 TFLOP/s bf16 with sparsity, half of it dense, 67 fp32, 141 GB at "
            "4.8 TB/s, NVLink 900 GB/s both ways; DGX H200 data sheet: one 400 Gbit/s port a GPU",
        ),
        Device(
            "b200",
            "NVIDIA B200",
            2250e12,
            75e12,
            178,
            8e12,
            900e9,
            _400_GBIT,
            8,
            "NVIDIA HGX and DGX B200 data sheets, over 8 GPUs: 36 PFLOP/s bf16 with sparsity, half of it dense, "
            "600 TFLOP/s fp32, 1,440 GB at 64 TB/s, NVLink 1.8 TB/s both ways a GPU, one 400 Gbit/s port a GPU",
        ),
        Device(
            "mi300x",
            "AMD Instinct MI300X",
            1307.4e12,
            163.4e12,
            191,
            5.3e12,
            448e9,
            _400_GBIT,
            8,
            "AMD Instinct MI300X data sheet: 1,307.4 TFLOP/s bf16, 163.4 fp32 matrix, 192 GB at 5.3 TB/s; platform "
            "data sheet: 7 Infinity Fabric links of 64 GB/s each way; one 400 Gbit/s port a GPU is an assumption",
            meshed=True,
        ),
    )
}
"""By the name that `--device` takes."""


def device_called(driver_name: str) -> Device | None:
    """The device that its driver calls so; None for one that is not described here."""
    return next((device for device in DEVICES.values() if device.driver_name == driver_name), None)
