"""Where DeepSpeed 0.19.8 keeps the range of each parameter that a data-parallel rank updates.

ZeRO-1 and ZeRO-2 lay the parameters of a group end to end and cut the whole into equal partitions; ZeRO-3 cuts every
parameter by itself. Either way a rank holds flat fp32 partitions of masters, and the gradients of a step as flat
tensors. `tests/unit/test_deepspeed_seams.py` names what is used of DeepSpeed's insides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres_train.engine.average import Averages
from attnres_train.engine.kinds import AVERAGE, MASTER
from attnres_train.engine.sharded import Shard, moments
from attnres_train.model.parameters import LogicalParameter


class Place(NamedTuple):
    """A range of the flat parameter, and where it lies in the flat partition number `partition`."""

    owned: slice
    partition: int
    inside: slice


class ZeroShards(ABC):
    """The shards (sharded.py) of one of DeepSpeed's ZeRO optimizers, and how its gradients come and go."""

    def __init__(self, zero: Any):
        self.zero = zero

    @abstractmethod
    def place(self, logical: LogicalParameter) -> Place | None:
        """The part of `logical` that this rank updates, if any."""

    @abstractmethod
    def masters(self) -> list[Tensor]:
        """The flat fp32 partitions, which the optimizer knows as its parameters."""

    @abstractmethod
    def gradient(self, logical: LogicalParameter) -> Tensor:
        """The range's reduced gradient as a view: changes count. Between `finish_gradients` and the step."""

    @abstractmethod
    def finish_gradients(self) -> None:
        """After the last micro-batch: bring the gradients where the step looks for them."""

    @abstractmethod
    def forget_gradients(self) -> None:
        """Also those of a step that was skipped."""

    @abstractmethod
    def refresh_weights(self) -> None:
        """The model's weights from the masters. A collective over the data-parallel ranks."""

    def shard(self, logical: LogicalParameter, averages: Averages | None = None) -> Shard | None:
        place = self.place(logical)
        if place is None:
            return None
        master = self.masters()[place.partition]
        flat = {MASTER: master, **moments(self.zero.optimizer.state[master], master)}
        if averages is not None:
            flat[AVERAGE] = averages.means[place.partition]
        return Shard(place.owned, {kind: tensor.detach()[place.inside] for kind, tensor in flat.items()})

    def count_updates(self, updates: int) -> None:
        """Have the optimizer go on as after `updates` steps."""
        for master in self.masters():
            self.zero.optimizer.state[master]["step"] = torch.tensor(float(updates))


class GroupShards(ZeroShards):
    """Of ZeRO-1 and ZeRO-2."""

    def __init__(self, zero: Any):
        super().__init__(zero)
        # Else ZeRO-2 rounds what it reduces to the dtype of the first group: bf16, also for fp32 parameters.
        zero._gradient_reduction_buffer_dtype = lambda: torch.float32

    def place(self, logical: LogicalParameter) -> Place | None:
        mapping = logical.parameter._hp_mapping  # type: ignore[attr-defined]
        if mapping is None:
            return None
        lp, hp = mapping.lp_fragment_address, mapping.hp_fragment_address
        owned, inside = slice(lp.start, lp.start + lp.numel), slice(hp.start, hp.start + hp.numel)
        return Place(owned, mapping.param_group_index, inside)

    def masters(self) -> list[Tensor]:
        return self.zero.single_partition_of_fp32_groups

    def gradient(self, logical: LogicalParameter) -> Tensor:
        place = self.place(logical)
        assert place is not None, f"this rank holds no part of {logical.name}"
        if self.zero.cpu_offload:
            return self.masters()[place.partition].grad[place.inside]  # type: ignore[index]
        (flat,) = self.zero.averaged_gradients[place.partition]
        return flat[place.inside]

    def finish_gradients(self) -> None:
        if self.zero.partition_gradients:
            self.zero.finalize_gradient_accumulation_boundary()
        else:
            self.zero.reduce_gradients()
        if self.zero.cpu_offload:
            return
        for group, gradients in self.zero.averaged_gradients.items():
            flat = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
            self.zero.averaged_gradients[group] = [flat]

    def forget_gradients(self) -> None:
        self.zero.zero_grad()
        self.zero.micro_step_id = -1
        for group in range(len(self.zero.bit16_groups)):
            self.zero.averaged_gradients[group] = self.zero.all_grad_tensors[group] = None
        if self.zero.cpu_offload:
            self.zero.reset_cpu_buffers()
            self.zero._offload_accumulated_param_ids = set()
            for master in self.masters():
                assert master.grad is not None
                master.grad.zero_()

    def refresh_weights(self) -> None:
        self.zero.update_lp_params()


class ParameterShards(ZeroShards):
    """Of ZeRO-3."""

    def place(self, logical: LogicalParameter) -> Place | None:
        parameter: Any = logical.parameter
        length = parameter.partition_numel()
        start = length * self.zero._get_param_partition_rank(parameter)
        stop = min(start + length, parameter.ds_numel)
        if start >= stop:
            return None
        partition, offset, _ = self.zero.grad_position[self.zero.get_param_id(parameter)]
        return Place(slice(start, stop), partition, slice(offset, offset + stop - start))

    def masters(self) -> list[Tensor]:
        return self.zero.fp32_partitioned_groups_flat

    def gradient(self, logical: LogicalParameter) -> Tensor:
        place = self.place(logical)
        assert place is not None, f"this rank holds no part of {logical.name}"
        if self.zero.offload_optimizer:
            return self.masters()[place.partition].grad[place.inside]  # type: ignore[index]
        gradient, _ = self.zero._get_fp32_grad_state_partition(logical.parameter, release_swap_buffers=True)
        return gradient.view(-1)[: place.owned.stop - place.owned.start]

    def finish_gradients(self) -> None:
        self.zero.finalize_gradient_accumulation_boundary()

    def forget_gradients(self) -> None:
        self.zero.zero_grad()
        self.zero._pre_step()
        if self.zero.offload_optimizer:
            self.zero.reset_cpu_buffers()

    def refresh_weights(self) -> None:
        self.zero._partition_all_parameters()
        for partition in range(len(self.masters())):
            self.zero._reassign_or_swap_out_partitioned_parameters(partition)
        if self.zero.persistent_parameters:
            self.zero.persistent_parameters[0].all_gather(self.zero.persistent_parameters)
