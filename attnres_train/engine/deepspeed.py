"""The engine of DeepSpeed: ZeRO-1, -2 and -3 around the same stages, schedule and transport.

What is DeepSpeed's: the partitions, the reduction of gradients over the data-parallel ranks, the update and the
gathering of weights. What is ours: the sum over tokens divided once by their global count, the sums over tensor
ranks and over the two ends of a tied embedding, the global norm, clipping, skipping and the learning rate. So both
engines compute the same numbers.

ZeRO-1 leaves gradients whole until the schedule is done, which is why it goes with pipelines: the schedule runs the
stages themselves. ZeRO-2 and ZeRO-3 reduce and forget gradients after each micro-batch, for which DeepSpeed's own
engine must see forward and backward: without pipelines the only stage is run through it.

DeepSpeed is told nothing of bf16: parameters come in the dtype they have. Its `bf16` section would cast the fp32
parameters of depth readers, accumulate in bf16, or (with fp32 accumulation and ZeRO-1) choose an optimizer that
does not work under a schedule that runs backward itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attnres_train.engine.config import DeepSpeedSection
from attnres_train.engine.deepspeed_patches import import_deepspeed
from attnres_train.engine.deepspeed_settings import deepspeed_settings
from attnres_train.engine.deepspeed_shards import GroupShards, ParameterShards, ZeroShards
from attnres_train.engine.interface import Update
from attnres_train.engine.mpu import GridMpu
from attnres_train.engine.sharded import Shard, ShardedState
from attnres_train.model.layer import ReadsDepth
from attnres_train.model.parameters import LogicalParameter
from attnres_train.model.stage import StageModel
from attnres_train.optim.config import OptimizerConfig
from attnres_train.parallel.grid import Grid


class DeepSpeedEngine(ShardedState):
    """Masters and moments, with `zero_stage` 2 gradients, with 3 weights, divided over the data-parallel ranks."""

    def __init__(
        self,
        stages: Sequence[StageModel],
        optimizer: OptimizerConfig,
        settings: DeepSpeedSection,
        grid: Grid,
        micro_batch_size: int,
    ):
        super().__init__(stages, grid)
        self.optimizer_config = optimizer
        whole = stages[0] if len(stages) == 1 else nn.ModuleList(stages)
        deepspeed = import_deepspeed()
        if settings.zero_stage == 3:
            _name_tied_weight(deepspeed, stages)
        self._deepspeed, *_ = deepspeed.initialize(
            model=whole,
            optimizer=_adamw(self._logical, optimizer, settings.offload_optimizer),
            mpu=GridMpu(grid),
            config=deepspeed_settings(settings, micro_batch_size, _largest_borrowed(stages)),
            dist_init_required=False,
        )
        zero = self._deepspeed.optimizer
        self._shards: ZeroShards = ParameterShards(zero) if settings.zero_stage == 3 else GroupShards(zero)
        self._chunks: list[nn.Module] = list(stages)
        if settings.zero_stage > 1:
            (stage,) = stages
            self._chunks = [_RunByDeepSpeed(stage, self._deepspeed)]
        # ZeRO-3 would gather the weights that stay whole after the first step only, and free them during it.
        self._shards.refresh_weights()
        self.keep_averages(optimizer.average_decay)

    @property
    def chunks(self) -> Sequence[nn.Module]:
        return self._chunks

    def zero_grad(self) -> None:
        self._shards.forget_gradients()
        self._deepspeed.set_gradient_accumulation_boundary(False)

    def step(self, learning_rate: float) -> Update:
        grad_norm = self._grad_norm()
        if not math.isfinite(grad_norm):
            self.zero_grad()
            return Update(grad_norm, applied=False)
        limit = self.optimizer_config.clip_grad_norm
        if limit is not None and grad_norm > limit:
            self._scale_gradients(limit / (grad_norm + 1.0e-6))
        self._deepspeed.optimizer.set_lr(learning_rate)
        self._deepspeed.step()
        self.count_update()
        return Update(grad_norm, applied=True)

    def shard(self, logical: LogicalParameter) -> Shard | None:
        return self._shards.shard(logical, self.averages)

    def masters(self) -> Sequence[Tensor]:
        return self._shards.masters()

    def restored(self, updates: int) -> None:
        super().restored(updates)
        self._shards.count_updates(updates)
        self._shards.refresh_weights()

    def finalize(self, chunks: list[nn.Module], num_tokens: Tensor | None, /, **groups: Any) -> None:
        assert num_tokens is not None, "the loss is a mean over tokens"
        own = self.grid.groups
        last = dist.get_process_group_ranks(own.pp)[-1]
        dist.broadcast(num_tokens, src=last, group=own.pp)
        dist.all_reduce(num_tokens, group=own.dp)
        self._deepspeed.set_gradient_accumulation_boundary(True)
        self._sum_tied_gradients()
        self._shards.finish_gradients()
        self._sum_over_tensor_ranks()
        if num_tokens > 0:
            # DeepSpeed has averaged over the data-parallel ranks; wanted is the sum over tokens by their count.
            self._scale_gradients(self.grid.data / num_tokens.item())

    def _sum_tied_gradients(self) -> None:
        """The first and the last stage hold a copy each of a tied embedding; ZeRO-1 has their gradients whole."""
        for logical in self._logical:
            if getattr(logical.parameter, "shared_embedding", False):
                gradient = self._deepspeed.optimizer.get_gradient_for_reduction(logical.parameter)
                dist.all_reduce(gradient, group=self.grid.groups.embd)

    def _sum_over_tensor_ranks(self) -> None:
        """What is whole on all tensor ranks, but whose gradient each has of its own tokens or heads alone.

        Their ranges are alike: partitions depend on shapes, and those are the same on every tensor rank.
        """
        sequence = self.grid.parallel.sequence
        shards = [shard for p, shard in self._own_gradients() if p.spec.partial(sequence)]
        if not shards:
            return
        total = torch.cat(shards).to(self.grid.device)  # from the host, where the optimizer is offloaded
        dist.all_reduce(total, group=self.grid.groups.tp)
        for shard, part in zip(shards, total.split([shard.numel() for shard in shards]), strict=True):
            shard.copy_(part)

    def _grad_norm(self) -> float:
        """Over all ranks, each parameter counted once, at double precision."""
        total = torch.zeros((), dtype=torch.float64, device=self.grid.device)
        for logical, shard in self._own_gradients():
            if logical.owned and (self.grid.counts_whole or logical.sharding.axis is not None):
                total += torch.linalg.vector_norm(shard, dtype=torch.float64).square().to(total.device)
        dist.all_reduce(total)
        return math.sqrt(total.item()) if total.isfinite() else float(total)

    def _scale_gradients(self, factor: float) -> None:
        for _, shard in self._own_gradients():
            shard.mul_(factor)

    def _own_gradients(self) -> list[tuple[LogicalParameter, Tensor]]:
        owned = [p for p in self._logical if self._shards.place(p) is not None]
        return [(p, self._shards.gradient(p)) for p in owned]


class _RunByDeepSpeed(nn.Module):
    """A stage whose forward, and with it the hooks of backward, is DeepSpeed's."""

    def __init__(self, stage: StageModel, engine: nn.Module):
        super().__init__()
        self.module = stage
        self.config = stage.config
        self._run: Callable[..., Any] = engine.__call__  # not as a submodule: it holds the stage, too

    def forward(self, *arguments: Any) -> Any:
        return self._run(*arguments)


