"""`attnres merge`: the mean of weights, of checkpoints that fit, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnres_train.checkpoint.manifest import Manifest, TensorRecord, read_manifest, write_manifest
from attnres_train.checkpoint.origin import digest_of
from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.checkpoint.stream import Whole, write_whole
from attnres_train.cli.run import main
from attnres_train.errors import Refused
from attnres_train.exchange import merge as module
from attnres_train.exchange.merge import mean, merge
from tests.unit.checkpoint_folders import flip, manifest

MODEL: dict[str, Any] = {"model.hidden_size": 4, "model.init_std": 0.1, "training.seed": 1}


def checkpoint(folder: Path, step: int = 10, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """A whole checkpoint of `tensors`, by key, with a moment that nobody needs."""
    generator = torch.Generator().manual_seed(step)
    if tensors is None:
        tensors = {"weight/a": torch.randn(3, 4, generator=generator), "buffer/b": torch.randn(5, generator=generator)}
    folder.mkdir(parents=True)
    kept = {**tensors, "first_moment/a": torch.ones(2)}
    files = write_whole(folder, (Whole(key, tensor) for key, tensor in kept.items()))
    shapes = {key.partition("/")[2]: TensorRecord(tuple(tensor.shape), "float32") for key, tensor in tensors.items()}
    whole = manifest(step, tensors=shapes, settings=MODEL, layers_per_stage=[1, 2])
    write_manifest(folder, replace(whole, files=files, **changes))
    return folder


def stored(folder: Path) -> dict[str, Tensor]:
    return {f"{part.kind}/{part.name}": part.tensor for part in CheckpointReader.open(folder).parts()}


def bits(tensor: Tensor) -> list[int]:
    return tensor.reshape(-1).view(torch.int32).tolist()


def test_a_mean_of_three_is_numpys_in_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", 5)
    sources = [checkpoint(tmp_path / str(step), step) for step in (10, 30, 20)]
    made = merge(sources, [1.0, 2.0, 1.0], tmp_path / "mean")
    parts = [stored(source) for source in sources]
    found = stored(tmp_path / "mean")
    assert found.keys() == {"weight/a", "buffer/b"}, "and no moment"
    for key, tensor in found.items():
        wide = np.stack([part[key].numpy().astype(np.float64) for part in parts])
        expected = np.average(wide, axis=0, weights=[1, 2, 1]).astype(np.float32)
        assert np.array_equal(tensor.numpy(), expected), key
    whole = read_manifest(tmp_path / "mean")
    assert (whole.step, whole.samples, whole.optimizer_updates, whole.layers_per_stage) == (30, 240, 0, [3])
    assert whole.origin == made.origin and made.origin.how == "merge"
    told = [(source.path, source.step, source.digest, source.share) for source in made.origin.sources]
    steps = [10, 30, 20]
    assert told == [
        (str(path), step, digest_of(path), share)
        for path, step, share in zip(sources, steps, (0.25, 0.5, 0.25), strict=True)
    ]


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=1, max_size=4),
    st.lists(st.floats(0.01, 100, allow_nan=False), min_size=4, max_size=4),
)
def test_a_mean_is_the_exact_one_rounded(values: list[list[float]], weights: list[float]) -> None:
    """Against fractions: half a unit in the last place of fp32, and what float64 adds."""
    used = weights[: len(values)]
    readers: Any = [_Held(torch.tensor(row, dtype=torch.float32)) for row in values]
    found = mean(readers, used, "weight/a", (3,)).tolist()
    for place, value in enumerate(found):
        parts = [Fraction(row[place]) * Fraction(weight) for row, weight in zip(values, used, strict=True)]
        exact = sum(parts) / sum(map(Fraction, used))
        unit = Fraction(min(float(np.spacing(np.float32(abs(value)))), 2.0**104))  # of the largest numpy says infinity
        added = Fraction(sum(abs(float(part)) for part in parts) / sum(used)) / 2**49
        assert abs(Fraction(value) - exact) <= unit / 2 + added


class _Held:
    """What `mean` asks of a reader, in memory."""

    def __init__(self, tensor: Tensor):
        self.tensor, self.files = tensor, self

    def close(self) -> None:
        pass

    def fill(self, into: Tensor, _key: str, _sharding: Any, wanted: slice) -> None:
        into.copy_(self.tensor[wanted])


@pytest.mark.parametrize("count", [1, 3])
def test_the_mean_of_one_or_of_equals_is_the_same_bits(count: int, tmp_path: Path) -> None:
    awkward = torch.tensor([0.0, -0.0, 1e-45, -3.4e38, 3.4e38, 0.1, 1 / 3], dtype=torch.float32)
    sources = [checkpoint(tmp_path / str(n), 10, {"weight/a": awkward}) for n in range(count)]
    merge(sources, [0.3, 7.0, 0.1][:count], tmp_path / "mean")
    if count == 1:
        assert bits(stored(tmp_path / "mean")["weight/a"]) == bits(awkward)
    merge(sources, [1.0] * count, tmp_path / "even")
    assert bits(stored(tmp_path / "even")["weight/a"]) == bits(awkward)


def refused(sources: Sequence[Path], folder: Path) -> list[str]:
    before = sorted(path.name for path in folder.parent.iterdir())
    with pytest.raises(Refused) as refusal:
        merge(sources, [1.0] * len(sources), folder)
    assert sorted(path.name for path in folder.parent.iterdir()) == before, "something was left behind"
    return [f"{problem.key}: {problem.message}" for problem in refusal.value.problems]


def test_every_way_in_which_one_is_of_another_model_or_tokenizer_is_named(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "first")
    same = checkpoint(tmp_path / "same", settings=MODEL | {"model.init_std": 0.2, "training.seed": 2})
    heads = checkpoint(tmp_path / "heads", settings=MODEL | {"model.hidden_size": 8})
    text = checkpoint(tmp_path / "text", fingerprints={"tokenizer": "x" * 64})
    wide = checkpoint(tmp_path / "wide", tensors={"weight/a": torch.ones(3, 5), "weight/c": torch.ones(1)})
    assert refused([first, same, heads, text, wide], tmp_path / "mean") == [
        f"{heads}: model.hidden_size: 8, in {first} 4",
        f"{text}: tokenizer: 'xxxxxxxxxxxx', in {first} 'abc'",
        f"{wide}: a: shape (3, 5), in {first} shape (3, 4)",
        f"{wide}: b: none, in {first} shape (5,)",
        f"{wide}: c: shape (1,), in {first} none",
    ]
    merge([first, same], [1.0, 1.0], tmp_path / "mean")


def test_a_parameter_and_a_buffer_of_one_name_are_not_averaged(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "first", tensors={"weight/a": torch.ones(2)})
    other = checkpoint(tmp_path / "other", tensors={"buffer/a": torch.ones(2)})
    assert refused([first, other], tmp_path / "mean") == [f"{other}: a: buffer/a, in {first} weight/a"]


def test_damaged_ones_are_refused_by_file(tmp_path: Path) -> None:
    sources = [checkpoint(tmp_path / name) for name in "abc"]
    for source in sources[1:]:
        flip(source / "__0_0.distcp", 8 * 900)
    told = refused(sources, tmp_path / "mean")
    assert [line.partition(" has checksum ")[0] for line in told] == [
        f"{source}: __0_0.distcp" for source in sources[1:]
    ]


def test_names_that_cannot_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoint(tmp_path / "source")
    link = tmp_path / "link"
    link.symlink_to(source)
    assert refused([source, link], tmp_path / "mean")[0] == f"{source}: is named twice"
    assert "exists already" in refused([source], source)[0]
    assert "is named as a run names its own" in refused([source], tmp_path / "step-00000010")[0]
    with pytest.raises(Refused, match="there is no folder"):
        merge([source], [1.0], tmp_path / "nowhere/mean")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10})())
    assert "0 MiB are free there" in refused([source], tmp_path / "mean")[0]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoint(tmp_path / "source")

    def fail(*_: object) -> Manifest:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_manifest", fail)
    with pytest.raises(OSError):
        merge([source], [1.0], tmp_path / "mean")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_the_command_says_what_was_made_of_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [str(checkpoint(tmp_path / name, step)) for name, step in (("one", 10), ("two", 20))]
    folder = str(tmp_path / "mean")
    assert main(["merge", *sources, folder, "--weights", "3", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [source["share"] for source in found["origin"]["sources"]] == [0.75, 0.25]
    assert main(["inspect", folder]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"a mean of {sources[0]} (step 10), {sources[1]} (step 20)" in shown
    assert main(["verify", folder]) == 0
    capsys.readouterr()
    assert main(["merge", *sources, f"{folder}-2", "--weights", "3"]) == 2
    assert "1 weight for 2 checkpoints" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "why"), [("0", "no weight above 0"), ("nan", "no weight"), ("OUT", "stands before")])
def test_a_weight_that_is_none_is_refused(text: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", "a", "out", "--weights", text]) == 2
    assert why in capsys.readouterr().err
