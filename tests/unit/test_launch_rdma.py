"""Why NCCL would fall back to TCP on a machine that has InfiniBand, from files that stand for it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from attnres_train.launch.rdma import why_tcp


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A container on a node with two devices, of which it has been given nothing."""
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / "sys/class/infiniband" / name).mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    capabilities(tmp_path, 0xA80425FB)  # what container runtimes leave to root
    return tmp_path


def capabilities(root: Path, mask: int) -> None:
    (root / "proc/self/status").write_text(f"Name:\tpython\nCapPrm:\t{mask:016x}\nCapEff:\t{mask:016x}\n")


def give_device(root: Path) -> None:
    (root / "dev/infiniband").mkdir(parents=True)
    (root / "dev/infiniband/uverbs0").touch()


def there(_: str) -> None:
    pass


def absent(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def told(root: Path, memlock_bytes: int = 64 << 10, library: bool = True) -> str:
    return why_tcp(root, there if library else absent, memlock_bytes) or ""


def test_a_machine_without_it_is_no_problem(tmp_path: Path) -> None:
    assert why_tcp(tmp_path, absent, 0) is None


def test_what_is_missing_is_told_with_the_remedy(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = "NCCL would use TCP beside mlx5_0, mlx5_1: "
    assert told(node).startswith(f"{first}/dev/infiniband/uverbs0 is not there; docker run --device")
    give_device(node)
    assert told(node, library=False).startswith(f"{first}libibverbs.so.1 is not installed; apt-get install libibverbs1")
    assert told(node).startswith(f"{first}a process may lock 64 KiB of memory only; ulimit -l unlimited")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "uverbs0 may not be opened by this user" in told(node)


def test_memory_may_be_locked_without_a_limit_or_by_the_capability(node: Path) -> None:
    give_device(node)
    assert told(node, resource.RLIM_INFINITY) == ""
    capabilities(node, 0xA80425FB | 1 << 14)
    assert told(node, 64 << 10) == ""
