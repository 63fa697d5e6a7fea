"""Scripts around a launch: the doctor, the supervisor, the rehearsal by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnres_train.cli import main
from tests.end_to_end.conftest import ROOT, by_step
from tests.end_to_end.nodes import Script, why_no_nodes
from tests.unit.config_files import SMALL, write


def test_the_doctor_measures_what_a_step_needs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = write(tmp_path, SMALL)
    assert main(["doctor", str(config), "--world", "4", "--json", "--parallel.pipeline", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["torch"] and found["devices"]["lines"] and found["links"]
    assert found["speeds"]["ranks"] == 2 and found["speeds"]["all_reduce_mib_per_second"] > 1
    assert found["needs"]["pipeline_mib"] > 0 and found["needs"]["gradients_mib"] > 0
    assert found["needs"]["tensor_mib"] == 0, "there are no tensor ranks"
    assert main(["hostfile", str(tmp_path / "none")]) == 2
    (tmp_path / "hosts").write_text("127.0.0.1 slots=4\n")
    capsys.readouterr()
    assert main(["hostfile", str(tmp_path / "hosts")]) == 0
    assert "1 node, 4 ranks" in capsys.readouterr().out


def test_srun_with_several_tasks_a_node_is_refused_before_a_rank_starts(tmp_path: Path) -> None:
    config = write(tmp_path, SMALL)
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_NNODES": "1"}
    done = subprocess.run(
        [ROOT / "launch/torchrun.sh", config, "--ranks", "4"], env=os.environ | slurm, capture_output=True, text=True
    )
    assert done.returncode == 2 and "each would start 4 ranks" in done.stderr
    alone = subprocess.run(
        [sys.executable, "-m", "attnres_train.train", config], env=os.environ | slurm, capture_output=True, text=True
    )
    assert alone.returncode == 2, "a rank that srun starts itself would train alone"


@pytest.mark.slow
def test_the_supervisor_relaunches_after_progress_and_gives_up_without(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    """The launch script stands for one that fails: on the second launch at a later step, then at the same."""
    config = write_config()
    launched = tmp_path / "launches"
    script = tmp_path / "fails.sh"
    script.write_text(
        "#!/bin/bash\n"
        f"echo again >>{launched}\n"
        f'"{sys.executable}" - <<PYTHON\n'
        "import time\n"
        "from pathlib import Path\n"
        "from attnres_train.launch.record import Record, write_record\n"
        f"step = min(len(Path('{launched}').read_text().splitlines()), 2)\n"
        f"folder = Path('{tmp_path}/run/ranks')\n"
        "folder.mkdir(parents=True, exist_ok=True)\n"
        "write_record(Record(0, 'here', 1, 0.0, time.time(), 'training', step), folder)\n"
        "PYTHON\n"
        "exit 1\n"
    )
    script.chmod(0o755)
    done = subprocess.run(
        [ROOT / "launch/supervise.sh", "--pause", "0", script, config], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and "step 2 failed twice" in done.stderr
    assert launched.read_text().count("again") == 3


@pytest.mark.slow
@pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")
@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_the_rehearsal_trains_on_two_nodes(launcher: str, write_config: Callable[..., Path]) -> None:
    config = write_config(parallel="pipeline = 2")
    script = Script([ROOT / "launch/rehearse.sh", config, "--launcher", launcher])
    assert script.wait(240) == 0, script.text
    assert "node-0 | step 12/12" in script.text and "node-0 ended with code 0, node-1 with code 0" in script.text
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert "attnres-node" not in spaces


@pytest.mark.slow
@pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")
def test_a_rehearsal_that_is_stopped_saves_and_takes_its_nodes_along(write_config: Callable[..., Path]) -> None:
    config = write_config(parallel="pipeline = 2")
    script = Script([ROOT / "launch/rehearse.sh", config, "--training.steps", "5000"])
    script.wait_for(r"step +3/5000 ")
    script.process.send_signal(signal.SIGTERM)
    assert script.wait(60) == 3, script.text
    assert "node-0 ended with code 3, node-1 with code 3" in script.text and "unbound" not in script.text
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert "attnres-node" not in spaces


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["launcher", "start"])
def test_a_supervised_run_goes_on_after_its_launcher_was_killed(
    victim: str, write_config: Callable[..., Path], tmp_path: Path
) -> None:
    """As the kernel kills for memory: the ranks save, nobody asked for an end, so it is launched again."""
    config = write_config(checkpoint="keep = 3")
    options = ["--training.steps", "60", "--checkpoint.interval_steps", "20"]
    script = Script([ROOT / "launch/supervise.sh", "--pause", "0", ROOT / "launch/torchrun.sh", config,
                     "--ranks", "2", *options])  # fmt: skip
    script.wait_for(r"step +5/60 ")
    words = {"launcher": "torch.distributed.run", "start": "attnres_train.launch.start"}
    (process,) = [p for p, command in script.below().items() if words[victim] in command]
    os.kill(process, signal.SIGKILL)
    assert script.wait(180) == 0, script.text
    assert "launching again" in script.text and "killed by signal 9" in script.text
    assert list(by_step(tmp_path / "run", "loss/train")) == list(range(1, 61))
