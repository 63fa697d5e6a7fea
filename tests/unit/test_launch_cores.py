"""Threads of a rank: of the node's cores its share, where nobody has said it, and torchrun's 1 is nobody's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnres_train.launch.cores import environment_of, threads_with_gpus, untold_threads, usable_cores

TOLD = {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("environment", "launchers", "on_gpu", "threads"),
    [
        ({}, {}, True, 12),
        (TOLD, {}, True, 12),
        (TOLD, {"OMP_NUM_THREADS": "1"}, True, None),
        (TOLD, None, True, None),
        ({"OMP_NUM_THREADS": "4"}, {}, True, None),
        ({"OMP_NUM_THREADS": ""}, {}, True, 12),
        ({}, {}, False, 1),
        (TOLD, {}, False, 1),
    ],
)
def test_a_rank_takes_its_share_where_nobody_said_otherwise(
    environment: dict[str, str], launchers: dict[str, str] | None, on_gpu: bool, threads: int | None
) -> None:
    assert untold_threads(environment, launchers, on_gpu, cores=96, ranks=8) == threads


def test_a_share_is_at_least_one_and_a_rank_alone_on_cpus_takes_all() -> None:
    assert [threads_with_gpus(cores, 8) for cores in (7, 15, 16, 96)] == [1, 1, 2, 12]
    assert untold_threads({}, {}, on_gpu=False, cores=96, ranks=1) is None


def test_torchruns_own_1_is_not_in_the_environment_it_was_started_with(tmp_path: Path) -> None:
    """What torchrun does: the variable is set in its process, and its children inherit it."""
    script = "import os, sys; os.environ['OMP_NUM_THREADS'] = '1'; print(os.getpid(), flush=True); sys.stdin.read()"
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | {"A": "b=c"}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        found = environment_of(process.pid)
        process.communicate("")
    assert found is not None and found["A"] == "b=c" and "OMP_NUM_THREADS" not in found
    assert environment_of(1, tmp_path) is None


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "850000 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "0::/pod/container\n",
                "sys/fs/cgroup/pod/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/a\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "600000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            6,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
    ],
    ids=["none", "no limit", "8 and a half", "half", "of the pod", "first kind", "first kind, no limit"],
)
def test_a_container_has_the_cores_that_it_may_keep_busy(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores
