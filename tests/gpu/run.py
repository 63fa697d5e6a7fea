"""Every section in a process of its own with a time of its own, then one page: build/gpu/page.md and page.json.

    ./tests/gpu.sh                    all GPUs of this machine
    ./tests/gpu.sh --gpus 2 --only layouts kernels
    ./tests/gpu.sh --pretend          no GPU: CPUs under NCCL's rules, to see that the script works

Exit code: 0 where nothing failed; 1 where something did, or ran out of time; 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from tests.gpu.machine import FORKS, Machine, add_arguments, gpus_here
from tests.gpu.never import NEVER_RUN
from tests.gpu.page import page
from tests.gpu.section import Section

MOST_SECONDS = 14 * 60.0
LEAST_SECONDS = 5.0
"""A section for which less is left is not begun."""
LIMIT_SECONDS = {
    "device": 120, "layouts": 420, "kernels": 180, "synchronization": 120, "memory": 240, "saves": 180, "failures": 180,
    "profile": 60,
}  # fmt: skip
"""By section, in the order of the page: when it is ended. What comes early is what most depends on."""


def main() -> int:
    options = _options()
    machine = Machine(
        options.gpus or (2 if options.pretend else gpus_here()), options.folder, options.pretend, options.brief
    )
    if options.section is not None:
        return _one(options.section, machine)
    if machine.gpus == 0:
        print("no GPU that torch can use; `--pretend` tries the script on CPUs", file=sys.stderr)
        return 2
    machine.folder.mkdir(parents=True, exist_ok=True)
    print("never run on a GPU before:", *NEVER_RUN, sep="\n  ", flush=True)
    deadline, sections = time.monotonic() + MOST_SECONDS, []
    for name in options.only or LIMIT_SECONDS:
        sections.append(_in_time(name, machine, deadline))
        print(f"{sections[-1].title}: {sections[-1].verdict}, {sections[-1].seconds:.0f} s", flush=True)
    _write(machine, sections)
    print(f"page: {machine.folder / 'page.md'}")
    return int(any(section.verdict in ("failed", "not run") for section in sections))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/gpu.sh", description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument(
        "--only", nargs="+", choices=list(LIMIT_SECONDS), metavar="SECTION", help=", ".join(LIMIT_SECONDS)
    )
    parser.add_argument("--section", choices=list(LIMIT_SECONDS), help=argparse.SUPPRESS)  # this process is one
    return parser.parse_args()


def _one(name: str, machine: Machine) -> int:
    section: Section = importlib.import_module(f"tests.gpu.{name}").run(machine)
    _file(machine, name).write_text(json.dumps(asdict(section)), encoding="utf-8")
    return 0


def _file(machine: Machine, name: str) -> Path:
    return machine.folder / f"{name}.json"


def _in_time(name: str, machine: Machine, deadline: float) -> Section:
    """The section as its process found it; ended, with all it started, when its time is over."""
    limit = min(float(LIMIT_SECONDS[name]), deadline - time.monotonic())
    if limit < LEAST_SECONDS:
        return Section(name.capitalize(), "not run", "no time was left")
    _file(machine, name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.gpu.run", "--section", name, *machine.arguments()]
    log, started = machine.folder / f"{name}.log", time.monotonic()
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, env=os.environ | FORKS, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = time.monotonic() - started
    if not _file(machine, name).exists():
        why = f"ended after {seconds:.0f} s of at most {limit:.0f} without a result; the end of {log}:"
        return Section(
            name.capitalize(), "failed", why, (), seconds, log.read_text(errors="replace").splitlines()[-25:]
        )
    return replace(Section(**json.loads(_file(machine, name).read_text(encoding="utf-8"))), seconds=seconds)


def _write(machine: Machine, sections: list[Section]) -> None:
    import torch

    about = {
        "GPUs": f"{machine.gpus}{', pretended: CPUs under the rules of NCCL' if machine.pretend else ''}",
        "device": "CPU" if machine.pretend else torch.cuda.get_device_name(0),
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "Python": platform.python_version(),
    }
    found = {"about": about, "never_run": NEVER_RUN, "sections": [asdict(section) for section in sections]}
    (machine.folder / "page.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    (machine.folder / "page.md").write_text(page(about, NEVER_RUN, sections), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
