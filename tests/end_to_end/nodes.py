"""Two nodes on this machine, each a network namespace with a host name, and launch scripts running on them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.conftest import ROOT
from tests.end_to_end.processes import ancestors, read

MASTER = "node-0:29500"


class Script:
    """A launch script, what it has said so far, and the processes under it."""

    def __init__(self, command: Sequence[str | Path], space: str | None = None, **environment: str):
        inside = ["ip", "netns", "exec", space, "unshare", "--uts", "bash", "-c", 'hostname "$0" && exec "$@"',
                  space.split("_")[-1]] if space else []  # fmt: skip
        self.process = subprocess.Popen(
            [*inside, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | environment, cwd=ROOT,
        )  # fmt: skip
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        self._seen: set[int] = set()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.said.extend(iter(self.process.stdout.readline, ""))

    @property
    def text(self) -> str:
        return "".join(self.said)

    def end(self, count: int = 4) -> str:
        """The last lines."""
        return "".join([line for line in self.said if line.strip()][-count:])

    def wait_for(self, pattern: str, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline and self.process.poll() is None, f"no {pattern!r} in:\n{self.text}"
            time.sleep(0.05)

    def below(self) -> dict[int, str]:
        """Every process under the script that is there, with its command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and str(self.process.pid) in ancestors(int(entry.name)):
                found[int(entry.name)] = read(entry / "cmdline").replace("\0", " ")
        self._seen |= found.keys()
        return found

    def rank(self, rank: int) -> int:
        """The process of `rank`."""
        for process, command in self.below().items():
            own = "attnres_train.train" in command and "launcher" not in command and "torch.distributed" not in command
            if own and f"\0RANK={rank}\0" in "\0" + read(Path(f"/proc/{process}/environ")):
                return process
        raise AssertionError(f"rank {rank} is not there: {self.below()}")

    def launcher(self) -> int:
        """The process of torchrun, or DeepSpeed's that starts the ranks."""
        words = ("torch.distributed.run", "deepspeed.launcher.launch")
        for process, command in self.below().items():
            if any(word in command for word in words) and "launch.start" not in command:
                return process
        raise AssertionError(f"no launcher: {self.below()}")

    def wait(self, seconds: float) -> int:
        """The exit code; the script and all that was ever seen below it must end in time."""
        deadline = time.monotonic() + seconds
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {seconds:.0f} s: {self.below()}\n{self.text}") from None
        while left := {process for process in self._seen if Path(f"/proc/{process}").exists()}:
            assert time.monotonic() < deadline, f"left behind: {[read(Path(f'/proc/{p}/cmdline')) for p in left]}"
            time.sleep(0.1)
        self._reader.join(timeout=5)
        return code

    def kill(self) -> None:
        for process in [*self.below(), self.process.pid]:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def why_no_nodes() -> str | None:
    """Why this machine cannot have two nodes; None where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"there is no `{missing[0]}`"
    made = subprocess.run(["ip", "netns", "add", "attnres_probe"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", "attnres_probe"], capture_output=True)
    return f"`ip netns add` failed: {made.stderr.strip()}" if made.returncode else None


@contextmanager
def two_nodes() -> Iterator[tuple[str, str]]:
    """Two namespaces that know each other as node-0 and node-1, joined by a link."""
    spaces = (f"attnres{os.getpid()}_node-0", f"attnres{os.getpid()}_node-1")
    try:
        for space in spaces:
            ip(f"netns add {space}")
            folder = Path("/etc/netns") / space
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("127.0.0.1 localhost\n10.79.0.1 node-0\n10.79.0.2 node-1\n10.79.0.9 ghost\n")
        ip(f"-n {spaces[0]} link add eth0 type veth peer name eth0 netns {spaces[1]}")
        for number, space in enumerate(spaces, start=1):
            ip(f"-n {space} link set lo up")
            ip(f"-n {space} address add 10.79.0.{number}/24 dev eth0")
            ip(f"-n {space} link set eth0 up")
        yield spaces
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / space, ignore_errors=True)


def ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True)
