"""Parameters from flat partitions, and whole tensors from those of tensor ranks."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnres_train.exchange.files import find_files, missing_and_extra
from attnres_train.exchange.fit import _whole, misfits
from attnres_train.exchange.partitions import (
    Part,
    Shape,
    partition_length,
    parts_of_groups,
    parts_of_parameters,
    uncovered,
)
from attnres_train.model.sharding import Sharding

SHAPES = st.lists(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=2).map(tuple), min_size=1, max_size=6),
    min_size=1,
    max_size=3,
)


def named(shapes: list[list[Shape]]) -> list[dict[str, Shape]]:
    return [{f"{group}.{number}": shape for number, shape in enumerate(its)} for group, its in enumerate(shapes)]


def values(groups: list[dict[str, Shape]]) -> dict[str, torch.Tensor]:
    return {name: torch.rand(shape) for group in groups for name, shape in group.items()}


def gathered(parts: list[Part], flats: list[list[torch.Tensor]], shape: Shape) -> torch.Tensor:
    return torch.cat([flats[part.rank][part.group][part.inside] for part in parts]).view(shape)


@given(SHAPES, st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_groups_laid_end_to_end_padded_and_cut(
    shapes: list[list[Shape]], ranks: int, alignment: int, trimmed: bool
) -> None:
    groups = named(shapes)
    tensors = values(groups)
    flats: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    gaps: list[list[int]] = []
    for group in groups:
        gaps.append([-math.prod(shape) % alignment for shape in group.values()])
        gaps[-1][-1] = 0
        pieces = [
            torch.nn.functional.pad(tensors[n].view(-1), (0, gap), value=math.nan)
            for n, gap in zip(group, gaps[-1], strict=True)
        ]
        flat = torch.cat(pieces)
        length = flat.numel()
        flat = torch.nn.functional.pad(flat, (0, -length % (2 * ranks)), value=math.nan)
        size = flat.numel() // ranks
        for rank in range(ranks):
            end = min((rank + 1) * size, max(length, rank * size)) if trimmed else (rank + 1) * size
            flats[rank].append(flat[rank * size : end])
    parts = parts_of_groups(groups, gaps, [[flat.numel() for flat in its] for its in flats])
    assert uncovered(groups, parts) == {}
    for group in groups:
        for name, shape in group.items():
            assert gathered(parts[name], flats, shape).equal(tensors[name])


@given(SHAPES, st.integers(1, 5))
def test_each_parameter_cut_and_padded_by_itself(shapes: list[list[Shape]], ranks: int) -> None:
    groups = named(shapes)
    tensors = values(groups)
    flats: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for group in groups:
        shares = []
        for name in group:
            flat = tensors[name].view(-1)
            padded = torch.nn.functional.pad(flat, (0, -flat.numel() % ranks), value=float("nan"))
            shares.append(padded.view(ranks, -1))
        for rank in range(ranks):
            flats[rank].append(torch.cat([share[rank] for share in shares]))
        assert partition_length(group, ranks) == flats[0][-1].numel()
    parts = parts_of_parameters(groups, ranks)
    assert uncovered(groups, parts) == {}
    for group in groups:
        for name, shape in group.items():
            assert gathered(parts[name], flats, shape).equal(tensors[name])


def test_a_parameter_of_which_something_lacks_is_told() -> None:
    parts = parts_of_groups([{"a": (4,), "b": (3,)}], [[0, 0]], [[3], [2]])
    assert uncovered([{"a": (4,), "b": (3,)}], parts) == {"b": (1, 3)}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "sharding",
    [
        Sharding((7,)),
        Sharding((8, 3), 0),
        Sharding((3, 8), 1),
        Sharding((8, 3), 0, blocks=2),
        Sharding((5, 3), 0, padded=8),
    ],
    ids=str,
)
def test_whole_tensors_from_those_of_tensor_ranks(sharding: Sharding, ranks: int) -> None:
    logical = torch.rand(sharding.shape)
    assert _whole([sharding.cut(logical, rank, ranks) for rank in range(ranks)], sharding).equal(logical)


def test_misfits_are_told_by_tensor_rank() -> None:
    model = {"a": Sharding((8, 3), 0), "b": Sharding((5, 3), 0, padded=6), "c": Sharding((2,))}
    assert list(misfits([{"a": (4, 3), "b": (3, 3), "c": (2,)}] * 2, model)) == []
    found = {p.key: p.message for p in misfits([{"a": (8, 3), "b": (4, 3), "d": (1,)}] * 2, model)}
    assert found["a"] == "has shape (8, 3) in the checkpoint on tensor rank 1, (4, 3) in the model"
    assert "lacks it" in found["c"] and "does not know it" in found["d"]


def test_files_are_found_by_tensor_and_data_rank(tmp_path: Path) -> None:
    """Of ZeRO-3 every data rank writes a file of the model: the first has every shape."""
    (tmp_path / "step9").mkdir()
    for tensor, data in product(range(2), range(3)):
        ranks = f"zero_pp_rank_{data}_mp_rank_{tensor:02d}"
        (tmp_path / f"step9/{ranks}_model_states.pt").touch()
        (tmp_path / f"step9/bf16_{ranks}_optim_states.pt").touch()
    (tmp_path / "latest").write_text("step9\n", encoding="utf-8")
    found = find_files(tmp_path, None)
    assert {rank: path.name for rank, path in found.model.items()} == {
        tensor: f"zero_pp_rank_0_mp_rank_0{tensor}_model_states.pt" for tensor in range(2)
    }
    assert {place: path.name for place, path in found.optimizer.items()} == {
        (tensor, data): f"bf16_zero_pp_rank_{data}_mp_rank_0{tensor}_optim_states.pt"
        for tensor, data in product(range(2), range(3))
    }
    assert list(missing_and_extra(found, 3, 2)) == []
    lacking, *_ = missing_and_extra(found, 4, 1)
    extra = list(missing_and_extra(found, 2, 2))
    assert lacking.key.endswith("zero_pp_rank_3_mp_rank_00_optim_states.pt") and "is missing" in lacking.message
    assert [Path(problem.key).name for problem in extra] == [
        f"bf16_zero_pp_rank_2_mp_rank_0{n}_optim_states.pt" for n in range(2)
    ]
    assert all("one too many" in problem.message for problem in extra)
