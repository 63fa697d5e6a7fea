"""Put every mutant into a copy of the tree and run its tests there."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutant import ROOT, Mutant, faults, mutants

COLLECTED_AND_FAILED = 1
"""What pytest exits with when a test failed; anything else says that it did not come to that."""


OURS = ("attnres_train", "data_tools", "tests")
_POLL_SECONDS = 0.1


class Verdict(NamedTuple):
    """What became of a mutant; `word` is caught, survived, stale (it no longer applies), broken or equivalent."""

    word: str
    mutant: Mutant
    seconds: float = 0.0
    told: str = ""


class Trial(NamedTuple):
    """A mutant whose tests run in the process `pid`, in the copy `tree`."""

    mutant: Mutant
    tree: Path
    pid: int
    began: float
    before: str
    """The file as it was."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 where a mutant survives or cannot be run."""
    options = _options(arguments)
    chosen = [
        mutant
        for mutant in mutants()
        if options.room in (None, mutant.room) and (not options.only or mutant.name in options.only)
    ]
    if not chosen:
        print("there is no such mutant", file=sys.stderr)
        return 1
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=options.folder) as folder:
        trees = [_copy(Path(folder) / str(number)) for number in range(options.jobs)]
        for verdict in _judged(chosen, trees, options.limit):
            verdicts.append(verdict)
            _say(verdict)
    counts = {word: sum(v.word == word for v in verdicts) for word in sorted({v.word for v in verdicts})}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return int(not counts.keys() <= {"caught", "equivalent"})


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these alone")
    parser.add_argument("--room", help="those of one file of tests/mutants alone")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time, each in a copy of its own")
    parser.add_argument("--limit", type=float, default=180, help="seconds for the tests of one (a hang is caught)")
    parser.add_argument("--folder", help="where the copies are made")
    return parser.parse_args(arguments)


def _copy(target: Path) -> Path:
    """The files that git knows, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def _judged(chosen: Sequence[Mutant], trees: list[Path], limit: float) -> Iterator[Verdict]:
    """As many at a time as there are `trees`."""
    _import_libraries()
    waiting, running = list(chosen)[::-1], list[Trial]()
    while waiting or running:
        if waiting and trees:
            mutant = waiting.pop()
            if wrong := faults(mutant):
                yield Verdict("stale", mutant, told="; ".join(wrong))
            elif mutant.equivalent is not None:
                yield Verdict("equivalent", mutant, told=mutant.equivalent)
            else:
                running.append(_begun(mutant, trees.pop()))
            continue
        time.sleep(_POLL_SECONDS)
        for trial in list(running):
            if (verdict := _ended(trial, limit)) is not None:
                running.remove(trial)
                trees.append(trial.tree)
                yield verdict


def _import_libraries() -> None:
    """Once for all trials, which are forked: torch and its like take most of the time of a quick test.

    What is ours is imported anew in each, from its own tree.
    """
    importlib.import_module("pytest")
    importlib.import_module("tests.distributed.training")
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]


def _begun(mutant: Mutant, tree: Path) -> Trial:
    source = tree / mutant.file
    before = source.read_text(encoding="utf-8")
    mistaken = mutant.applied(before)
    assert mistaken is not None, "the copy is of the tree"
    source.write_text(mistaken, encoding="utf-8")
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _end_with(lambda: _tested(mutant, tree))
    return Trial(mutant, tree, pid, time.monotonic(), before)


def _end_with(run: Callable[[], int]) -> None:
    code = 70
    try:
        code = run()
    finally:
        os._exit(code)


def _tested(mutant: Mutant, tree: Path) -> int:
    """In the forked process: pytest's exit code; what it says goes into a file beside the tree."""
    import pytest

    os.setsid()
    output = os.open(_output(tree), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
    return int(pytest.main(["-x", "-q", "-W", "ignore", "-p", "no:cacheprovider", "-m", "not slow", *mutant.tests]))


def _ended(trial: Trial, limit: float) -> Verdict | None:
    """None while it runs. Tests that hang are ended at the limit: a mistake that nobody can miss."""
    seconds = time.monotonic() - trial.began
    pid, status = os.waitpid(trial.pid, os.WNOHANG)
    if not pid:
        if seconds < limit:
            return None
        os.killpg(trial.pid, signal.SIGKILL)
        os.waitpid(trial.pid, 0)
    (trial.tree / trial.mutant.file).write_text(trial.before, encoding="utf-8")
    code = os.waitstatus_to_exitcode(status) if pid else COLLECTED_AND_FAILED
    word = {0: "survived", COLLECTED_AND_FAILED: "caught"}.get(code, "broken")
    told = "".join(_output(trial.tree).read_text(errors="replace")[-2000:]) if word == "broken" else ""
    return Verdict(word, trial.mutant, seconds, told)


def _output(tree: Path) -> Path:
    return tree.with_name(f"{tree.name}.txt")


def _say(verdict: Verdict) -> None:
    word, mutant, seconds, told = verdict
    more = f": {told}" if told else "" if word == "caught" else f": {mutant.breaks}"
    print(f"{word:10} {mutant.room}/{mutant.name} ({seconds:.0f} s){more}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
