"""Whole launches on a node whose GPUs torch cannot use: /dev and /proc of a mount namespace show eight of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT, launch

NODE = """
mount --make-rprivate /
mkdir -p "$1/dev" "$1/driver/nvidia"
mount -t tmpfs tmpfs "$1/dev"
cp -a /dev/{null,zero,full,random,urandom,tty} "$1/dev"
mkdir "$1/dev/shm" && mount --bind /dev/shm "$1/dev/shm"
ln -s /proc/self/fd "$1/dev/fd"
for number in {0..7}; do touch "$1/dev/nvidia$number"; done
touch "$1/dev/nvidiactl"
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05" >"$1/driver/nvidia/version"
mount --rbind "$1/dev" /dev
mount --bind "$1/driver" /proc/driver
shift
exec "$@"
"""


def launch_there(folder: Path, config: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    words = ["unshare", "--mount", "bash", "-ec", NODE, "bash", folder, ROOT / "launch/torchrun.sh", config]
    command = [*map(str, words), "--ranks", "2", *overrides]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/proc/driver").is_dir() or shutil.which("unshare") is None, reason="root"
)
def test_a_node_whose_gpus_torch_cannot_use_trains_on_cpus_only_if_told_to(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    config = write_config(training="stop_after_steps = 2")
    refused = launch_there(tmp_path / "node", config)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert 'parallel.device: "auto"' in refused.stderr and "8 GPUs here, driver 470.57.02, torch " in refused.stderr
    assert not (tmp_path / "run/metrics.jsonl").exists(), "nothing was computed"
    told = launch_there(tmp_path / "again", config, "--parallel.device", "cpu")
    assert told.returncode == 0, told.stdout + told.stderr
    assert (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.skipif(bool(list(Path("/dev").glob("nvidia[0-9]*"))), reason="a GPU")
def test_gpus_are_wished_where_there_is_none(write_config: Callable[..., Path]) -> None:
    refused = launch(write_config(), 2, "--parallel.device", "cuda", expect=2)
    assert 'parallel.device: "cuda", and this node has no GPU' in refused.stderr
