"""DeepSpeed's launch of two hosts by pdsh. Stand-ins for pdsh and ssh run each host's command here, in an empty
environment, with pipes for its output, as sshd does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT, by_step
from tests.end_to_end.nodes import Script
from tests.end_to_end.processes import read

pytestmark = pytest.mark.slow
SECONDS = 30.0
ODD = "a {b,c} (d) 'e' \"f\" $5 `id` $(id) \\\\ %n %% * ~ ; & | < > # !"
"""A folder's name (tcsh alone would read the last one)."""

PDSH = """#!/bin/bash
# pdsh -S -f N -w HOSTS COMMAND...: every host in a session of its own; with -S the largest exit code of them
expand() { # %h, %u, %n and %% as pdsh has them
    local rest=$2 out=''
    while [[ $rest == *%* ]]; do
        out+=${rest%%\\%*} rest=${rest#*\\%}
        case ${rest:0:1} in h) out+=$host ;; u) out+=$USER ;; n) out+=$1 ;; %) out+=% ;; *) out+=%${rest:0:1} ;; esac
        rest=${rest:1}
    done
    printf '%s' "$out$rest"
}
while [ $# -gt 0 ]; do
    case $1 in -S) shift ;; -f) shift 2 ;; -w) hosts=${2//,/ }; shift 2 ;; *) break ;; esac
done
number=0 codes=0
for host in $hosts; do
    command=$*
    (
        env -i PATH="$PATH" HOME="$HOME" setsid -w sh -c "$(expand $number "$command")" 2>&1 | sed -u "s/^/$host: /"
        exit ${PIPESTATUS[0]}
    ) &
    number=$((number + 1))
done
for job in $(jobs -p); do wait "$job" || codes=$?; done
exit $codes
"""


def start(config: Path, folder: Path, *options: str) -> Script:
    tools = folder / "tools"
    tools.mkdir()
    for name, text in (("pdsh", PDSH), ("ssh", "#!/bin/sh\nhostname\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 slots=1\n127.0.0.2 slots=1\n")
    command = [ROOT / "launch/deepspeed.sh", config, "--hostfile", hosts, "--parallel.pipeline", "2", *options]
    path = {"PATH": f"{tools}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "lo", "HOME": str(folder)}
    return Script(command, **path)


@pytest.mark.parametrize("name", ["plain", ODD, ODD.replace(" ", "")], ids=["plain", "odd", "odd, without a space"])
def test_two_hosts_train(name: str, write_config: Callable[..., Path], tmp_path: Path) -> None:
    """An override comes to the ranks as it was written, whatever a shell makes of its characters."""
    script = start(write_config(), tmp_path, "--training.run_folder", f"{tmp_path}/{name}")
    assert script.wait(120) == 0, script.text
    assert "127.0.0.1: step 12/12" in script.text
    assert (tmp_path / name / "metrics.jsonl").is_file(), list(tmp_path.iterdir())


def test_a_killed_rank_is_named(write_config: Callable[..., Path], tmp_path: Path) -> None:
    script = start(write_config(), tmp_path, "--training.steps", "5000")
    script.wait_for("step +3/5000 ")
    os.kill(script.rank(1), signal.SIGKILL)
    assert script.wait(SECONDS) == 1, script.text
    told = script.text.rpartition("the run failed")[2]
    assert "cause: rank 1 on" in told and "signal 9" in told and "rank-0001.log" in told, script.text


def test_ranks_of_hosts_that_pdsh_has_left_save_and_end(write_config: Callable[..., Path], tmp_path: Path) -> None:
    """Everything on the machine of the script is killed at once; the ranks notice by their closed output."""
    script = start(write_config(), tmp_path, "--training.steps", "5000")
    script.wait_for("step +3/5000 ")
    below = script.below()
    ranks = {script.rank(0), script.rank(1)}
    here = ("launch.start", "launcher.runner --", "tools/pdsh -S", "sed -u")
    for process in [script.process.pid, *(p for p, command in below.items() if any(part in command for part in here))]:
        if process not in ranks:
            os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while left := [process for process in ranks if Path(f"/proc/{process}").exists()]:
        assert time.monotonic() < deadline, [read(Path(f"/proc/{process}/cmdline")) for process in left]
        time.sleep(0.1)
    stopped = max(by_step(tmp_path / "run", "loss/train"))
    assert (tmp_path / f"run/checkpoints/step-{stopped:08d}/manifest.json").is_file()
