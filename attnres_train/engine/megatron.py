"""The engine of megatron-core: DistributedDataParallel and DistributedOptimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import ParamGroupOverride, ParamKey, ParamPredicate, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from attnres_train.engine.interface import Update
from attnres_train.engine.kinds import AVERAGE, MASTER
from attnres_train.engine.sharded import Shard, ShardedState, moments
from attnres_train.model.parameters import LogicalParameter
from attnres_train.model.stage import StageModel
from attnres_train.optim.config import OptimizerConfig
from attnres_train.parallel.grid import Grid


class MegatronEngine(ShardedState):
    """Gradients in fp32 buffers, reduce-scattered over the data-parallel ranks, AdamW on fp32 shards.

    Gradients are sums over tokens until megatron-core's `finalize_model_grads` has reduced them over every
    rank that holds a part; then they are divided once by the global number of counted tokens.
    """

    def __init__(
        self,
        stages: Sequence[StageModel],
        optimizer: OptimizerConfig,
        megatron: TransformerConfig,
        grid: Grid,
    ):
        super().__init__(stages, grid)
        self.optimizer_config = optimizer
        self._chunks = [_wrap(stage, megatron) for stage in stages]
        self.optimizer = get_megatron_optimizer(
            _megatron_optimizer_config(optimizer, megatron.params_dtype),
            self._chunks,
            config_overrides={_never_decays(self._logical): ParamGroupOverride(wd_mult=0.0)},
            use_gloo_process_groups=False,
        )
        (self._sharded,) = self.optimizer.chained_optimizers
        assert isinstance(self._sharded, DistributedOptimizer)
        self._mains = _main_parameters(self._sharded)
        self._places = {main: place for place, main in enumerate(self._mains.values())}
        self.keep_averages(optimizer.average_decay)

    @property
    def chunks(self) -> Sequence[nn.Module]:
        return self._chunks

    def zero_grad(self) -> None:
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    def finalize(self, chunks: list[nn.Module], num_tokens: Tensor | None, /, **groups: Any) -> None:
        finalize_model_grads(chunks, num_tokens, **groups)

    def step(self, learning_rate: float) -> Update:
        self._set_learning_rate(learning_rate)
        self.optimizer.prepare_grads()
        grad_norm = self._grad_norm()
        if not math.isfinite(grad_norm):
            return Update(grad_norm, applied=False)
        if self.optimizer_config.clip_grad_norm is not None:
            parameters = self.optimizer.get_parameters()
            clip_grad_by_total_norm_fp32(parameters, self.optimizer_config.clip_grad_norm, grad_norm)
        self.optimizer.step_with_ready_grads()
        self.count_update()
        return Update(grad_norm, applied=True)

    def _grad_norm(self) -> float:
        """Of all ranks' gradients, each counted once. The host waits for the device once; megatron-core's own waits for
        every gradient where TransformerEngine and Apex are absent. The sums are the same."""
        gradients = _counted_gradients(self._sharded)
        norms = torch._foreach_norm(gradients) if gradients else [torch.zeros((), device=self.grid.device)]
        squares = torch.linalg.vector_norm(torch.stack(norms)) ** 2
        dist.all_reduce(squares, group=self._sharded.get_grad_stats_parallel_group())
        return float(squares.item() ** 0.5)

    def _set_learning_rate(self, learning_rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
            group["weight_decay"] = self.optimizer_config.weight_decay * group["wd_mult"]

    def shard(self, logical: LogicalParameter) -> Shard | None:
        main = self._mains.get(logical.parameter)
        if main is None:
            return None
        owned = self._sharded._get_model_param_range_map(logical.parameter)["param"]
        kept = {MASTER: main, **moments(self._sharded.optimizer.state[main], main)}
        if self.averages is not None:
            kept[AVERAGE] = self.averages.means[self._places[main]]
        return Shard(slice(owned.start, owned.end), kept)

    def masters(self) -> Sequence[Tensor]:
        return list(self._mains.values())

    def restored(self, updates: int) -> None:
        super().restored(updates)
        for main in self._mains.values():
            self._sharded.optimizer.state[main]["step"] = torch.tensor(float(updates))
        # The fused AdamW of TransformerEngine and Apex counts by group, from its first step on; torch's does not look.
        capturable = getattr(self._sharded.optimizer, "capturable", False)
        count = torch.tensor([updates], dtype=torch.int32, device=self.grid.device) if capturable else updates
        for group in self._sharded.optimizer.param_groups:
            group["step"] = count
        with torch.no_grad():
            self._sharded._copy_main_params_to_model_params()
        for chunk in self._chunks:
            chunk.start_param_sync()


def _counted_gradients(optimizer: DistributedOptimizer) -> list[Tensor]:
    """This rank's, without copies that another rank counts."""
    renamed = getattr(optimizer, "get_grads_for_grad_norm", None)  # in megatron-core 0.19
    gradients: list[Tensor] = (renamed or optimizer.get_main_grads_for_grad_norm)()
    return gradients


def _main_parameters(optimizer: DistributedOptimizer) -> dict[Tensor, Tensor]:
    """Model parameter -> the fp32 shard of it that this rank updates, where it has one.

    Not through `_get_main_param_and_optimizer_states`: in megatron-core 0.16.1 that looks a shard up by its
    place among the model's parameters, but a group that mixes fp32 and bf16 lists its fp32 shards first.
    """
    pairs = [
        *zip(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, strict=True),
        *zip(optimizer.model_fp32_groups, optimizer.shard_fp32_groups, strict=True),
    ]
    return {model: main for models, mains in pairs for model, main in zip(models, mains, strict=True)}


def _never_decays(logical: Sequence[LogicalParameter]) -> ParamKey:
    never = {p.parameter for p in logical if not p.spec.decays}
    return ParamKey(predicate=ParamPredicate(name="never_decays", fn=never.__contains__))


def _wrap(stage: StageModel, megatron: TransformerConfig) -> DistributedDataParallel:
    """megatron-core's own loop sets `disable_bucketing` for all chunks but the first. That gathers all of a chunk's
    weights in one coalesced call, which gloo (torch 2.13) answers with wrong values where they mix bf16 and fp32.
    Buckets are as large as can be anyway, since gradients are not reduced while backward runs."""
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    return DistributedDataParallel(megatron, ddp, stage)


def _megatron_optimizer_config(optimizer: OptimizerConfig, dtype: torch.dtype) -> MegatronOptimizerConfig:
    return MegatronOptimizerConfig(
        optimizer="adam",
        lr=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_eps=optimizer.eps,
        clip_grad=optimizer.clip_grad_norm or 0.0,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=True,
    )
