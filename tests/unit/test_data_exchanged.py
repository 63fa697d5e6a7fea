"""A corpus that was exchanged under its name is found by a part of its bytes, and what changed is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnres_train.checkpoint.fit import differences_but_for_tensors, nothing_to_train
from attnres_train.checkpoint.manifest import Manifest as CheckpointManifest
from attnres_train.checkpoint.manifest import write_manifest
from attnres_train.checkpoint.rules import resume_problems
from attnres_train.config.keys import all_keys
from attnres_train.config.load import load_checked
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values
from attnres_train.corpora import open_corpora
from attnres_train.data.continuation import other_validation
from attnres_train.data.corpus import Corpus, Cut
from attnres_train.data.drawn import BLOCK, drawn_blocks
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.manifest import Manifest
from attnres_train.errors import Refused
from tests.unit.checkpoint_folders import manifest
from tests.unit.config_files import flags, small

DRAW = 7


@pytest.mark.parametrize(("blocks", "reads"), [(0, 0), (1, 1), (63, 63), (64, 64), (200, 96), (1 << 24, 368)])
def test_the_blocks_that_are_read_grow_slowly_and_leave_no_long_part_out(blocks: int, reads: int) -> None:
    drawn = drawn_blocks(blocks, DRAW)
    assert len(drawn) == reads == len(set(drawn.tolist()))
    assert drawn.tolist() == sorted(drawn.tolist()) == drawn_blocks(blocks, DRAW).tolist()
    gaps = np.diff(np.concatenate(([-1], drawn, [blocks])))
    assert blocks == 0 or gaps.max() <= 2 * -(-blocks // reads)
    assert blocks < 200 or drawn.tolist() != drawn_blocks(blocks, DRAW + 1).tolist()


def write(prefix: Path, seed: int, lengths: tuple[int, ...] = (40, 60), known: bool = True) -> None:
    """2,000 random tokens in documents of `lengths`, over and over."""
    with IndexedWriter(prefix, 320) as writer:
        repeated = np.array(lengths * (2000 // sum(lengths)))
        writer.add_documents(np.random.default_rng(seed).integers(0, 320, repeated.sum()), repeated)
        made = Manifest(
            tokenizer_fingerprint="a" * 64, vocabulary_size=320, eod_id=1, text_bytes=6000, sources=(), options={},
            tool_version="test", **vars(writer.finish()),
        )  # fmt: skip
        writer.publish(made.to_json() if known else None)


def put(prefix: Path, ending: str, seed: int, **how: Any) -> None:
    """The file with this ending of another pair in the place of that of `prefix`."""
    other = Path(f"{prefix}-other{ending.removeprefix('.')}")
    write(other, seed, **how)
    prefix.with_suffix(ending).write_bytes(other.with_suffix(ending).read_bytes())


def config(tmp_path: Path, train: str = "{a = 3, b = 1}", **more: Any) -> RunConfig:
    return small(tmp_path, *flags(data__train=train, data__valid="v", training__run_folder=tmp_path, **more))


def settings(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return json.loads(json.dumps(config_values(config(tmp_path, **more), all_keys())))


def saved(tmp_path: Path) -> CheckpointManifest:
    """What a checkpoint of `config` says of itself."""
    return manifest(fingerprints=open_corpora(config(tmp_path)).fingerprints(DRAW), settings=settings(tmp_path))


def found(was: CheckpointManifest, tmp_path: Path, **more: Any) -> dict[str, str]:
    """The differences of a run with the corpora as they are now."""
    now = open_corpora(config(tmp_path, **more)).fingerprints(was.draw_of_data(99))
    told = differences_but_for_tensors(was, now, settings(tmp_path, **more))
    assert all(one.allowed_as == "data" for one in told)
    return {one.problem.key: one.problem.message for one in told}


@pytest.fixture
def known(request: pytest.FixtureRequest) -> bool:
    return getattr(request, "param", True)


@pytest.fixture
def pairs(tmp_path: Path, known: bool, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("abv"):
        write(tmp_path / name, seed, known=known)
    return tmp_path


@pytest.mark.parametrize("known", [True, False], indirect=True, ids=["with a manifest", "without"])
def test_other_tokens_under_the_same_name_are_found_and_the_source_is_named(pairs: Path) -> None:
    """As long as before, in documents of the same lengths: NVIDIA-NeMo/RL#2519."""
    was = saved(pairs)
    assert was.draw_of_data(99) == DRAW and found(was, pairs) == {}
    put(pairs / "b", ".bin", seed=9)
    assert found(was, pairs) == {
        "b": "is another corpus than the one trained on: tokens at places that were drawn differ"
    }


@pytest.mark.parametrize("known", [False], indirect=True)
def test_other_documents_of_the_same_tokens_are_found(pairs: Path) -> None:
    was = saved(pairs)
    put(pairs / "b", ".idx", seed=1, lengths=(60, 40))
    assert found(was, pairs) == {"b": "is another corpus than the one trained on: the lengths of its documents differ"}


def test_an_index_is_held_against_its_manifest_and_the_tokens_too_where_all_are_read(pairs: Path) -> None:
    put(pairs / "b", ".bin", seed=9)
    open_corpora(config(pairs))
    with pytest.raises(Refused, match=r"b\.bin: has SHA-256 \w{12}, the manifest beside it describes"):
        open_corpora(config(pairs, data__verify="all"))
    put(pairs / "b", ".idx", seed=1, lengths=(60, 40))
    with pytest.raises(Refused, match=r"b\.idx: has SHA-256 \w{12}, the manifest beside it describes"):
        open_corpora(config(pairs))


