"""A launcher that imports early and begins when it is told to; and what a launch is not led astray by."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnres_train.errors import Refused
from attnres_train.launch import start
from attnres_train.launch.commands import Launch, gated
from attnres_train.launch.names import refuse_unknown_master
from attnres_train.parallel.light_imports import light_imports

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = """
import os, sys
os.write(2, b"imported;")
def main():
    os.write(2, b"a rank;")
    print("the launcher itself", file=sys.stderr)
    print(sys.argv[1:])
    {end}
"""


def launched(folder: Path, word: bytes, end: str = "") -> tuple[int, str, str, str]:
    """Code, output, error output and own words of a stand-in for torchrun that is told `word`."""
    (folder / "standin.py").write_text(LAUNCHER.format(end=end))
    command = gated([sys.executable, "-m", "standin", "--a", "b"], str(folder / "words"))
    environment = os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run(command, input=word, env=environment, cwd=folder, capture_output=True)
    return done.returncode, done.stdout.decode(), done.stderr.decode(), (folder / "words").read_text()


def test_it_runs_as_the_module_would_once_it_is_told_to_and_keeps_its_own_words_apart(tmp_path: Path) -> None:
    code, output, errors, words = launched(tmp_path, b"begin\n")
    assert (code, output, errors, words) == (0, "['--a', 'b']\n", "imported;a rank;", "the launcher itself\n")
    code, _, errors, words = launched(tmp_path, b"begin\n", "raise ValueError('a rank has failed')")
    assert code == 1 and errors == "imported;a rank;" and "Traceback" in words and "a rank has failed" in words
    assert launched(tmp_path, b"begin\n", "sys.exit(7)")[0] == 7


def test_without_a_word_it_ends_and_nothing_has_begun(tmp_path: Path) -> None:
    code, output, errors, _ = launched(tmp_path, b"")
    assert code == 2 and output == "" and errors == "imported;"


def test_functions_that_are_decorated_by_light_imports_are_compiled_at_their_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[tuple[str, dict[str, object]]] = []

    def compile_now(function: Callable[..., int], **options: object) -> Callable[..., int]:
        compiled.append((function.__name__, options))
        return function

    monkeypatch.setattr(torch, "compile", compile_now)
    with light_imports():

        @torch.compile
        def one() -> int:
            return 1

        @torch.compile(dynamic=True)
        def two() -> int:
            return 2

    assert torch.compile is compile_now and not compiled and one.__name__ == "one"
    assert [one(), one(), two()] == [1, 1, 2]
    assert compiled == [("one", {}), ("two", {"dynamic": True})]


def test_a_rank_does_not_load_the_compiler_to_begin() -> None:
    code = (
        "import sys, warnings\n"
        "from attnres_train.parallel.light_imports import light_imports\n"
        "with light_imports(): import attnres_train.trainer.run\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'matplotlib', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("[]\n", ""), "a second and more of CPU on every rank; warnings of libraries"


def test_variables_of_torchrun_s_own_options_do_not_come_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Platforms set PET_NNODES for every pod (kubeflow/trainer#1840): torchrun would wait for nodes that never come."""
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv("KEPT", "1")
    environment = start._environment(Launch("torchrun", 2, 1, 0, None, None, False, ["c.toml"]), tmp_path, "lo")
    assert "PET_NNODES" not in environment and environment["KEPT"] == "1"
    assert environment["GLOO_SOCKET_IFNAME"] == "lo", "one machine needs no name of its own"


def test_ranks_with_gpus_get_their_share_of_cores_and_nccl_its_interface(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(start, "has_gpu", lambda: True)
    monkeypatch.setattr(start, "usable_cores", lambda: 96)
    launch = Launch("torchrun", 8, 1, 0, None, None, False, ["c.toml"])
    environment = start._environment(launch, tmp_path, "eth0")
    assert environment["OMP_NUM_THREADS"] == "12" and environment["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert "OMP_NUM_THREADS=12 " in start._shown(launch)
    monkeypatch.setattr(start, "nccl_settings", lambda _: {"NCCL_SOCKET_IFNAME": "ib0"})
    assert "NCCL_SOCKET_IFNAME" not in start._environment(launch, tmp_path, "eth0"), "/etc/nccl.conf names one"


def test_a_name_of_rank_0_that_nobody_knows_is_refused_at_once() -> None:
    """As `torchrun --standalone` tells it on a machine whose own name does not resolve (pytorch/pytorch#131691)."""
    with pytest.raises(Refused, match=r"MASTER_ADDR: 'no.such.host.invalid'.*does not resolve"):
        refuse_unknown_master({"RANK": "0", "MASTER_ADDR": "no.such.host.invalid"})
    refuse_unknown_master({"RANK": "0", "MASTER_ADDR": "127.0.0.1"})
    refuse_unknown_master({"MASTER_ADDR": "no.such.host.invalid"})


@pytest.mark.parametrize("output", ["ascii", "closed"])
def test_what_an_output_cannot_show_ends_nothing(output: str) -> None:
    code = "from attnres_train.console_encoding import print_every_character as p; p(); print('gr\\u00fcn', flush=True)"
    command = [sys.executable, "-c", code]
    if output == "closed":
        command = ["bash", "-c", '"$@" >&-', "_", *command]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == ("" if output == "closed" else "gr\\xfcn\n"), done.stderr


def test_a_script_in_the_background_of_another_heeds_an_interrupt(tmp_path: Path) -> None:
    """bash has what it starts with `&` ignore SIGINT, and cannot trap what was ignored when it began."""
    script = tmp_path / "script.sh"
    script.write_text(f'source {ROOT}/launch/environment.sh\nheed_interrupts "$@"\ntrap -p INT\necho "$@"\n')
    command = f"trap '' INT; exec bash {script} one 'two three'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout == "one two three\n", "nothing is ignored, and the arguments are there"


def test_files_beside_the_user_are_no_modules_of_a_launch(tmp_path: Path) -> None:
    """A random.py in the working directory was imported for Python's own (pytorch/pytorch#19943)."""
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong one')")
    command = [ROOT / "launch/torchrun.sh", "my.toml", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "attnres_train.train my.toml" in done.stdout, done.stderr
