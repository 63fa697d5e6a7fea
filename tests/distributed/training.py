"""Train the tiny model on the ranks of a test and return whole tensors, comparable across layouts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from attnres_train.config.run_config import RunConfig
from attnres_train.data.loader import Batch
from attnres_train.engine.interface import Update
from attnres_train.model.parameters import LogicalParameter
from attnres_train.parallel.grid import Grid, build_grid, stop_process_group
from attnres_train.progress import TrainState
from attnres_train.setup import Setup
from attnres_train.trainer.build import Parts, build_parts
from attnres_train.trainer.step import train_step
from tests.distributed.state import export_state, gradients, import_state
from tests.distributed.tiny import MICRO_BATCH, VOCABULARY, SyntheticBatch, step_batches


class SyntheticLoader:
    """The batches of tests/distributed/tiny.py, by position, with sample ids."""

    def __init__(self, grid: Grid, samples_a_step: int, isolate_documents: bool = False):
        self.grid, self.samples_a_step, self.isolate_documents = grid, samples_a_step, isolate_documents

    def step(self, consumed_samples: int) -> list[Batch]:
        rank, ranks = self.grid.data_rank, self.grid.data
        batches = step_batches(consumed_samples // self.samples_a_step, rank, ranks, self.isolate_documents)
        first = [consumed_samples + (number * ranks + rank) * MICRO_BATCH for number in range(len(batches))]
        return [_named(batch, range(start, start + MICRO_BATCH)) for batch, start in zip(batches, first, strict=True)]


def _named(batch: SyntheticBatch, samples: range) -> Batch:
    """Every third sample is of the second source."""
    ids = tuple(f"sample-{sample}" for sample in samples)
    sources = tuple(int(sample % 3 == 0) for sample in samples)
    return Batch(batch.tokens_BT, batch.labels_BT, batch.loss_mask_BT, ids, batch.segments_BT, sources)


@dataclass(frozen=True)
class Trained:
    """What a training leaves behind, whole tensors by logical name, on rank 0 (empty elsewhere)."""

    losses: list[float]
    grad_norms: list[float]
    first_gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    forward_bytes: list[int]


def train_all(configs: Sequence[RunConfig], steps: int) -> list[Trained]:
    """Train each of `configs`, which share one grid, from the same weights on the same batches."""
    grid = build_grid(configs[0].parallel, seed=1)
    return [train_tiny(config, grid, steps) for config in configs]


def build_tiny(config: RunConfig, grid: Grid) -> Parts:
    """The parts of a run, its depth parameters moved away from where they start so that reading matters."""
    parts = build_parts(Setup.of(config, grid.world_size, VOCABULARY), grid)
    moved = {}
    for name, state in export_state(parts.engine).items():
        if ".depth." in name:
            seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
            noise = torch.randn(state.master.shape, generator=torch.Generator().manual_seed(seed))
            moved[name] = replace(state, master=state.master + 0.1 * noise.to(state.master.device))
    import_state(parts.engine, moved, updates=0)
    return parts


def train_tiny(config: RunConfig, grid: Grid, steps: int) -> Trained:
    parts = build_tiny(config, grid)
    losses, norms, sent, first_gradients = [], [], [], {}
    for step in range(steps):
        loss, norm, forward_bytes = step_tiny(parts, config, grid, step)
        losses.append(loss)
        norms.append(norm)
        sent.append(forward_bytes)
        if step == 0:
            first_gradients = whole_tensors(parts.engine.parameters(), parts.engine.pre_clip, grid)
    masters = {name: state.master for name, state in export_state(parts.engine).items()}
    return Trained(losses, norms, first_gradients, whole_tensors(parts.engine.parameters(), masters, grid), sent)


def step_tiny(parts: Parts, config: RunConfig, grid: Grid, step: int) -> tuple[float, float, int]:
    """One `train_step`; remembers the gradients before clipping as `engine.pre_clip`."""
    loader = SyntheticLoader(grid, config.training.global_batch_size, config.data.isolate_documents)
    state = TrainState(step=step, samples=step * config.training.global_batch_size)
    engine, update = parts.engine, parts.engine.step

    def remembering(rate: float) -> Update:
        engine.pre_clip = {name: gradient.clone() for name, gradient in gradients(engine).items()}
        return update(rate)

    engine.step = remembering  # type: ignore[method-assign]
    try:
        _, report, _ = train_step(parts, loader, config, state, {})
    finally:
        engine.step = update  # type: ignore[method-assign]
    return report.losses["train"].mean, report.grad_norm, report.forward_bytes


def whole_tensors(parameters: Sequence[LogicalParameter], mine: Mapping[str, Tensor], grid: Grid) -> dict[str, Tensor]:
    """Logical tensors from what every rank holds of them, on rank 0; unequal replicas are an error."""
    shardings = {p.name: p.sharding for p in parameters if p.owned}
    parts = [(shardings[name], name, tensor.cpu()) for name, tensor in mine.items()]
    everybody: list[tuple[int, list]] = [(0, [])] * grid.world_size
    dist.all_gather_object(everybody, (grid.tensor_rank, parts), group=grid.control)
    whole: dict[str, Tensor] = {}
    seen: dict[str, Tensor] = {}
    for tensor_rank, held in everybody:
        for sharding, name, tensor in held:
            target = whole.setdefault(name, torch.full(sharding.shape, float("nan")))
            written = seen.setdefault(name, torch.zeros(sharding.shape, dtype=torch.bool))
            for piece in sharding.pieces(tensor_rank, grid.parallel.tensor):
                index = (slice(None),) * (sharding.axis or 0)
                source, place = tensor[(*index, piece.local)], (*index, piece.logical)
                assert not written[place].any() or torch.equal(target[place], source), f"replicas of {name} differ"
                target[place] = source
                written[place] = True
    assert all(mask.all() for mask in seen.values()), "a part of a tensor is on no rank"
    return whole if grid.rank == 0 else {}


def relative_error(value: Tensor, reference: Tensor) -> float:
    """Norm of the difference over the norm of the reference; absolute where that is zero."""
    scale = reference.norm()
    return ((value - reference).norm() / (scale if scale > 0 else 1.0)).item()


__all__ = [
    "Trained",
    "build_tiny",
    "relative_error",
    "step_tiny",
    "stop_process_group",
    "train_all",
    "train_tiny",
]
