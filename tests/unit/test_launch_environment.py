"""launch/environment.sh: which Python, which torch, and what becomes of a .venv that is not whole.

A stand-in for Python plays `-m venv` and pip; what pip was asked is in `pip.log` of the checkout.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

STAND_IN = """#!/bin/bash
venv=$(dirname "$(dirname "$0")") world={world}
case "$*" in
-) cat >/dev/null; cat "$0.objection" 2>/dev/null; exit 0 ;;
"-c import sys; print(sys.executable)") echo "$0" ;;
--version) echo "Python 3.12.1" ;;
*"version_info[:2])"*) echo "${{0##*python}}" | grep . || cat "$venv/version" ;;
"-m venv "*)
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "${{0##*python}}" >"$3/version"
    [ -e "$world/no-ensurepip" ] || touch "$3/pip" ;;
"-c import importlib.util"*) name=${{2##*find_spec(\\'}}; [ -e "$venv/${{name%%\\'*}}" ] ;;
*--dry-run*) [ -e "$world/has-cpu-wheels" ] ;;
"-m pip install"*)
    echo "PYTHONPATH=${{PYTHONPATH:-}} $*" >>"$world/pip.log"
    cat "$world/pip-fails" 2>/dev/null && exit 1
    touch "$venv/torch" ;;
"-c import attnres_train.train") [ ! -e "$world/does-not-load" ] ;;
*) exit 1 ;;
esac
"""
TOOLS = "bash cat cksum cp dirname env find flock grep head mkdir realpath rm sed tail timeout touch".split()


class Checkout:
    """A folder with environment.sh and a PATH with Pythons of its own."""

    def __init__(self, folder: Path):
        self.root = folder / "a checkout"
        (self.root / "launch").mkdir(parents=True)
        (self.root / "tests").mkdir()
        for name in ("launch/environment.sh", "tests/versions.sh", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.root / name)
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in TOOLS:  # and no Python of this machine
            (self.bin / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
        self.venv = self.root / ".venv"

    def python(self, name: str = "python3.12", objection: str = "") -> Path:
        path = self.bin / name
        path.write_text(STAND_IN.format(world=f"'{self.root}'"))
        path.chmod(0o755)
        path.with_name(f"{name}.objection").write_text(objection)
        return path

    def run(self, command: str = "ensure_environment", root: Path | None = None, **environment: str) -> str:
        """What was said; the exit code stands at the end of it."""
        script = f'source "{root or self.root}/launch/environment.sh"; {command}'
        variables = {"PATH": str(self.bin), "HOME": str(self.root), **environment}
        done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, env=variables)
        return f"{done.stdout}{done.stderr}code {done.returncode}"

    def asked_of_pip(self) -> list[str]:
        log = self.root / "pip.log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_how_a_child_was_ended_is_the_caller_s_to_say(checkout: Checkout) -> None:
    told = checkout.run("bash -c 'kill -KILL $$' & wait_out $! || say ended $?")
    assert told == "ended 137\ncode 0", "bash would name a line of environment.sh"


def test_made_once_whatever_link_leads_there_and_again_when_the_folder_was_moved(checkout: Checkout) -> None:
    checkout.python()
    assert checkout.run().endswith("code 0") and len(checkout.asked_of_pip()) == 1
    link = checkout.root.parent / "link"
    link.symlink_to(checkout.root)
    assert checkout.run() == checkout.run(root=link) == "code 0"
    checkout.root = checkout.root.rename(checkout.root.parent / "elsewhere")
    (checkout.venv / "pip.log").unlink(missing_ok=True)
    moved = checkout.run()
    assert "installing attnres_train into" in moved and moved.endswith("code 0")


def test_packages_go_into_the_environment_whatever_the_user_s_own_settings_say(checkout: Checkout) -> None:
    checkout.python()
    checkout.run('ensure_environment "test"', PYTHONPATH="/other", PYTHONHOME="/other", PIP_PREFIX="/other")
    (asked,) = checkout.asked_of_pip()
    assert asked.startswith("PYTHONPATH= ") and " --no-user --target= -c constraints.txt -e .[test]" in asked


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Checkout) -> None:
    checkout.python()
    checkout.run()
    (checkout.venv / "bin/python").unlink()
    (checkout.venv / "bin/python").symlink_to("/nowhere/python3.11")
    (checkout.venv / "lib/python3.11/site-packages/torch").mkdir(parents=True)
    assert "making" in checkout.run()
    assert not (checkout.venv / "lib").exists() and (checkout.venv / "torch").exists()
    assert checkout.run() == "code 0"


def test_an_environment_that_lost_its_packages_gets_them_again(checkout: Checkout) -> None:
    """As when the system's Python became another version: the folder of the old one is not looked into."""
    checkout.python()
    checkout.run()
    (checkout.venv / "torch").unlink()
    assert "making" not in checkout.run() and len(checkout.asked_of_pip()) == 2


