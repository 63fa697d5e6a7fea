"""What CONTRIBUTING.md says of a new mode and a new branch: both are built from the page, in a copy, and train."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

PROGRAM = """
import json, sys
from dataclasses import replace
from attnres_train.depth.config import ResidualConfig
from attnres_train.plan import plan
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import VOCABULARY, tiny_config
from tests.distributed.training import train_all

found = {}
for name, residual in (("mode", ResidualConfig(mode="scaled")), ("branch", None)):
    grids = ((1, {}), (4, {"tensor": 2, "sequence": True, "pipeline": 2}))
    configs = [tiny_config("block", **degrees) for _, degrees in grids]
    configs = [config if residual is None else replace(config, residual=residual) for config in configs]
    unpadded = replace(configs[0], model=replace(configs[0].model, pad_vocabulary_to=1))
    trained = [run_ranks(train_all, ranks, [config], 3)[0][0] for (ranks, _), config in zip(grids, configs)]
    found[name] = {
        "losses": [one.losses for one in trained],
        "norms": [one.grad_norms for one in trained],
        "moved": {n: float(g.norm()) for n, g in trained[1].first_gradients.items()},
        "shapes": {n: list(w.shape) for n, w in trained[1].weights.items()},
        "counted": sum(w.numel() for w in trained[0].weights.values()),
        "planned": plan(unpadded, 1, VOCABULARY).parameters_total,
    }
print(json.dumps(found))
"""


def build_from_the_page(tree: Path) -> None:
    """The files of the page, and its changes to others."""
    for path, text in re.findall(r"`(attnres_train/\S+\.py)`:\n\n```python\n(.*?)```", PAGE, flags=re.DOTALL):
        assert not (tree / path).exists()
        (tree / path).write_text(text, encoding="utf-8")
    for old, new in (_both(change) for change in re.findall(r"```diff\n(.*?)```", PAGE, flags=re.DOTALL)):
        holders = [path for path in (tree / "attnres_train").rglob("*.py") if old in path.read_text(encoding="utf-8")]
        assert len(holders) == 1, f"{old!r} is in {holders}"
        holders[0].write_text(holders[0].read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def _both(change: str) -> tuple[str, str]:
    lines = change.splitlines()
    return tuple("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")  # type: ignore[return-value]


def test_a_mode_and_a_branch_are_one_file_each_and_train_in_two_layouts(tmp_path: Path) -> None:
    for room in ("attnres_train", "tests"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    build_from_the_page(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    for name, one in found.items():
        whole, grid = one["losses"]
        assert grid == pytest.approx(whole, rel=1e-5) and len(set(whole)) == 3, name
        assert one["norms"][1] == pytest.approx(one["norms"][0], rel=1e-5), name
        assert one["counted"] == one["planned"], name
    assert found["mode"]["moved"]["layers.2.mlp.depth.scale"] > 0
    assert found["mode"]["shapes"]["layers.3.mlp.depth.scale"] == [1]
    inner = [found["branch"]["shapes"][f"layers.{n}.mlp.branch.linear_fc1.weight"][0] for n in range(4)]
    assert inner == [2 * 48, 48, 2 * 48, 48]
