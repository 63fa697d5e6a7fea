"""Names and order of checkpoints, what a resume may use, and that none is ever half there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from attnres_train.checkpoint.folder import (
    candidates,
    checkpoint_name,
    is_stated,
    keep_newest,
    make_partial,
    named_steps,
    partial_folder,
    point_to_latest,
    problems_at_a_glance,
    remove_leftovers,
    replace_published,
    unpublish,
)
from attnres_train.checkpoint.manifest import FILE_NAME, read_manifest
from attnres_train.errors import Refused
from tests.unit.checkpoint_folders import checkpoint, flip, run_with


def names(folders: list[Path]) -> list[str]:
    return [folder.name for folder in folders]


def listed(checkpoints: Path) -> set[str]:
    return {path.name for path in checkpoints.iterdir()}


def damage_nothing(folder: Path) -> None:
    """What the other damages are held against."""


def remove_manifest(folder: Path) -> None:
    (folder / FILE_NAME).unlink()


def flip_manifest(folder: Path) -> None:
    flip(folder / FILE_NAME, 999)


def cut_file(folder: Path) -> None:
    (folder / "part").write_bytes(b"123")


def remove_file(folder: Path) -> None:
    (folder / "part").unlink()


DAMAGES = [remove_manifest, flip_manifest, cut_file, remove_file]


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_the_newest_by_step_comes_first_and_only_names_of_checkpoints_count(resume: str, tmp_path: Path) -> None:
    checkpoints = run_with(tmp_path, 9, 100, 20, 123456789)
    for other in (".step-00000400.partial", "step-00000300.replaced-1", "step-300", "step-00000500x"):
        (checkpoints / other).mkdir()
    (checkpoints / "step-00000600").write_text("a file")
    expected = ["step-123456789", "step-00000100", "step-00000020", "step-00000009"]
    assert names(candidates(resume, tmp_path)) == expected
    assert list(named_steps(checkpoints)) == [9, 20, 100, 123456789]
    assert all(path.is_absolute() for path in candidates(resume, tmp_path))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_ones_are_offered_too_because_the_choice_must_say_why_it_passes_over_them(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    damage(run_with(tmp_path, 10, 20) / "step-00000020")
    assert names(candidates("auto", tmp_path)) == ["step-00000020", "step-00000010"]


def test_auto_starts_anew_where_there_is_none_and_must_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "gone", tmp_path):
        assert candidates("auto", folder) == []
        with pytest.raises(Refused, match='is "must", but there is no checkpoint in /'):
            candidates("must", folder)


@pytest.mark.parametrize("damage", [damage_nothing, *DAMAGES])
def test_never_is_refused_where_checkpoints_are_whole_or_not(damage: Callable[[Path], None], tmp_path: Path) -> None:
    assert candidates("never", tmp_path) == []
    damage(run_with(tmp_path, 10) / "step-00000010")
    with pytest.raises(Refused, match='is "never", but .*step-00000010 exists'):
        candidates("never", tmp_path)


def test_a_path_is_the_only_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = run_with(tmp_path / "run", 10, 20)
    newest = checkpoints / "step-00000020"
    assert candidates(str(newest), tmp_path / "run") == [newest]
    monkeypatch.chdir(checkpoints)
    assert candidates("step-00000020", tmp_path / "run") == [newest]
    assert is_stated("step-00000020") and not any(map(is_stated, ("auto", "must", "never")))


def test_an_older_checkpoint_than_the_runs_own_newest_is_refused(tmp_path: Path) -> None:
    """The next automatic resume would take the other branch."""
    older = run_with(tmp_path / "run", 10, 20) / "step-00000010"
    with pytest.raises(Refused, match="names step 10, but the run folder has .*step-00000020"):
        candidates(str(older), tmp_path / "run")
    assert candidates(str(older), tmp_path / "branch") == [older]
    assert candidates(str(older), run_with(tmp_path / "behind", 5).parent) == [older]


def test_a_branched_run_goes_on_from_its_own_newest(tmp_path: Path) -> None:
    """The same command again, after an interruption (facebookresearch/metaseq#474)."""
    origin = run_with(tmp_path / "other", 10, 20) / "step-00000010"
    branch = tmp_path / "branch"
    assert candidates(str(origin), branch) == [origin]
    assert candidates(str(origin), run_with(branch, 5, 10).parent) == [origin], "nothing newer yet"
    run_with(branch, 15, 30)
    assert names(candidates(str(origin), branch)) == ["step-00000030", "step-00000015", "step-00000010"]
    assert candidates(str(origin), branch)[-1] == origin, "if none of its own is whole"


@pytest.mark.parametrize("damage", [shutil.rmtree, *DAMAGES])
def test_a_branched_run_needs_its_origin_only_until_it_has_one_of_its_own(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """The other run may have deleted it since, as one that is not among its newest."""
    origin, branch = run_with(tmp_path / "other", 10) / "step-00000010", tmp_path / "branch"
    damage(origin)
    with pytest.raises(Refused):
        candidates(str(origin), branch)
    remove_file(run_with(branch, 20) / "step-00000020")
    with pytest.raises(Refused):  # a damaged one is none
        candidates(str(origin), branch)
    assert names(candidates(str(origin), run_with(branch, 5, 30).parent)) == ["step-00000030", "step-00000020"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_does_not_stand_in_the_way_of_an_older_path(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    checkpoints = run_with(tmp_path, 10, 20, 30)
    damage(checkpoints / "step-00000030")
    with pytest.raises(Refused, match="names step 10, but the run folder has .*step-00000020"):
        candidates(str(checkpoints / "step-00000010"), tmp_path)
    assert names(candidates(str(checkpoints / "step-00000020"), tmp_path)) == ["step-00000020"]
    with pytest.raises(Refused, match="step-00000030"):
        candidates(str(checkpoints / "step-00000030"), tmp_path)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("gone", "there is no folder /.*gone"),
        ("atuo", 'there is no folder .*\n.*did you mean "auto"'),
        ("run/checkpoints/step-00000010/part", "there is no folder"),
        ("run", "is no whole checkpoint: it has no manifest.json"),
        ("run", "name one of those in /.*run/checkpoints: step-00000010$"),
        ("other/checkpoints", "in /.*other/checkpoints: step-00000005, step-00000004, step-00000003 or one of 2 older"),
        ("empty", "name the folder of one whole checkpoint, such as"),
        ("x" * 256, "cannot be read: File name too long\n.*correct the path"),
    ],
)
def test_a_path_that_is_no_checkpoint_is_refused(
    path: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with(tmp_path / "run", 10)
    run_with(tmp_path / "other", 1, 2, 3, 4, 5)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=told):
        candidates(path, tmp_path / "run")


def test_a_glance_sees_sizes_and_not_contents(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    flip(folder / "part")
    assert problems_at_a_glance(folder) == []
    cut_file(folder)
    assert problems_at_a_glance(folder) == ["part has 3 bytes, the manifest says 7"]
    flip_manifest(folder)
    (problem,) = problems_at_a_glance(folder)
    assert "cannot be read" in problem


def test_the_newest_up_to_the_saved_step_are_kept_and_newer_ones_are_left_alone(tmp_path: Path) -> None:
    checkpoints = run_with(tmp_path, 10, 20, 30, 40)
    remove_manifest(checkpoints / "step-00000040")
    aside = checkpoints / "step-00000020.replaced-1"
    aside.mkdir()
    keep_newest(checkpoints, None, upto=30)
    assert list(named_steps(checkpoints)) == [10, 20, 30, 40]
    keep_newest(checkpoints, 3, upto=30)
    assert list(named_steps(checkpoints)) == [10, 20, 30, 40]
    keep_newest(checkpoints, 1, upto=20)
    assert list(named_steps(checkpoints)) == [20, 30, 40]
    keep_newest(checkpoints, 1, upto=30)
    assert listed(checkpoints) == {"step-00000030", "step-00000040", aside.name}


def test_a_deleted_one_loses_its_name_before_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = run_with(tmp_path, 10, 20)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            unpublish(checkpoints / "step-00000010")
    assert list(named_steps(checkpoints)) == [20] and len(listed(checkpoints)) == 2
    remove_leftovers(checkpoints)
    assert listed(checkpoints) == {"step-00000020"}


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of files and folders that can neither be deleted nor renamed: put some in."""
    names: set[str] = set()

    def guarded(call: Callable[..., None]) -> Callable[..., None]:
        def refuse(path: str | Path, *arguments: object, **options: object) -> None:
            if Path(path).name in names:
                raise OSError(errno.EBUSY, "Device or resource busy", str(path))
            call(path, *arguments, **options)

        return refuse

    for call in ("unlink", "rename"):
        monkeypatch.setattr(os, call, guarded(getattr(os, call)))
    return names


def test_an_old_one_that_cannot_be_deleted_is_told_and_the_rest_of_it_goes(busy: set[str], tmp_path: Path) -> None:
    """(PrimeIntellect-ai/prime-rl#1763)"""
    checkpoints = run_with(tmp_path, 10, 20, 30, 40)
    (checkpoints / "step-00000010/.nfs0001").touch()
    busy |= {".nfs0001", "step-00000020"}
    (first, second) = keep_newest(checkpoints, 1, upto=40)
    assert "/.step-00000010.deleted-1.partial cannot be deleted and takes room: Device or resource busy" in first
    assert "/step-00000020 cannot be deleted and takes room: Device or resource busy" in second
    assert list(named_steps(checkpoints)) == [20, 40]
    assert listed(checkpoints / ".step-00000010.deleted-1.partial") == {".nfs0001"}
    assert remove_leftovers(checkpoints) == [first], "the same words, so that they are told once"
    busy.clear()
    assert remove_leftovers(checkpoints) == [] == keep_newest(checkpoints, 1, upto=40)
    assert listed(checkpoints) == {"step-00000040"}


def test_a_leftover_that_cannot_be_deleted_does_not_keep_the_next_save_from_its_name(
    busy: set[str], tmp_path: Path
) -> None:
    partial = checkpoint(partial_folder(run_with(tmp_path, 10), 20))
    busy.add("part")
    for number in (1, 2):
        assert len(remove_leftovers(partial.parent)) == number
        make_partial(partial)
        assert listed(partial) == set()
        (partial / "part").touch()
    aside = {f".step-00000020.deleted-{number}.partial" for number in (1, 2)}
    assert listed(partial.parent) == {"step-00000010", partial.name, *aside}


def test_a_copy_under_the_name_of_another_step_is_none(tmp_path: Path) -> None:
    """It would be taken for the newest, and go on from an older step."""
    checkpoints = run_with(tmp_path, 10, 20)
    shutil.copytree(checkpoints / "step-00000010", checkpoints / "step-00000030")
    shutil.copytree(checkpoints / "step-00000010", tmp_path / "best")
    (problem,) = problems_at_a_glance(checkpoints / "step-00000030")
    assert "cannot be read: it is of step 10, and the folder is named step-00000030" in problem
    assert problems_at_a_glance(tmp_path / "best") == [], "any other name is free"
    assert keep_newest(checkpoints, 2, upto=30) == [] and list(named_steps(checkpoints)) == [10, 20, 30]


def test_of_one_that_was_moved_elsewhere_and_linked_only_the_link_is_deleted(tmp_path: Path) -> None:
    checkpoints, archive = run_with(tmp_path, 10, 20), tmp_path / "archive"
    (checkpoints / "step-00000010").rename(archive)
    (checkpoints / "step-00000010").symlink_to(archive)
    assert names(candidates("auto", tmp_path)) == ["step-00000020", "step-00000010"]
    assert keep_newest(checkpoints, 1, upto=20) == []
    assert listed(checkpoints) == {"step-00000020"} and problems_at_a_glance(archive) == []


def test_what_has_the_name_already_is_set_aside(tmp_path: Path) -> None:
    checkpoints = run_with(tmp_path, 10)
    published = checkpoints / checkpoint_name(10)
    remove_manifest(published)
    for content in (b"first", b"second"):
        partial = checkpoint(partial_folder(checkpoints, 10), 10, {"new": content})
        replace_published(partial, published)
        assert problems_at_a_glance(published) == [] and (published / "new").read_bytes() == content
    assert listed(checkpoints) == {published.name, f"{published.name}.replaced-1", f"{published.name}.replaced-2"}
    assert (checkpoints / f"{published.name}.replaced-1/part").read_bytes() == b"1234567"
    assert read_manifest(checkpoints / f"{published.name}.replaced-2").files.keys() == {"new"}
    assert names(candidates("auto", tmp_path)) == [published.name]


def test_leftovers_of_a_save_and_of_a_deletion_are_removed_and_nothing_else(tmp_path: Path) -> None:
    checkpoints = run_with(tmp_path, 10, 20)
    point_to_latest(checkpoints / "step-00000020")
    stays = listed(checkpoints)
    checkpoint(partial_folder(checkpoints, 30))
    checkpoint(checkpoints / ".step-00000005.deleted-1.partial")
    partial_folder(checkpoints, 40).mkdir()
    partial_folder(checkpoints, 50).write_text("a file")  # NVIDIA-NeMo/Speech#15541, the other way round
    assert remove_leftovers(checkpoints) == []
    assert listed(checkpoints) == stays


@pytest.mark.parametrize("hint", ["step-00000040\n", "", "/nowhere", "step-00000010\n", "\x00\xff"])
def test_the_hint_to_the_latest_is_written_and_never_read(hint: str, tmp_path: Path) -> None:
    checkpoints = run_with(tmp_path, 10, 20)
    for step in (10, 20):
        point_to_latest(checkpoints / checkpoint_name(step))
        if step == 10:  # whoever reads it meanwhile reads the old one or the new one, and never a part
            old = open(checkpoints / "latest", encoding="utf-8")  # noqa: SIM115
    with old:
        assert old.read() == f"{checkpoint_name(10)}\n"
    for step in (10, 20):
        point_to_latest(checkpoints / checkpoint_name(step))
        assert (checkpoints / "latest").read_text() == f"{checkpoint_name(step)}\n"
    assert listed(checkpoints) == {"step-00000010", "step-00000020", "latest"}
    (checkpoints / "latest").write_text(hint)
    assert names(candidates("auto", tmp_path)) == names(candidates("must", tmp_path))
    assert names(candidates("auto", tmp_path)) == ["step-00000020", "step-00000010"]
    assert names(candidates(str(checkpoints / "step-00000020"), tmp_path)) == ["step-00000020"]