def test_a_venv_without_pip_is_said_and_made_anew_the_next_time(checkout: Checkout) -> None:
    checkout.python()
    (checkout.root / "no-ensurepip").touch()
    assert "-m venv" in (said := checkout.run()) and said.endswith("failed\ncode 2")
    (checkout.root / "no-ensurepip").unlink()
    assert checkout.run().endswith("code 0") and (checkout.venv / "torch").exists()


def test_what_another_tool_made_is_left_alone(checkout: Checkout) -> None:
    checkout.python()
    checkout.run()
    (checkout.venv / "pip").unlink()
    (checkout.venv / "installed-base").unlink()
    assert "has torch but no pip" in checkout.run() and (checkout.venv / "torch").exists()


def test_what_does_not_load_is_said_and_not_taken_for_installed(checkout: Checkout) -> None:
    checkout.python()
    (checkout.root / "does-not-load").touch()
    assert "does not load" in checkout.run()
    (checkout.root / "does-not-load").unlink()
    assert len(checkout.asked_of_pip()) == 1 and checkout.run().endswith("code 0")
    assert len(checkout.asked_of_pip()) == 2


def test_a_folder_that_cannot_be_written_is_refused(checkout: Checkout) -> None:
    checkout.python()
    checkout.venv.write_text("")
    assert "cannot be written" in (said := checkout.run()) and "ATTNRES_VENV=" in said and said.endswith("code 2")


def test_the_first_python_without_objection_is_taken_and_a_named_one_alone(checkout: Checkout) -> None:
    checkout.python("python3.11", objection="lacks venv")
    checkout.python("python3.12")
    newest = checkout.python("python3.14")
    assert checkout.run("find_python") == f"{checkout.bin}/python3.12\ncode 0"
    assert checkout.run("find_python", ATTNRES_PYTHON=str(newest)) == f"{newest}\ncode 0"
    assert "which lacks venv\ncode 2" in checkout.run("find_python", ATTNRES_PYTHON="python3.11")
    assert "'/none': there is no such program\ncode 2" in checkout.run("find_python", ATTNRES_PYTHON="/none")


def test_without_any_python_each_objection_is_told(checkout: Checkout) -> None:
    for name in ("python3.11", "python3.12", "python3.13", "python3.14", "python3", "python"):
        checkout.python(name, objection="is Python 3.9, older than 3.11")
    said = checkout.run("find_python")
    assert said.startswith("refused: Python 3.11 to 3.13 is needed") and said.endswith("code 2")
    assert f"  {checkout.bin}/python3 is Python 3.9, older than 3.11\n" in said


def test_another_python_than_that_of_the_environment_is_refused(checkout: Checkout) -> None:
    checkout.python("python3.11")
    other = str(checkout.python("python3.13"))
    checkout.run()
    said = checkout.run(ATTNRES_PYTHON=other)
    assert "(Python 3.13)" in said and "is of Python 3.11" in said and said.endswith("code 2")
    assert checkout.run(ATTNRES_PYTHON="python3.11") == "code 0"


def test_objections_are_those_of_the_interpreter(checkout: Checkout) -> None:
    assert checkout.run(f'objection "{sys.executable}"') == "code 0"
    assert checkout.run("objection /bin/false") == "does not run\ncode 0"
    old = checkout.bin / "old"
    old.write_text(f'#!/bin/bash\nsed "s/< (3, 11)/< (9, 9)/" | "{sys.executable}" "$@"\n')
    old.chmod(0o755)
    assert "older than 3.11" in checkout.run(f'objection "{old}"')


def test_without_a_gpu_torch_comes_without_cuda_where_the_registry_has_it(checkout: Checkout) -> None:
    checkout.python()
    no_gpu = "has_gpu() { false; }; ensure_environment"
    (checkout.root / "has-cpu-wheels").touch()
    assert "build for CPUs" in checkout.run(no_gpu)
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    assert checkout.asked_of_pip()[0].endswith(f"-e . {pinned}+cpu")


def test_where_there_is_a_gpu_the_build_for_cpus_is_told_of(checkout: Checkout) -> None:
    """A folder that machines share is made on one without a GPU."""
    checkout.python()
    checkout.run()
    (checkout.venv / "lib/python3.12/site-packages/torch-2.13.0+cpu.dist-info").mkdir(parents=True)
    assert checkout.run("has_gpu() { false; }; ensure_environment") == "code 0"
    assert "is the build for CPUs" in checkout.run("has_gpu() { true; }; ensure_environment")