def _adamw(logical: Sequence[LogicalParameter], config: OptimizerConfig, on_host: bool) -> torch.optim.Optimizer:
    """torch's AdamW, which nothing has to be compiled for.

    Groups are of one dtype, as ZeRO's partitions must be. The first is bf16 where one is: by that DeepSpeed tells that
    gradients are not accumulated in their own dtype.
    """
    groups: dict[tuple[bool, torch.dtype], list[Tensor]] = {}
    for p in logical:
        groups.setdefault((p.spec.decays, p.parameter.dtype), []).append(p.parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": config.weight_decay if decay else 0.0}
            for (decay, _), parameters in sorted(groups.items(), key=lambda item: item[0][1].itemsize)
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True if on_host else None,
    )


def _largest_borrowed(stages: Sequence[StageModel]) -> int:
    """Elements of the largest parameter that a module uses without calling the module that holds it.

    ZeRO-3 gathers what a called module holds; up to this size it is made to leave parameters whole.
    """
    readers = [module for stage in stages for module in stage.modules() if isinstance(module, ReadsDepth)]
    sizes = [p.numel() for m in readers for p in (*m.depth.parameters(), *m.norm.parameters())]
    return max(sizes, default=0)


def _name_tied_weight(deepspeed: Any, stages: Sequence[StageModel]) -> None:
    """A tied head multiplies by the embedding's weight: ZeRO-3 is told to gather it there, too."""
    for stage in stages:
        tied = stage.shared_embedding_or_output_weight() if stage.share_embeddings_and_output_weights else None
        if tied is not None and stage.head is not None:
            deepspeed.zero.register_external_parameter(stage.head.projection, tied)
