"""On which devices a run computes, `parallel.device`, and what keeps it from them.

`auto` never trains on the CPUs of a node that has GPUs: that is slow, and nobody sees why. A variable that hides the
GPUs is no wish either, since schedulers set it too; the wish is written down, as `parallel.device = "cpu"`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from attnres_train.depth.describe import default_device_type
from attnres_train.errors import Problem
from attnres_train.launch.gpus import NodeGpus
from attnres_train.parallel.config import DeviceWish
from attnres_train.words import counted

VISIBLE = "CUDA_VISIBLE_DEVICES"
NO_DEVICE = "-1"
"""Of that variable, for CUDA and HIP alike; HIP takes an empty one for none at all."""
_HIDE = ("", NO_DEVICE, "NoDevFiles")
"""Values with which no GPU is seen; the last is an older SLURM's, in a step without GPUs."""
_ON_CPUS = 'write parallel.device = "cpu" to train on CPUs'


@dataclass(frozen=True)
class TorchGpus:
    """What torch says of this process."""

    version: str
    build: str | None
    """Such as `CUDA 13.0`; None of a build for CPUs."""
    usable: int
    said: str = ""
    """Its warnings meanwhile."""


def torch_gpus() -> TorchGpus:
    """Ask torch, which is imported here."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usable = torch.cuda.device_count() if default_device_type() == "cuda" else 0
    cuda, rocm = torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else None
    return TorchGpus(torch.__version__, build, usable, " ".join(str(one.message) for one in caught).replace("\n", " "))


def device_type(wish: DeviceWish) -> str:
    """Where a run with this wish computes in this process: `cuda` or `cpu`."""
    return "cpu" if wish == "cpu" else default_device_type()


def hide_gpus(wish: DeviceWish, environment: MutableMapping[str, str]) -> None:
    """Where CPUs are wished, let no library of this process or of its children see a GPU.

    To be called before any of them has looked.
    """
    if wish == "cpu":
        environment[VISIBLE] = NO_DEVICE


def device_problem(
    wish: DeviceWish, node: NodeGpus, torch: TorchGpus, environment: Mapping[str, str]
) -> Problem | None:
    """Why a rank with this environment cannot compute where it should."""
    if wish == "cpu":
        what = '"cpu", but GPUs were looked for before they could be hidden'
        return Problem("parallel.device", what, f"export {VISIBLE}={NO_DEVICE}") if torch.usable else None
    # AMD's driver is also there for the graphics of a processor: GPUs are meant if torch was built for them.
    has_gpus = node.nvidia > 0 or (node.amd and (torch.build or "").startswith("ROCm"))
    if torch.usable:
        return _too_many_ranks(torch.usable, environment)
    if not has_gpus:
        return _none_here(torch) if wish == "cuda" else None
    what = counted(node.nvidia, "GPU") if node.nvidia else "a GPU"
    why, remedy = _why_unusable(node, torch, environment)
    return Problem("parallel.device", f'"{wish}", and torch can use none of the node\'s: {what} here, {why}', remedy)


def _none_here(torch: TorchGpus) -> Problem:
    what = f'"cuda", and this node has no GPU ({_torch_in_words(torch)})'
    remedy = f"give the job GPUs (sbatch --gpus-per-node, docker run --gpus all), or {_ON_CPUS}"
    return Problem("parallel.device", what, remedy)


def _why_unusable(node: NodeGpus, torch: TorchGpus, environment: Mapping[str, str]) -> tuple[str, str]:
    """The reason, and what to do."""
    versions = f"driver {node.driver or 'of unknown version'}, {_torch_in_words(torch)}"
    if torch.build is None:
        install = "install torch's build for the GPUs (remove .venv, and the launch scripts make it anew on this node)"
        return versions, f"{install}, or {_ON_CPUS}"
    visible = environment.get(VISIBLE)
    if visible in _HIDE:
        hidden = f"{VISIBLE} is {visible!r}, which hides them ({versions})"
        return hidden, f"unset {VISIBLE}, give the job step GPUs (srun --gpus-per-node), or {_ON_CPUS}"
    named = "" if visible is None else f"; {VISIBLE} is {visible!r}"
    said = f"; torch says: {torch.said}" if torch.said else ""
    fit = "take a newer driver or a torch built for this one, see that the job step was given the GPUs"
    fit += "" if visible is None else f" and that {VISIBLE} names some that there are"
    return f"{versions}{named}{said}", f"{fit}, or {_ON_CPUS}"


def _torch_in_words(torch: TorchGpus) -> str:
    return f"torch {torch.version} for {torch.build or 'CPUs alone'}"


def _too_many_ranks(usable: int, environment: Mapping[str, str]) -> Problem | None:
    """Every rank takes the GPU of its number on the node."""
    local, ranks = local_rank(environment), local_ranks(environment)
    if max(ranks, local + 1) <= usable:
        return None
    seen = f" ({VISIBLE} is {environment[VISIBLE]!r})" if VISIBLE in environment else ""
    what = f"rank {local} of {ranks} on this node has no GPU: torch sees {counted(usable, 'GPU')}{seen}"
    remedy = f"start one rank a GPU (--ranks {usable}), and let every rank of a node see all of its GPUs; or {_ON_CPUS}"
    return Problem("ranks", what, remedy)


def local_rank(environment: Mapping[str, str]) -> int:
    """This rank's number on its node."""
    return int(environment.get("LOCAL_RANK") or 0)


def local_ranks(environment: Mapping[str, str]) -> int:
    """Ranks of this node, as torchrun or DeepSpeed's launcher says."""
    return int(environment.get("LOCAL_WORLD_SIZE") or environment.get("LOCAL_SIZE") or 1)
