"""What must be the same on every node and rank, to be compared by name."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CODE = ("*.py", "*.cpp", "*.toml")
"""What a run computes with: also the data sheets that a plan reads."""
LIBRARIES = ("torch", "megatron-core", "numpy", "deepspeed")


def version_facts() -> dict[str, str]:
    """Versions of the code, of Python and of the libraries that compute."""
    return {"attnres_train's code": code_hash(), "Python": platform.python_version()} | {
        name: _version(name) for name in LIBRARIES
    }


def has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()


def code_hash() -> str:
    """A hash of the package's source files, wherever they lie."""
    root = Path(__file__).parents[1]
    whole = hashlib.sha256()
    for path in sorted(path for ending in CODE for path in root.rglob(ending)):
        whole.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()[:12]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
