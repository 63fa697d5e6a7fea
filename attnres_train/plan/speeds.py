"""What a plan takes a device to do: rates that were measured on it, or shares of what its vendor states."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import Field

from attnres_train.parallel.wire import WirePlan
from attnres_train.plan.devices import Device
from attnres_train.section import section
from attnres_train.words import GIB

RESERVED_SHARE = 0.1
"""Of a device's memory, for what a plan does not count: the allocator's fragments, the CUDA context, NCCL. An
assumption."""
# Shares of a vendor's peak. They are assumptions: one's own machine is measured by
# `attnres doctor CONFIG --device-file FILE`.
MATMUL_EFFICIENCY = 0.65
"""Of the dense peak, for large bf16 matrix products under a power limit; published measurements of cuBLAS on H100
lie between 0.6 and 0.75. `--efficiency` sets it."""
FP32_EFFICIENCY = 0.8
"""The same for plain fp32, which no power limit slows."""
ATTENTION_SHARE = 0.6
"""Attention over matrix products: FlashAttention-2, which torch uses, has about 0.4 of an H100's peak."""
MEMORY_EFFICIENCY = 0.8
"""Of the memory bandwidth, for elementwise kernels over large tensors."""
DEPTH_EFFICIENCY = 0.6
"""Of the memory bandwidth, for the depth mix, whose kernels read many tensors and reduce over their width."""
LINK_EFFICIENCY = 0.75
"""Of links inside a node, for large messages of NCCL."""
NETWORK_EFFICIENCY = 0.85
"""Of the network's rate, for large messages of NCCL."""
LINK_LATENCY_SECONDS = 10e-6
"""Start of a message inside a node."""
NETWORK_LATENCY_SECONDS = 25e-6
"""Start of a message between nodes."""
OPERATION_SECONDS = 6e-6
"""Of the host for one operation of torch; the device works meanwhile."""
DISK_BYTES_PER_SECOND = 2e9
"""Of a node into the storage that all nodes share; a common figure of parallel file systems, not a measurement."""


@section
class Link:
    """Of one rank. Rates of collectives are *bus* rates: bytes that cross the slowest rank's link over seconds."""

    send_bytes_per_second: float = Field(gt=0)
    """From one rank to another, one way at a time."""
    send_latency_seconds: float = Field(ge=0)
    all_reduce_bytes_per_second: float = Field(gt=0)
    """2 (r - 1) / r of the tensor's bytes over seconds, for r ranks."""
    reduce_scatter_bytes_per_second: float = Field(gt=0)
    """(r - 1) / r of the whole tensor's bytes over seconds."""
    all_gather_bytes_per_second: float = Field(gt=0)
    """(r - 1) / r of the whole tensor's bytes over seconds."""
    collective_latency_seconds: float = Field(ge=0)
    """Of a collective of few bytes."""


@section
class Rates:
    """Of one rank, in FLOP/s and byte/s as `work.py` counts them."""

    matmul_flops_per_second: float = Field(gt=0)
    """Matrix products of the layers, forward and backward."""
    attention_flops_per_second: float = Field(gt=0)
    """The attention kernel, forward and backward, with the backward's own repetition counted."""
    head_flops_per_second: float = Field(gt=0)
    """The product with the vocabulary."""
    softmax_bytes_per_second: float = Field(gt=0)
    """Cross-entropy over the vocabulary."""
    memory_bytes_per_second: float = Field(gt=0)
    """Elementwise operations on tensors of the size of a layer's."""
    depth_bytes_per_second: float = Field(gt=0)
    """The mix over depth, its norm with it."""
    optimizer_bytes_per_second: float = Field(gt=0)
    """AdamW."""
    operation_seconds: float = Field(ge=0)
    """One operation of torch on a tensor of nothing much."""


@dataclass(frozen=True)
class Machine:
    """Everything that a prediction of time needs to know; `assumptions` says in words what was not measured."""

    name: str
    peak_flops_per_second: float
    memory_gib: float
    devices_per_node: int
    alone: Rates
    """When one rank works."""
    together: Rates
    """When the ranks of the node all work: they may share memory and power."""
    near: Link
    """Between ranks of a node."""
    far: Link
    """Between nodes."""
    disk_bytes_per_second: float
    """Of a node."""
    asynchronous: bool
    """Whether the host runs ahead of the device, as with GPUs."""
    measured: bool
    assumptions: str
    meshed: bool = False
    """Whether `near` is the sum of links to each neighbour in the node, and not what a switch gives to any two."""

    @property
    def usable_gib(self) -> float:
        """Of a device's memory, for tensors."""
        return self.memory_gib * (1 - RESERVED_SHARE)

    @property
    def usable_bytes(self) -> float:
        return self.usable_gib * GIB

    def near_of(self, ranks: int) -> Link:
        """`near` of each of `ranks` ranks of a node that talk among themselves."""
        if not self.meshed or ranks >= self.devices_per_node:
            return self.near
        share = max(1, ranks - 1) / (self.devices_per_node - 1)
        rates = {name: share * rate for name, rate in vars(self.near).items() if name.endswith("bytes_per_second")}
        return replace(self.near, **rates)

    def rates(self, ranks: int) -> Rates:
        """Of each of `ranks` ranks at work."""
        return self.alone if ranks == 1 else self.together


