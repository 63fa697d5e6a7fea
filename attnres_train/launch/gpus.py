"""The GPUs of this node as the kernel shows them. No library is asked: what torch makes of them is another question."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NodeGpus:
    """What there is, whether or not this process may use it."""

    nvidia: int = 0
    driver: str | None = None
    """Version of NVIDIA's, None where it does not say."""
    amd: bool = False
    """Its driver is there; also where all that it drives is the graphics of a processor."""


def gpus_here(root: Path = Path("/")) -> NodeGpus:
    """The node's GPUs; `root` is its file system's."""
    numbers = [path.name.removeprefix("nvidia") for path in (root / "dev").glob("nvidia*")]
    return NodeGpus(sum(map(str.isdecimal, numbers)), _driver(root), (root / "dev/kfd").exists())


def _driver(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"\s(\d{3,}\.[\d.]+)\s", text)
    return None if found is None else found[1]
