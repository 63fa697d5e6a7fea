"""The state and the gradients of an engine as whole tensors, which the product itself never has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attnres_train.engine.deepspeed import DeepSpeedEngine
from attnres_train.engine.interface import Engine
from attnres_train.engine.kinds import KINDS, kinds_of
from attnres_train.engine.megatron import MegatronEngine
from attnres_train.model.parameters import LogicalParameter


@dataclass(frozen=True)
class OptimizerState:
    """One parameter's state, in the order of KINDS: fp32 and shaped like the rank's whole parameter."""

    master: Tensor
    first_moment: Tensor
    second_moment: Tensor


def export_state(engine: Engine) -> dict[str, OptimizerState]:
    """Of the rank's owned parameters, on every data-parallel rank; a collective over them."""
    held = {part.key: (part.owned, part.tensor) for part in engine.held()}
    states = {}
    for p in engine.parameters():
        if p.owned and not p.spec.buffer:
            tensors = [
                _whole(engine, p, *held.get(f"{kind.stored}/{p.name}", (None, None))) for kind in kinds_of(p.spec)
            ]
            states[p.name] = OptimizerState(*tensors)
    return states


def import_state(engine: Engine, states: Mapping[str, OptimizerState], updates: int) -> None:
    """The reverse; a parameter that `states` lacks stays as it is."""
    for part in engine.held():
        if part.kind in KINDS and (state := states.get(part.logical.name)) is not None:
            whole: Tensor = list(vars(state).values())[KINDS.index(part.kind)]
            part.tensor.copy_(whole.reshape(-1)[part.owned])
    engine.restored(updates)


def gradients(engine: Engine) -> dict[str, Tensor]:
    """The fp32 gradients of the rank's owned parameters, reduced, before clipping; a collective."""
    found = {}
    for p in engine.parameters():
        if p.spec.buffer:
            continue
        assert isinstance(engine, MegatronEngine | DeepSpeedEngine)
        shard = engine.shard(p)
        part = None if shard is None else _gradient(engine, p, shard.owned)
        whole = _whole(engine, p, None if shard is None else shard.owned, part)
        if p.owned:
            found[p.name] = whole
    return found


def _gradient(engine: MegatronEngine | DeepSpeedEngine, p: LogicalParameter, owned: slice) -> Tensor:
    if isinstance(engine, DeepSpeedEngine):
        return engine._shards.gradient(p)
    # After the reduce-scatter each data-parallel rank has the sum for its own range only.
    return p.parameter.main_grad.view(-1)[owned]  # type: ignore[attr-defined, no-any-return]


def _whole(engine: Any, p: LogicalParameter, owned: slice | None, part: Tensor | None) -> Tensor:
    whole = torch.zeros(p.numel, dtype=torch.float32, device=engine.grid.device)
    if owned is not None and part is not None:
        whole[owned] = part.detach().to(whole)
    if engine.grid.data > 1:
        dist.all_reduce(whole, group=engine.grid.groups.dp)
    return whole.view(p.shape)
