"""The random streams of each rank, as byte tensors: restored where the grid is the one that saved them."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from attnres_train.checkpoint.checksum import FileRecord, written
from attnres_train.checkpoint.plain import NotPlain, why_not_loaded

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


def read_random_state(path: Path) -> dict[str, torch.Tensor]:
    """The streams that `save_random_state` wrote to `path`; those of a GPU stay as they are where there is none, and
    the other way round. Loading runs no code. Raises NotPlain."""
    try:
        streams = torch.load(path, weights_only=True)
    except Exception as error:  # damaged bytes can say anything
        raise NotPlain(f"{path.name} {why_not_loaded(error)}") from error
    mine = random_streams()
    if not isinstance(streams, dict) or "torch" not in streams or not all(isinstance(name, str) for name in streams):
        raise NotPlain(f"{path.name} holds no random streams")
    if ("cuda" in streams) != ("cuda" in mine):
        streams = {**mine, "torch": streams["torch"]}
    for name, stream in streams.items():
        if not isinstance(stream, torch.Tensor) or stream.dtype != torch.uint8:
            raise NotPlain(f"{path.name} holds a {type(stream).__name__} in the place of the random stream {name!r}")
        if name in mine and stream.shape != mine[name].shape:
            raise NotPlain(f"{path.name} holds {stream.numel()} bytes of the random stream {name!r}")
    return streams


def set_random_state(streams: dict[str, torch.Tensor]) -> None:
    """Go on with `streams`, of which the device's may be absent. Raises RuntimeError where they hold nonsense."""
    torch.set_rng_state(streams["torch"])
    if torch.cuda.is_available() and "cuda" in streams:
        torch.cuda.set_rng_state(streams["cuda"])
    named = {name.removeprefix(_TRACKER): state for name, state in streams.items() if name.startswith(_TRACKER)}
    get_cuda_rng_tracker().set_states(named)