@pytest.mark.parametrize("gpu", ["true", "false"])
def test_gigabytes_are_announced_before_they_come(gpu: str, checkout: Checkout) -> None:
    checkout.python()
    said = checkout.run(f"has_gpu() {{ {gpu}; }}; ensure_environment")
    assert said.index("2 GB to fetch") < said.index("installing") and ("PIP_EXTRA_INDEX_URL" in said) == (
        gpu == "false"
    )
    assert checkout.asked_of_pip()[0].endswith("-e .")


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "TMPDIR="),
        ("WARNING: Retrying (Retry(total=4)) after connection broken\nERROR: No matching distribution found for torch",
         "registry could not be reached"),
        ("ERROR: HTTPSConnectionPool: Max retries exceeded (Caused by ProxyError('Cannot connect'))", "proxy"),
        ("ERROR: No matching distribution found for torch==2.13.0", "has no torch for Python 3.12.1"),
        ("  ERROR: Failed building wheel for megatron-core\nerror: failed-wheel-build-for-install",
         "no wheel of megatron-core for Python 3.12.1"),
        ("ERROR: Failed to build 'megatron-core' when installing build dependencies", "no wheel of megatron-core for"),
        ("ERROR: something else", "installing failed"),
    ],
)  # fmt: skip
def test_why_pip_failed_is_told_with_the_remedy(log: str, told: str, checkout: Checkout) -> None:
    checkout.python()
    (checkout.root / "pip-fails").write_text(log + "\n")
    said = checkout.run()
    assert told in said.split("refused: ")[1] and said.endswith("code 2")
    (checkout.root / "pip-fails").unlink()
    assert checkout.run().endswith("code 0")


def versions(checkout: Checkout, *options: str, **environment: str) -> str:
    """What tests/versions.sh says where a suite notes its environment in `ran` and fails on Python 3.12."""
    for name in ("tests/run.sh", "launch/quickstart.sh", "launch/torchrun.sh", "launch/deepspeed.sh"):
        script = checkout.root / name
        script.write_text(
            '#!/bin/bash\necho "${0##*/} ${ATTNRES_VENV##*/} $1" >>ran; [ "${ATTNRES_VENV##*/}" != 3.12 ]\n'
        )
        script.chmod(0o755)
    return checkout.run(f'bash "{checkout.root}/tests/versions.sh" {" ".join(options)}', **environment)


def ran(checkout: Checkout) -> list[str]:
    return (checkout.root / "ran").read_text().splitlines()


def test_the_suite_runs_on_every_python_there_is(checkout: Checkout) -> None:
    for name in ("python3.11", "python3.12", "python3.13"):
        checkout.python(name)
    checkout.python("python3.14", objection="lacks venv")
    said = versions(checkout, "tests/unit")
    assert "Python 3.14: not on this machine" in said and f"Python 3.12: {checkout.bin}/python3.12" in said
    assert ran(checkout) == [f"run.sh {version} tests/unit" for version in ("3.11", "3.12", "3.13")]
    assert "failed on Python 3.12\n" in said and said.endswith("code 1")
    assert "passed on Python 3.13\ncode 0" in versions(checkout, "--only", "3.13")
    assert "there is no Python 3.14 on this machine\ncode 2" in versions(checkout, "--only", "3.14")


def test_the_smoke_takes_one_python_that_is_not_the_environment_s(checkout: Checkout) -> None:
    checkout.python("python3.11")
    checkout.run()
    assert "no smoke: there is no Python beside that of .venv (3.11)\ncode 0" in versions(checkout, "--smoke")
    for name in ("python3.12", "python3.13"):
        checkout.python(name)
    assert versions(checkout, "--smoke").endswith("passed on Python 3.13\ncode 0")
    assert [line.split()[0] for line in ran(checkout)] == ["run.sh", "quickstart.sh", "torchrun.sh", "deepspeed.sh"]
    assert "failed on Python 3.12\ncode 1" in versions(checkout, "--smoke", "--only", "3.12")


def test_what_the_smoke_names_is_there() -> None:
    script = (ROOT / "tests/versions.sh").read_text(encoding="utf-8")
    named = re.findall(r"(tests/\w+/\w+\.py)(?:::(\w+))?", script)
    assert len(named) == 7
    for path, function in named:
        assert f"def {function}" in (ROOT / path).read_text(encoding="utf-8"), path
    layouts = (ROOT / "tests/distributed/test_layouts.py").read_text(encoding="utf-8")
    assert all(f'"{name}"' in layouts for name in re.findall(r"\$\{LAYOUTS\}\[(.*?)\]", script))


def test_a_smoke_whose_packages_cannot_be_had_says_so_and_passes(checkout: Checkout) -> None:
    checkout.python("python3.13")
    (checkout.root / "pip-fails").write_text("WARNING: Retrying after connection broken\n")
    assert "not tried on Python 3.13" in (said := versions(checkout, "--smoke")) and said.endswith("code 0")
    (checkout.root / "pip-fails").write_text("ERROR: No matching distribution found for torch\n")
    assert versions(checkout, "--smoke").endswith("failed on Python 3.13\ncode 1")
