"""The exact command of either launcher, and the environment it is given. Pure, so that a dry run tells the truth.

`--hostfile` with one script on each node, or one script for all by pdsh; in the end every rank runs the same entry,
`-m attnres_train.train`. Nothing is restarted in place: of agents that restart, one is always out of step
(supervise.sh relaunches the whole run instead).
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnres_train.launch.cores import THREADS, threads_with_gpus
from attnres_train.launch.interfaces import GLOO, NCCL
from attnres_train.launch.names import Master
from attnres_train.launch.process import LAUNCHER_STOPS

ENTRY = "attnres_train.train"
SHUTDOWN_SECONDS = 600
"""How long ranks that were asked to stop may save; torchrun's own patience is 30 s."""
STORE_SECONDS = 120
"""How long torchrun's agents wait for each other once the nodes have met."""
FORWARDED = tuple("ATTNRES_ CUDA_ DS_ GLOO_ MASTER_ MLFLOW MV2 NCCL OMP_ PYTHON TORCH TRITON_ UCX".split())
"""Variables that start so go from the script to the ranks of other nodes under pdsh; the user's .deepspeed_env adds
others. Under every other launch the ranks inherit the environment of the script on their node."""
NOT_FORWARDED = ("ATTNRES_JOB", "ATTNRES_PARENT")
"""They mean processes and folders of one machine."""

_STANDALONE = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
"""What torchrun makes of --standalone, but for the name."""

Launcher = Literal["torchrun", "deepspeed"]


@dataclass(frozen=True)
class Launch:
    """One launch as seen from one node."""

    launcher: Launcher
    ranks: int
    """Of this node."""
    nodes: int
    node_rank: int
    master: Master | None
    """None: this machine alone, which finds a free port by itself."""
    hostfile: str | None
    pdsh: bool
    """One script starts the ranks of all nodes."""
    arguments: Sequence[str]
    """The configuration and its overrides."""
    knows_localhost: bool = True
    """Whether that name resolves here, as torchrun takes for granted."""


def command(launch: Launch) -> list[str]:
    """What is run on this node."""
    if launch.launcher == "torchrun":
        return _torchrun(launch)
    return _deepspeed(launch)


def gated(words: Sequence[str], told: str) -> list[str]:
    """A `command` that imports at once, waits for a line by standard input, and says its own words in file `told`."""
    python, module_flag, module, *rest = words
    return [python, module_flag, "attnres_train.launch.gate", told, module, *rest]


def _torchrun(launch: Launch) -> list[str]:
    words = [sys.executable, "-m", "torch.distributed.run"]
    if launch.master is None:
        # Ranks meet here by address: torchrun would tell them this machine's own name, which need not resolve.
        alone = ["--standalone"] if launch.knows_localhost else _STANDALONE
        words += [*alone, "--nproc-per-node", str(launch.ranks), "--local-addr", "127.0.0.1"]
    else:
        words += ["--nnodes", str(launch.nodes), "--node-rank", str(launch.node_rank)]
        words += ["--nproc-per-node", str(launch.ranks)]
        words += ["--master-addr", launch.master.host, "--master-port", str(launch.master.port)]
        words += ["--rdzv-conf", f"timeout={STORE_SECONDS}"]
    words += ["--max-restarts", "0", "--shutdown-timeout", str(SHUTDOWN_SECONDS)]
    signals = ",".join(number.name for number in LAUNCHER_STOPS)
    return [*words, "--signals-to-handle", signals, "-m", ENTRY, *launch.arguments]


def _deepspeed(launch: Launch) -> list[str]:
    words = [sys.executable, "-m", "deepspeed.launcher.runner"]
    if launch.hostfile is None:
        # DeepSpeed takes /job/hostfile without being asked, and no file for this machine alone; that it found none is
        # the one thing that it warns of.
        words += ["--log_level", "error", "--hostfile", "/dev/null", "--num_gpus", str(launch.ranks)]
    else:
        words += ["--log_level", "warning", "--hostfile", launch.hostfile]
    if launch.pdsh:
        words += ["--launcher", "pdsh"]
    elif launch.hostfile is not None:
        words += ["--no_ssh", "--node_rank", str(launch.node_rank)]
    if launch.master is not None:
        words += ["--master_addr", launch.master.host, "--master_port", str(launch.master.port)]
    arguments = map(through_pdsh, launch.arguments) if launch.pdsh else launch.arguments
    return [*words, "--module", ENTRY, *arguments]


def through_pdsh(word: str) -> str:
    """`word` so that every host's ranks get exactly it, by way of DeepSpeed, pdsh and the shell of the host.

    DeepSpeed puts words with a space into double quotes and escapes the double quotes in them; pdsh replaces %h, %n,
    %u and %%.
    """
    quoted = re.sub(r"([\\$`])", r"\\\1", word) if " " in word else shlex.quote(word)
    return quoted.replace("%", "%%")


def added_environment(
    launch: Launch, environment: Mapping[str, str], has_gpu: bool, interface: str | None, cores: int = 1
) -> dict[str, str]:
    """What the launcher is given beside `environment`; what is set there already stays.

    Under pdsh only what is the same on every host: ranks find out the rest by themselves.
    """
    wanted = {}
    if not launch.pdsh:
        # Ranks that compute on CPUs spin at each other's barriers.
        wanted[THREADS] = str(threads_with_gpus(cores, launch.ranks) if has_gpu else 1)
    # gloo takes the interface of the host's own name, which is often 127.0.1.1 or unknown; NCCL any that is up, also
    # one that leads to no other node. `=`: no other that only begins so.
    if interface is not None and not launch.pdsh:
        wanted[GLOO] = interface
        if has_gpu:
            wanted[NCCL] = f"={interface}"
    if launch.launcher == "deepspeed" and not has_gpu:
        wanted["DS_ACCELERATOR"] = "cpu"
    return {name: value for name, value in wanted.items() if not environment.get(name)}


def forwarded(environment: Mapping[str, str]) -> list[str]:
    """The lines of the .deepspeed_env that pdsh's ranks get: DeepSpeed puts all but plain values into double quotes."""
    return [
        f"{name}={_in_double_quotes(value)}"
        for name, value in sorted(environment.items())
        if name.startswith(FORWARDED) and name not in NOT_FORWARDED and "\n" not in value
    ]


def _in_double_quotes(value: str) -> str:
    return re.sub(r'([\\$`"])', r"\\\1", value).replace("%", "%%")