def test_reading_all_finds_one_token_between_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lengths = tuple([BLOCK * 100])  # of two bytes each: 200 blocks
    with IndexedWriter(tmp_path / "a", 320) as writer:
        writer.add_documents(np.zeros(lengths[0], np.int64), np.array(lengths))
        writer.finish()
        writer.publish()
    unread = next(block for block in range(200) if block not in drawn_blocks(200, DRAW))
    marks = []
    for value in (0, 1):
        with open(tmp_path / "a.bin", "r+b") as file:
            file.seek(unread * BLOCK)
            file.write(bytes([value]))
        marks.append([Corpus("a", Cut(32, 320, read_all=read_all)).bytes_mark(DRAW) for read_all in (False, True)])
    (drawn, everything), (drawn_later, everything_later) = marks
    assert drawn == drawn_later and everything != everything_later
    assert everything.startswith(drawn)
    assert len(everything.split(":")) == 4


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"train": "{a = 1, b = 1}"}, "weight of a was 3, is 1"),
        ({"training__seed": 5}, "training.seed was 1, is 5"),
        ({"training__sequence_length": 16}, "training.sequence_length was 32, is 16"),
        ({"train": "{a = 3, b = 1, v = 1}"}, "v is new"),
        ({"train": "{a = 3}"}, "b is gone"),
    ],
)
def test_what_changed_of_the_order_is_named(more: dict[str, Any], told: str, pairs: Path) -> None:
    assert found(saved(pairs), pairs, **more)["train"].endswith(f": {told}")


def test_a_longer_corpus_is_told_by_its_numbers(pairs: Path) -> None:
    was = saved(pairs)
    for ending in (".bin", ".idx", ".json"):
        (pairs / f"b{ending}").unlink()
    write(pairs / "b", 1, lengths=(30, 10))
    assert found(was, pairs)["train"].endswith(": b held 40 documents with 2000 tokens, holds 100 with 2000")


def test_a_moved_corpus_is_the_same_and_validation_data_are_told_apart(pairs: Path) -> None:
    was = saved(pairs)
    for ending in (".bin", ".idx", ".json"):
        (pairs / f"b{ending}").rename(pairs / f"moved{ending}")
    assert found(was, pairs, train="{a = 3, moved = 1}") == {}
    put(pairs / "moved", ".bin", seed=9)
    assert list(found(was, pairs, train="{a = 3, moved = 1}")) == ["moved"]
    now, moved = config(pairs, train="{a = 3, moved = 1}"), settings(pairs)
    assert not other_validation(was.fingerprints, moved, open_corpora(now).fingerprints(DRAW))
    put(pairs / "v", ".bin", seed=9)
    assert other_validation(was.fingerprints, moved, open_corpora(now).fingerprints(DRAW))


def test_check_holds_the_data_and_the_steps_against_the_newest_checkpoint(pairs: Path) -> None:
    folder = pairs / "checkpoints/step-00000010"
    folder.mkdir(parents=True)
    write_manifest(folder, saved(pairs))
    assert resume_problems(config(pairs), pairs) == []
    put(pairs / "b", ".bin", seed=9)
    assert [problem.key for problem in resume_problems(config(pairs), pairs)] == ["b"]
    assert resume_problems(config(pairs, checkpoint__allow='["data"]'), pairs) == []
    assert resume_problems(config(pairs, checkpoint__resume="never"), pairs) == []
    another_model = config(pairs, residual__block_size=1)
    assert resume_problems(another_model, pairs) == [], "the resume tells all differences at once"
    with pytest.raises(Refused, match="training.steps: 9, but the checkpoint is at step 10 already"):
        load_checked(
            pairs / "run.toml",
            flags(
                data__train="{a = 3, b = 1}",
                training__run_folder=pairs,
                training__steps=9,
                checkpoint__allow='["data"]',
            ),
            purpose="check",
        )


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"training.steps": 10}, []),  # simply complete
        ({"training.steps": 10, "observe.log_interval_steps": 5, "parallel.tensor": 2}, []),
        ({"training.steps": 20, "training.stop_after_steps": 10}, ["training.steps"]),
        ({"training.steps": 10, "optimizer.learning_rate": 1e-3}, ["optimizer.learning_rate"]),
        ({"training.steps": 10, "data.train": "x"}, ["data.train"]),
        ({"training.steps": 9}, ["training.steps"]),
        ({"training.stop_after_steps": 9}, ["training.stop_after_steps"]),
        ({"training.steps": 11, "optimizer.learning_rate": 1e-3}, []),
    ],
)
def test_a_run_with_nothing_left_to_train_is_refused_unless_it_is_simply_complete(
    changes: dict[str, Any], keys: list[str]
) -> None:
    was = {
        "training.steps": 10, "training.stop_after_steps": None, "optimizer.learning_rate": 1e-2, "data.train": "a",
        "observe.log_interval_steps": 1, "parallel.tensor": 1,
    }  # fmt: skip
    told = nothing_to_train(manifest(step=10, settings=was), was | changes)
    assert [problem.key for problem in told] == keys
    assert all("nothing is left to train" in problem.message for problem in told)