@dataclass(frozen=True)
class Links:
    """Which link the ranks of a setup on a machine talk over: inside a node, or between nodes.

    Tensor ranks lie together, then data ranks, then pipeline ranks: the order in which megatron-core numbers them.
    """

    machine: Machine
    wire: WirePlan
    tensor: int
    data: int

    @property
    def inside(self) -> int:
        """Ranks between a rank and the next of its pipeline."""
        return self.tensor * self.data

    def between_tensor_ranks(self) -> Link:
        inside_a_node = self.tensor <= self.machine.devices_per_node
        return self.machine.near_of(self.tensor) if inside_a_node else self.machine.far

    def between_data_ranks(self) -> tuple[Link, Link]:
        """The link of a data rank to those in its node, and to those in others."""
        in_node = min(self.data, max(1, self.machine.devices_per_node // self.tensor))
        return self.machine.near_of(in_node), self.machine.far

    def into(self, stage: int) -> Link:
        """The link that leads into `stage`."""
        near = self.machine.near_of(2)
        if stage == 0:
            return near
        node, ranks = self.machine.devices_per_node, (self.wire.rank_of(stage - 1), self.wire.rank_of(stage))
        # A micro-batch of one replica may stay inside a node while another's crosses: the slowest sets the pace.
        here, there = (range(rank * self.inside, (rank + 1) * self.inside) for rank in ranks)
        crosses = any(a // node != b // node for a, b in zip(here, there, strict=True))
        return self.machine.far if crosses else near

    def data_rate(self, near: float, far: float) -> float:
        """Bus rate of a ring of the data ranks, of those inside a node and between nodes: every rank of a node brings
        its own share of the network."""
        if self.inside <= self.machine.devices_per_node:
            return near
        return min(near, far * max(1, self.machine.devices_per_node // self.tensor))


def machine_of(device: Device, precision: str, efficiency: float | None = None) -> Machine:
    """The machine that this module assumes a vendor's `device` to be, for weights of `precision` (fp32 or bf16).

    `efficiency` is the share of the peak that matrix products reach; None takes this module's.
    """
    peak = device.peak_flops_per_second(precision)
    usual = MATMUL_EFFICIENCY if precision == "bf16" else FP32_EFFICIENCY
    share = usual if efficiency is None else efficiency
    between = f" ({device.devices_per_node - 1} links, one to each neighbour)" if device.meshed else ""
    memory = MEMORY_EFFICIENCY * device.memory_bytes_per_second
    rates = Rates(
        matmul_flops_per_second=share * peak,
        attention_flops_per_second=share * ATTENTION_SHARE * peak,
        head_flops_per_second=share * peak,
        softmax_bytes_per_second=memory,
        memory_bytes_per_second=memory,
        depth_bytes_per_second=DEPTH_EFFICIENCY * device.memory_bytes_per_second,
        optimizer_bytes_per_second=memory,
        operation_seconds=OPERATION_SECONDS,
    )
    return Machine(
        name=device.name,
        peak_flops_per_second=peak,
        memory_gib=device.memory_gib,
        devices_per_node=device.devices_per_node,
        alone=rates,
        together=rates,
        near=even_link(LINK_EFFICIENCY * device.link_bytes_per_second, LINK_LATENCY_SECONDS),
        far=even_link(NETWORK_EFFICIENCY * device.network_bytes_per_second, NETWORK_LATENCY_SECONDS),
        disk_bytes_per_second=DISK_BYTES_PER_SECOND,
        asynchronous=True,
        measured=False,
        assumptions=(
            f"matrix products at {100 * share:.0f} % of {peak / 1e12:,.0f} TFLOP/s, memory at "
            f"{100 * MEMORY_EFFICIENCY:.0f} % of {device.memory_bytes_per_second / 1e12:.3g} TB/s, links at "
            f"{100 * LINK_EFFICIENCY:.0f} % of {device.link_bytes_per_second / 1e9:.0f} GB/s{between}, network at "
            f"{100 * NETWORK_EFFICIENCY:.0f} % of {device.network_bytes_per_second / 1e9:.0f} GB/s"
        ),
        meshed=device.meshed,
    )


def even_link(bytes_per_second: float, latency: float) -> Link:
    """A link that does all at one rate and begins all after the same time."""
    names = Link.__dataclass_fields__
    return Link(**{name: latency if name.endswith("latency_seconds") else bytes_per_second for name in names})
