"""Whatever happens to a file of a checkpoint is found, and all ranks go on from the same older one."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import attnres_train.checkpoint.verify as verify_module
from attnres_train.checkpoint.checksum import FileRecord, record_of
from attnres_train.checkpoint.choose import choose_checkpoint
from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.manifest import FILE_NAME, read_manifest
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.checkpoint.verify import damages
from attnres_train.checkpoint.whole import Damaged
from attnres_train.errors import Refused
from attnres_train.parallel.config import ParallelConfig
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import tiny_config
from tests.distributed.training import build_tiny, step_tiny

OLDER, NEWER = checkpoint_name(1), checkpoint_name(2)
TRIALS = 200


class Damage(NamedTuple):
    kind: str
    file: str
    place: float
    """Where in the file, from 0 to below 1."""

    def do(self, checkpoint: Path) -> None:
        path = checkpoint / self.file
        data = bytearray(path.read_bytes())
        bit = int(self.place * 8 * len(data))
        if self.kind == "remove":
            path.unlink()
            return
        if self.kind == "flip":
            data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes({"flip": data, "cut": data[: bit // 8], "empty": b""}[self.kind])


def random_damages(files: list[str], count: int, seed: int) -> Iterator[Damage]:
    generator = random.Random(seed)
    for _ in range(count):
        kind = generator.choice(("flip", "flip", "cut", "empty", "remove"))
        yield Damage(kind, generator.choice(files), generator.random())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with checkpoints of steps 1 and 2, saved by two ranks."""
    folder = tmp_path_factory.mktemp("run")

    def save() -> None:
        config = tiny_config("block", pipeline=2)
        grid = build_grid(config.parallel, seed=1)
        parts = build_tiny(config, grid)
        for step in (1, 2):
            step_tiny(parts, config, grid, step - 1)
            saving = CheckpointSave.start(
                folder, parts.engine, grid, TrainState(step=step), RunIdentity((2, 2), {}, {})
            )
            saving.wait()
            saving.publish()

    run_ranks(save, 2)
    return folder


