"""Runs the mutants; see the package."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.all_rooms import ROOMS
from tests.mutants.mutant import ROOT, Mutant

SECONDS = 400
"""A mutant that makes its tests hang is noticed, too."""


def main() -> int:
    options = _options()
    chosen = list(_chosen(options.room, options.only))
    if not chosen:
        print("no mutant has such a name")
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(_copy(Path(folder) / f"tree-{number}"))

        def tried(one: Mutant) -> tuple[Mutant, str]:
            tree = trees.get()
            try:
                return one, _try(one, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(options.jobs) as pool:
            found = [_told(*pair) for pair in pool.map(tried, chosen)]
    survived = [one for one, outcome in found if outcome != "caught" and one.equivalent is None]
    print(f"{len(found)} mutants: {sum(outcome == 'caught' for _, outcome in found)} caught, {len(survived)} not")
    return 1 if survived else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--room", choices=sorted(ROOMS), help="those of one room")
    parser.add_argument("--only", default="", help="those whose name holds these words")
    parser.add_argument("--jobs", type=int, default=2, help="at a time; default 2")
    return parser.parse_args()


def _chosen(room: str | None, words: str) -> Iterator[Mutant]:
    for name, mutants in ROOMS.items():
        if room in (None, name):
            yield from (one for one in mutants if words in one.name)


def _copy(tree: Path) -> Path:
    """What git knows or would know of the tree, as it stands."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def _try(one: Mutant, tree: Path) -> str:
    path = tree / one.file
    whole = path.read_text(encoding="utf-8")
    try:
        changed = one.applied_to(whole)
    except ValueError as error:
        return f"does not apply: {error}"
    path.write_text(changed, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *one.tests]
    # The copy comes before an installed tree, for the ranks that tests start as well.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "caught"
    finally:
        path.write_text(whole, encoding="utf-8")
    # 1: tests failed; 2: a module could not be read; 4 and 5: nothing was tested.
    return {0: "SURVIVED", 1: "caught", 2: "caught"}.get(done.returncode, f"nothing ran: {done.stdout[-300:]}")


def _told(one: Mutant, outcome: str) -> tuple[Mutant, str]:
    why = f" (equivalent: {one.equivalent})" if one.equivalent and outcome != "caught" else ""
    print(f"{time.strftime('%H:%M:%S')}  {outcome:8}  {one.file}: {one.name}{why}", flush=True)
    return one, outcome


if __name__ == "__main__":
    sys.exit(main())
