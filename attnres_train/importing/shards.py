"""One optimizer file of DeepSpeed's: the flat partitions of one data rank, and what the file says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnres_train.engine.kinds import MOMENTS
from attnres_train.errors import Problem
from attnres_train.importing.plain_load import DAMAGED

_SLOTS = tuple(kind.slot for kind in MOMENTS)
_ADAM = "import a run of Adam or AdamW: torch's, FusedAdam or DeepSpeedCPUAdam"
_STAGES = "train a step under ZeRO-1, -2 or -3, and import what that saves"


@dataclass(frozen=True)
class Shard:
    """What one data rank saved; of `tensors` each entry is a group's flat master, first and second moment."""

    path: Path
    stage: int
    data_ranks: int
    tensors: Sequence[tuple[Tensor, Tensor, Tensor]]
    gaps: Sequence[Sequence[int]] | None
    """Elements left free behind each parameter, by group; None where the file speaks of none."""
    updates: frozenset[int]
    """How often each group was updated: one number, if all is well."""
    settings: tuple[Mapping[str, Any], ...]
    """What torch's optimizer says of its parameter groups: rate, betas, weight decay."""


class NotAShard(Exception):
    """Why a file cannot be imported."""

    def __init__(self, message: str, remedy: str):
        super().__init__(message)
        self.message, self.remedy = message, remedy

    def about(self, path: Path) -> Problem:
        return Problem(str(path), self.message, self.remedy)


def read_shard(path: Path, loaded: Mapping[str, Any]) -> Shard:
    """The shard in what was loaded from `path`. Raises NotAShard."""
    try:
        return _shard(path, loaded)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        what = f"is laid out otherwise than DeepSpeed 0.19.8 does: {type(error).__name__}: {error}"
        raise NotAShard(what, "load and save it once with DeepSpeed 0.19.8") from error


def _shard(path: Path, loaded: Mapping[str, Any]) -> Shard:
    state = loaded["optimizer_state_dict"]
    stage = _stage(state, loaded)
    masters, base = (
        (state["fp32_flat_groups"], state["optimizer_state_dict"])
        if stage == 3
        else (state["single_partition_of_fp32_groups"], state["base_optimizer_state"])
    )
    settings, slots = _slots(base)
    if len(slots) != len(masters):
        raise NotAShard(f"has moments of {len(slots)} groups, masters of {len(masters)}", DAMAGED)
    counts = state["partition_count"]
    pairs = list(zip(masters, slots, strict=True))
    return Shard(
        path=path,
        stage=stage,
        data_ranks=max(counts) if isinstance(counts, list) else int(counts),
        tensors=[(_flat(master), *_moments(slot, group)) for group, (master, slot) in enumerate(pairs)],
        gaps=state.get("param_alignment_paddings"),
        updates=frozenset(int(_updates(slot, state)) for slot in slots),
        settings=settings,
    )


def _stage(state: Mapping[str, Any], loaded: Mapping[str, Any]) -> int:
    """As the file says; bf16 with gradients that accumulate in fp32 has an optimizer that leaves it to the settings."""
    stage = state.get("zero_stage")
    if stage is None:
        config = loaded.get("ds_config")
        zero = config.get("zero_optimization") if isinstance(config, dict) else None
        stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    if stage not in (1, 2, 3):
        raise NotAShard(f"is of ZeRO stage {int(stage)}: known are 1, 2 and 3", _STAGES)
    return int(stage)


def _slots(base: Any) -> tuple[tuple[Mapping[str, Any], ...], list[Mapping[str, Any]]]:
    """The parameter groups, and the state of every flat group in order."""
    if isinstance(base, list):  # `elastic_checkpoint`: the states alone
        return (), base
    groups = base["param_groups"]
    slots: list[Mapping[str, Any]] = [
        {**_counted(group), **base["state"].get(key, {})} for group in groups for key in group["params"]
    ]
    return tuple(groups), slots


def _counted(group: Mapping[str, Any]) -> dict[str, Any]:
    """Some of DeepSpeed's optimizers count the updates by group."""
    return {"step": group["step"]} if "step" in group else {}


def _updates(slot: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    step = slot.get("step", state.get("base_optimizer_state_step"))
    if step is None:
        raise NotAShard("does not say how many updates there were: a moment has no `step`", _ADAM)
    return float(step)


def _moments(slot: Mapping[str, Any], group: int) -> tuple[Tensor, Tensor]:
    kept = {key: value for key, value in slot.items() if isinstance(value, Tensor) and value.ndim > 0}
    if not kept:
        remedy = "import a checkpoint from after the first update: before it there is nothing to go on from"
        raise NotAShard(f"has no moments of group {group}: the run had made no update", remedy)
    if strange := sorted(kept.keys() ^ set(_SLOTS)):
        had = ", ".join(sorted(kept))
        raise NotAShard(f"is not of Adam: its state is {had}, Adam's {', '.join(_SLOTS)} ({strange[0]})", _ADAM)
    first, second = (_flat(kept[key]) for key in _SLOTS)
    return first, second


def _flat(tensor: Tensor) -> Tensor:
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        raise NotAShard(f"has a partition in {tensor.dtype}", "import masters and moments in fp32 or bf16")
    return tensor.detach().view(-1)
