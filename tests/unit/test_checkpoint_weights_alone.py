"""`checkpoint.load = "weights"`: where it has a meaning, what a run of it goes on from, and what must fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnres_train.checkpoint.checksum import record_of
from attnres_train.checkpoint.fit import differences, differences_but_for_tensors, told
from attnres_train.checkpoint.folder import candidates
from attnres_train.checkpoint.manifest import plain_fields, read_manifest, write_manifest
from attnres_train.checkpoint.origin import Origin, Source, digest_of
from attnres_train.errors import Refused
from tests.unit.checkpoint_folders import manifest, run_with, write_sealed
from tests.unit.config_files import broken_rules, flags

SHAPES = {"a": (3, 4), "b": (5,)}


@pytest.mark.parametrize("word", ["auto", "must", "never"])
def test_weights_of_no_checkpoint_are_refused_before_any_rank_starts(word: str, tmp_path: Path) -> None:
    (problem,) = broken_rules(tmp_path, *flags(checkpoint__load="weights", checkpoint__resume=word)).values()
    message = f'"weights", but checkpoint.resume = "{word}" names no checkpoint to take them from'
    assert (problem.key, problem.message) == ("checkpoint.load", message)
    assert problem.remedy.startswith("write the path of one as checkpoint.resume")
    assert broken_rules(tmp_path, *flags(checkpoint__load="weights", checkpoint__resume="runs/x/step-00000010")) == {}
    assert broken_rules(tmp_path, *flags(checkpoint__load="all", checkpoint__resume=word)) == {}


def own_checkpoint(run: Path, step: int, origin: Origin | None) -> Path:
    """A whole checkpoint of `run` whose weights are of `origin`."""
    folder = run_with(run, step) / f"step-{step:08d}"
    files = {name: record_of(folder / name) for name in read_manifest(folder).files}
    write_manifest(folder, manifest(step, files=files, origin=origin))
    return folder


def source_in(folder: Path) -> Path:
    return run_with(folder / "source", 40) / "step-00000040"


def begun_with(source: Path) -> Origin:
    return Origin("weights", (Source(str(source), 40, digest_of(source)),))


def test_own_checkpoints_come_before_the_weights_at_whatever_step(tmp_path: Path) -> None:
    source, run = source_in(tmp_path), tmp_path / "run"
    assert candidates(str(source), run, "weights") == [source]
    older, newer = (own_checkpoint(run, step, begun_with(source)) for step in (5, 60))
    assert candidates(str(source), run, "weights") == [newer, older, source]
    (source / "manifest.json").unlink()
    assert candidates(str(source), run, "weights") == [newer, older], "the other run may have deleted it"


def refused(source: Path, run: Path) -> str:
    with pytest.raises(Refused) as refusal:
        candidates(str(source), run, "weights")
    return str(refusal.value)


def test_a_run_that_did_not_begin_so_is_neither_lost_nor_gone_on_with(tmp_path: Path) -> None:
    source, run = source_in(tmp_path), tmp_path / "run"
    own = own_checkpoint(run, 5, None)
    assert f"{own} is there, of a run that did not begin with weights alone" in refused(source, run)
    assert "is of this run, which step 0 would begin anew" in refused(own, run)
    merged = own_checkpoint(tmp_path / "other", 5, begun_with(source)._replace(how="merge"))
    assert f"{merged} is there" in refused(source, tmp_path / "other")


def test_a_mean_is_nothing_to_go_on_from_and_that_is_told_before_any_rank_starts(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    merged = own_checkpoint(tmp_path / "merged", 40, begun_with(source)._replace(how="merge"))
    with pytest.raises(Refused, match="weights alone, with no optimizer state to go on with") as refusal:
        candidates(str(merged), tmp_path / "run")
    assert refusal.value.problems[0].remedy.startswith('write checkpoint.load = "weights"')
    assert candidates(str(merged), tmp_path / "run", "weights") == [merged]
    begun = own_checkpoint(tmp_path / "other", 50, begun_with(merged))
    assert candidates(str(begun), tmp_path / "run") == [begun], "which has moments of its own"


def test_the_weights_of_another_checkpoint_than_the_run_began_with_are_refused(tmp_path: Path) -> None:
    source, run = source_in(tmp_path), tmp_path / "run"
    own = own_checkpoint(run, 5, begun_with(source))
    another = own_checkpoint(tmp_path / "another", 40, begun_with(source))
    told_ = refused(another, run)
    assert f"names {another}, but {own} began with the weights of {source} (step 40)" in told_
    moved = source.rename(tmp_path / "moved")
    assert candidates(str(moved), run, "weights") == [own, moved], "the same one, elsewhere"


def test_nothing_to_begin_with_is_refused(tmp_path: Path) -> None:
    assert "there is no folder" in refused(tmp_path / "nowhere", tmp_path / "run")


def test_an_origin_is_written_and_read(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    origin = Origin("merge", (Source("a", 1, "x", 0.25), Source("b", 2, "y", 0.75)))
    for known in (origin, None, begun_with(source)):
        assert read_manifest(own_checkpoint(tmp_path / str(hash(known)), 7, known)).origin == known
    plain = plain_fields(manifest(origin=origin))
    for hollow in ({"how": "magic"}, {"sources": []}, {"sources": [{"path": "a"}]}):
        write_sealed(tmp_path, plain | {"origin": plain["origin"] | hollow})
        with pytest.raises(Refused, match="manifest.json cannot be read"):
            read_manifest(tmp_path)


STORED: dict[str, Any] = {
    "fingerprints": {"tokenizer": "a" * 64, "train": "b" * 64},
    "settings": {"model.num_attention_heads": 4, "data.isolate_documents": False, "training.seed": 1},
}


def test_only_what_matters_to_the_weights_must_fit() -> None:
    """Other data, moments that are not there: nothing to allow. Another tokenizer or model: as in an exact resume."""
    other = {"tokenizer": "c" * 64, "train": "d" * 64}
    settings = {"model.num_attention_heads": 8, "data.isolate_documents": True, "training.seed": 2}
    stored = manifest(tensors=manifest().tensors, **STORED)
    weights = {f"weight/{name}" for name in SHAPES}
    found = differences(stored, weights, SHAPES, other, settings, weights_only=True)
    assert [(one.problem.key, one.allowed_as) for one in found] == [
        ("model.num_attention_heads", "settings"),
        ("tokenizer", "tokenizer"),
    ]
    assert differences_but_for_tensors(stored, other, settings, weights_only=True) == found
    lacking = differences(stored, {"weight/a"}, SHAPES | {"c": (1,)}, other, STORED["settings"], weights_only=True)
    assert [(one.problem.key, one.allowed_as) for one in lacking] == [
        ("tokenizer", "tokenizer"),
        ("c", "missing"),
        ("b", None),
    ]


def test_a_checkpoint_of_weights_alone_is_told_once_with_the_way_out() -> None:
    weights = {f"weight/{name}" for name in SHAPES}
    found = differences(manifest(**STORED), weights, SHAPES, STORED["fingerprints"], STORED["settings"])
    kinds = ("first_moment", "second_moment")
    assert {one.tensor for one in found} == {f"{kind}/{name}" for kind in kinds for name in SHAPES}
    (problem,) = told(found)
    assert problem.message.startswith("the checkpoint has weights alone, as a merge writes them")
    assert {one.allowed_as for one in found} == {None}, "there is no position to go on from"
    assert problem.remedy.startswith('write checkpoint.load = "weights" to begin at step 0 with them')