@pytest.fixture
def copy_of_run(run: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a fresh copy of the run in a folder of the given name; returns its folder of checkpoints."""

    def copy(name: str) -> Path:
        shutil.copytree(run, tmp_path / name)
        return checkpoints_folder(tmp_path / name)

    return copy


def files_of(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in checkpoint.iterdir())


def problems(checkpoint: Path) -> list[str]:
    try:
        return damages(checkpoint, read_manifest(checkpoint))
    except Refused as refusal:
        return [str(refusal)]


def test_a_checkpoint_vouches_for_every_file_it_has(run: Path) -> None:
    for name in (OLDER, NEWER):
        checkpoint = checkpoints_folder(run) / name
        stated = read_manifest(checkpoint)
        assert [*sorted([*stated.files, FILE_NAME])] == files_of(checkpoint)
        assert {"random-00000.pt", "random-00001.pt", "common.pt", "metadata.json", ".metadata"} < stated.files.keys()
        assert sum(name.endswith(".distcp") for name in stated.files) == 2
        assert stated.files == {name: record_of(checkpoint / name) for name in stated.files}
        assert all(record.bytes > 0 for record in stated.files.values())
        assert problems(checkpoint) == []
    assert (checkpoints_folder(run) / "latest").read_text() == f"{NEWER}\n"


def test_every_one_of_two_hundred_random_damages_is_found_and_named(run: Path, tmp_path: Path) -> None:
    original = checkpoints_folder(run) / NEWER
    files = files_of(original)
    hit = set()
    for number, damage in enumerate(random_damages(files, TRIALS, seed=1)):
        copy = shutil.copytree(original, tmp_path / f"copy-{number}")
        damage.do(copy)
        found = problems(copy)
        assert len(found) == 1, damage
        assert damage.file in found[0], damage
        hit.add((damage.kind, damage.file))
        shutil.rmtree(copy)
    assert len(hit) == 4 * len(files), "some damage of some file was not tried"


class Outcome(NamedTuple):
    """What `choose_checkpoint` said on one rank."""

    chosen: str | None
    passed_over: tuple[str, ...]
    refused: str | None


def choose_all(wishes: list[tuple[str, Path]]) -> list[Outcome]:
    """On one of two ranks: what comes of every wish, one after another."""
    grid = build_grid(ParallelConfig(pipeline=2), seed=1)
    outcomes = []
    for resume, run_folder in wishes:
        try:
            choice = choose_checkpoint(resume, run_folder, grid)
        except Refused as refusal:
            outcomes.append(Outcome(None, (), str(refusal)))
        else:
            outcomes.append(Outcome(choice and str(choice.folder), choice.passed_over if choice else (), None))
    return outcomes


def on_two_ranks(wishes: list[tuple[str, Path]]) -> list[Outcome]:
    """The outcomes of all wishes, which both ranks must agree on."""
    first, second = run_ranks(choose_all, 2, wishes)
    assert first == second, "the ranks chose differently"
    return first


def test_ranks_pass_over_a_damaged_checkpoint_together_and_refuse_it_by_path(
    run: Path, copy_of_run: Callable[[str], Path]
) -> None:
    files = files_of(checkpoints_folder(run) / NEWER)
    tried = list(random_damages(files, 10, seed=2))
    assert {damage.kind for damage in tried} == {"flip", "cut", "empty", "remove"}
    copies = []
    for number, damage in enumerate(tried):
        copies.append(copy_of_run(f"run-{number}"))
        damage.do(copies[-1] / NEWER)
    wishes = [
        (resume, copy.parent) for copy in copies for resume in ("auto", "must", str(copy / OLDER), str(copy / NEWER))
    ]
    outcomes = iter(on_two_ranks(wishes))
    for damage, copy in zip(tried, copies, strict=True):
        auto, must, older, newer = (next(outcomes) for _ in range(4))
        assert auto == must, damage
        assert auto.chosen == str(copy / OLDER), damage
        (reason,) = auto.passed_over
        unread = damage.file == FILE_NAME and damage.kind != "remove"
        named = "cannot be read: it" if unread else damage.file
        assert reason.startswith(str(copy / NEWER)) and named in reason, reason
        hidden = damage.kind == "flip" and damage.file != FILE_NAME
        if hidden:  # seen only by reading all of it; until then it looks newer than what was asked for
            assert older.refused is not None and f"the run folder has {copy / NEWER}" in older.refused
        else:
            assert older == Outcome(str(copy / OLDER), (), None), damage
        assert newer.refused is not None and damage.file in newer.refused and str(copy / NEWER) in newer.refused
        assert files_of(copy) == sorted([OLDER, NEWER, "latest"]), "a choice changes nothing"


def test_whole_ones_none_at_all_and_folders_without_a_manifest(
    copy_of_run: Callable[[str], Path], tmp_path: Path
) -> None:
    whole, hollow, ruined = copy_of_run("whole"), copy_of_run("hollow"), copy_of_run("ruined")
    (hollow / checkpoint_name(3)).mkdir()
    (hollow / checkpoint_name(4)).mkdir()
    (ruined / OLDER / FILE_NAME).unlink()
    for file in files_of(ruined / NEWER):
        Damage("empty", file, 0).do(ruined / NEWER)
    shutil.copy(whole / NEWER / FILE_NAME, ruined / NEWER / FILE_NAME)
    empty = tmp_path / "empty"
    (empty / "checkpoints").mkdir(parents=True)
    outcomes = on_two_ranks(
        [
            ("auto", whole.parent), (str(whole / NEWER), whole.parent), ("never", whole.parent),
            ("auto", hollow.parent), ("auto", ruined.parent), ("must", ruined.parent),
            ("auto", empty), ("never", tmp_path / "gone"), ("must", empty),
        ]
    )  # fmt: skip
    assert outcomes[0] == outcomes[1] == Outcome(str(whole / NEWER), (), None)
    assert outcomes[2].refused is not None and 'is "never"' in outcomes[2].refused
    assert outcomes[3].chosen == str(hollow / NEWER)
    told = [text.split(": ")[0] for text in outcomes[3].passed_over]
    assert told == [str(hollow / checkpoint_name(step)) for step in (4, 3)]
    assert all("has no manifest.json" in text for text in outcomes[3].passed_over)
    for outcome in outcomes[4:6]:
        assert outcome.refused is not None
        assert "has no manifest.json" in outcome.refused and "; and " in outcome.refused, "not told in few words"
        assert f"no checkpoint in {ruined} is whole" in outcome.refused
    assert outcomes[6] == outcomes[7] == Outcome(None, (), None)
    assert outcomes[8].refused is not None and 'is "must"' in outcomes[8].refused


def test_a_branched_run_says_from_where_it_goes_on(run: Path, copy_of_run: Callable[[str], Path]) -> None:
    """Its own newest; the one it was told to begin from if a byte of that is wrong."""
    origin, sound, damaged = checkpoints_folder(run) / OLDER, copy_of_run("sound"), copy_of_run("damaged")
    flipped = next(name for name in files_of(damaged / NEWER) if name.endswith(".distcp"))
    Damage("flip", flipped, 0.5).do(damaged / NEWER)
    for branch in (sound, damaged):
        shutil.rmtree(branch / OLDER)
    own, named = on_two_ranks([(str(origin), branch.parent) for branch in (sound, damaged)])
    assert own == Outcome(str(sound / NEWER), (f"checkpoint.resume = {origin}: this run has gone on from there",), None)
    assert named.chosen == str(origin)
    (told,) = named.passed_over
    assert told.startswith(f"{damaged / NEWER}: {flipped} has checksum ")


def test_a_file_that_only_one_rank_cannot_read_is_passed_over_by_all(copy_of_run: Callable[[str], Path]) -> None:
    copy = copy_of_run("run")

    def choose_with_a_bad_disk() -> list[Outcome]:
        def fail(path: Path) -> FileRecord:
            if os.environ.get("RANK_OF_TEST") == "1" and NEWER in str(path):
                raise OSError(5, "Input/output error")
            return record_of(path)

        import torch.distributed as dist

        os.environ["RANK_OF_TEST"] = str(dist.get_rank())
        verify_module.record_of = fail
        return choose_all([("auto", copy.parent), (str(copy / NEWER), copy.parent)])

    first, second = run_ranks(choose_with_a_bad_disk, 2)
    assert first == second
    auto, stated = first
    assert auto.chosen == str(copy / OLDER) and "cannot be read: Input/output error" in auto.passed_over[0]
    assert stated.refused is not None and "Input/output error" in stated.refused


def load_all(copies: list[Path]) -> list[str]:
    """On one of four ranks, of another layout than the one that saved: what loading the newest of each ends in."""
    config = tiny_config("block", tensor=2)
    grid = build_grid(config.parallel, seed=1)
    engine = build_tiny(config, grid).engine
    outcomes = []
    for copy in copies:
        choice = choose_checkpoint("auto", copy, grid, damaged={})
        assert choice is not None
        try:
            load_checkpoint(choice.folder, choice.manifest, engine, grid, {}, {})
        except Damaged as found:
            outcomes.append(f"{found.folder.name}: {'; '.join(found.texts)}")
        else:
            outcomes.append(choice.folder.name)
    return outcomes


def test_what_choosing_by_size_does_not_see_loading_finds_on_all_ranks(
    run: Path, copy_of_run: Callable[[str], Path]
) -> None:
    """Wherever a bit of the state is wrong: in elements, around a piece, where its archive no longer opens."""
    names = [name for name in files_of(checkpoints_folder(run) / NEWER) if name.endswith(".distcp")]
    places = [0.0, 0.00001, 0.9999, *(random.Random(number).random() for number in range(13))]
    flips = [Damage("flip", names[number % 2], place) for number, place in enumerate(places)]
    copies = [copy_of_run(f"run-{number}") for number in range(len(flips) + 1)]
    for flip, copy in zip(flips, copies, strict=False):
        flip.do(copy / NEWER)
    found = run_ranks(load_all, 4, [copy.parent for copy in copies])
    assert all(outcomes == found[0] for outcomes in found)
    for flip, outcome in zip(flips, found[0], strict=False):
        assert re.fullmatch(rf"{NEWER}: {flip.file} has checksum .{{8}}, the manifest says .{{8}}", outcome), outcome
    assert found[0][-1] == NEWER, "the one that is whole"
