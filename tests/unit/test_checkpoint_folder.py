"""Which checkpoint a run goes on from, and that none is ever half there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from attnres_train.checkpoint.folder import choose_checkpoint, keep_newest, published_steps, replace_published
from attnres_train.checkpoint.load import changed_settings
from attnres_train.checkpoint.manifest import FILE_NAME, Manifest, read_manifest, write_manifest
from attnres_train.errors import Refused


def manifest(step: int, files: dict[str, int] | None = None) -> Manifest:
    return Manifest(
        step=step,
        samples=8 * step,
        tokens=256 * step,
        skipped_steps=0,
        optimizer_updates=step,
        created="2026-01-01T00:00:00+00:00",
        grid={"tensor": 1, "pipeline": 1, "virtual": 1, "data": 1, "sequence": 0},
        layers_per_stage=[4],
        versions={},
        tensors={},
        files=files or {},
        fingerprints={},
        settings={},
    )


def publish(run: Path, *steps: int) -> Path:
    for step in steps:
        folder = run / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        write_manifest(folder, manifest(step))
    return run / "checkpoints"


def test_auto_takes_the_newest_by_step_and_ignores_what_is_not_published(tmp_path: Path) -> None:
    assert choose_checkpoint("auto", tmp_path) is None
    checkpoints = publish(tmp_path, 9, 100, 20)
    (checkpoints / "step-00000300").mkdir()
    (checkpoints / ".step-00000400.partial").mkdir()
    assert choose_checkpoint("auto", tmp_path) == checkpoints / "step-00000100"
    assert choose_checkpoint("must", tmp_path) == checkpoints / "step-00000100"
    assert list(published_steps(checkpoints)) == [9, 20, 100]


def test_an_older_checkpoint_than_the_runs_own_newest_is_refused(tmp_path: Path) -> None:
    """It would be deleted as the oldest, and the next automatic resume would take the other branch."""
    checkpoints = publish(tmp_path / "run", 10, 20)
    with pytest.raises(Refused, match="names step 10, but the run folder has .*step-00000020"):
        choose_checkpoint(str(checkpoints / "step-00000010"), tmp_path / "run")
    assert choose_checkpoint(str(checkpoints / "step-00000020"), tmp_path / "run") is not None
    assert choose_checkpoint(str(checkpoints / "step-00000010"), tmp_path / "branch") is not None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = publish(tmp_path, 10, 20, 30)
    keep_newest(checkpoints, None)
    assert len(published_steps(checkpoints)) == 3
    keep_newest(checkpoints, 2)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-00000020", "step-00000030"]


def test_a_step_that_is_published_again_is_replaced(tmp_path: Path) -> None:
    checkpoints = publish(tmp_path, 10)
    partial = checkpoints / ".step-00000010.partial"
    partial.mkdir()
    write_manifest(partial, manifest(10, files={"new": 1}))
    (partial / "new").write_text("x")
    replace_published(partial, checkpoints / "step-00000010")
    assert read_manifest(checkpoints / "step-00000010").files == {"new": 1}
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000010"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / FILE_NAME).unlink(), "has no manifest.json"),
        (lambda folder: (folder / FILE_NAME).write_text("{"), "cannot be read"),
        (lambda folder: (folder / FILE_NAME).write_text("{}"), "cannot be read"),
        (lambda folder: (folder / FILE_NAME).write_text(json.dumps(asdict(manifest(1)) | {"format": 9})), "format 9"),
        (lambda folder: (folder / "weights").unlink(), "is missing; the manifest says 3"),
        (lambda folder: (folder / "weights").write_text("ab"), "has 2 bytes; the manifest says 3"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_refused_by_what_is_wrong(damage: object, told: str, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("abc")
    write_manifest(tmp_path, manifest(1, files={"weights": 3}))
    assert read_manifest(tmp_path) == manifest(1, files={"weights": 3})
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(Refused, match=told):
        read_manifest(tmp_path)


def test_changed_settings_are_told_and_equal_ones_are_not() -> None:
    stored = json.loads(json.dumps({"optimizer.learning_rate": 6e-4, "parallel.layers_per_stage": (3, 4), "gone": 1}))
    now = {"optimizer.learning_rate": 3e-4, "parallel.layers_per_stage": (3, 4), "new": 2}
    assert changed_settings(stored, now) == {"optimizer.learning_rate": (6e-4, 3e-4)}
