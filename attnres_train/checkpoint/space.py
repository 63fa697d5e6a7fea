"""Whether a checkpoint will have room, tried before the first step rather than found out at the first save."""

from __future__ import annotations

import os
import resource
import shutil
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist

from attnres_train.engine.interface import StateSource
from attnres_train.errors import Problem, Refused
from attnres_train.parallel.grid import Grid

_FP32_BYTES = 4
_GIB = 2**30
_TRIED_BYTES = 1 << 16


def check_space(checkpoints: Path, engine: StateSource, grid: Grid) -> None:
    """Every rank writes a small file where its part will go, and holds the size of that part against what is free;
    rank 0 renames a folder there, as a save does when it is published.

    A collective. Raises Refused on every rank, with what each found.
    """
    if grid.keeps_run:
        with suppress(OSError):  # the attempt below says why, in words
            checkpoints.mkdir(parents=True, exist_ok=True)
    dist.barrier(group=grid.control)
    elements = sum(len(engine.kinds(p.spec)) * p.numel for p in engine.parameters() if p.owned)
    mine = elements * _FP32_BYTES if grid.data_rank == 0 else 0
    found: list[tuple[int, str | None]] = [(0, None)] * grid.world_size
    dist.all_gather_object(found, (mine, _try(checkpoints, grid.rank, mine)), group=grid.control)
    needed = sum(size for size, _ in found)
    told = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(found) if text is not None]
    free = [shutil.disk_usage(checkpoints).free if grid.keeps_run and not told else None]
    dist.broadcast_object_list(free, src=0, group=grid.control)
    if free[0] is not None and free[0] < needed:
        told.append(f"a checkpoint takes about {needed / _GIB:.3g} GiB, {free[0] / _GIB:.3g} GiB are free")
    if told:
        remedy = "make room, or choose another training.run_folder"
        raise Refused([Problem(str(checkpoints), text, remedy) for text in told])


def _try(checkpoints: Path, rank: int, size: int) -> str | None:
    """What stands in the way of a file of `size` bytes, in words."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < size:
        return f"a file-size limit of {limit} bytes (ulimit -f), its part of a checkpoint takes {size}"
    path = checkpoints / f".try-{rank:05d}"
    try:
        with open(path, "wb") as file:
            file.write(bytes(_TRIED_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"cannot write there: {error.strerror}"
    finally:
        with suppress(OSError):
            path.unlink()
    return _try_to_rename(checkpoints) if rank == 0 else None


def _try_to_rename(checkpoints: Path) -> str | None:
    """Why a folder with a file in it cannot be given another name, as on mounted object stores."""
    made, renamed = checkpoints / ".try-folder", checkpoints / ".try-folder-renamed"
    try:
        made.mkdir(exist_ok=True)
        (made / "file").touch()
        made.rename(renamed)
    except OSError as error:
        return f"cannot rename a folder there ({error.strerror}), which is how a checkpoint is published"
    finally:
        for folder in (made, renamed):
            shutil.rmtree(folder, ignore_errors=True)
    return None
