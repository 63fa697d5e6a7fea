"""The random streams of each rank, as byte tensors: restored where the grid is the one that saved them."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from attnres_train.checkpoint.checksum import FileRecord, written
from attnres_train.parallel.grid import Grid

_TRACKER = "tracker/"


def random_state_file(folder: Path, rank: int) -> Path:
    return folder / f"random-{rank:05d}.pt"


def random_streams() -> dict[str, torch.Tensor]:
    """The streams of this rank: torch's, the device's, and megatron-core's named ones."""
    streams = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        streams["cuda"] = torch.cuda.get_rng_state()
    return streams | {f"{_TRACKER}{name}": state for name, state in get_cuda_rng_tracker().get_states().items()}


def save_random_state(folder: Path, streams: dict[str, torch.Tensor], rank: int) -> dict[str, FileRecord]:
    """Write and flush `streams`; returns the file. Raises OSError."""
    path = random_state_file(folder, rank)
    with written(path) as file:
        torch.save(streams, file)  # type: ignore[arg-type]
        os.fsync(file.fileno())
    return {path.name: file.record}


def load_random_state(folder: Path, grid: Grid) -> None:
    """Set the streams of this rank to what `save_random_state` wrote; loading runs no code."""
    streams = torch.load(random_state_file(folder, grid.rank), weights_only=True)
    torch.set_rng_state(streams["torch"])
    if torch.cuda.is_available() and "cuda" in streams:
        torch.cuda.set_rng_state(streams["cuda"])
    named = {name.removeprefix(_TRACKER): state for name, state in streams.items() if name.startswith(_TRACKER)}
    get_cuda_rng_tracker().set_states(named)
