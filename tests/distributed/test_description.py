"""What is said of the model without torch, against the modules that are really built."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import pytest
import torch

from attnres_train.model.describe import describe
from attnres_train.model.megatron import transformer_config
from attnres_train.model.stage import StageModel, StageRole
from attnres_train.model.tensors import TensorSpec
from attnres_train.parallel.grid import build_grid
from attnres_train.parallel.split import stage_layers
from tests.cases import CASES
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import VOCABULARY, tiny_config

SPLITS = ((4,), (1, 3), (0, 2, 2), (3, 1, 0))
PADDED = 96
GAINS = ("norm.weight", "gain", "query", "logits", "coefficients", "gate", "gate_bias")


def built_and_said(tensor: int, sequence: bool) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Of every case, tied or not, on every split: each parameter as it was built, and as it is said to be."""
    grid = build_grid(tiny_config(tensor=tensor, sequence=sequence).parallel, seed=1)
    for case, tied, split in product(CASES, (False, True), SPLITS):
        config = tiny_config(case, tied=tied, qk_norm=not tied)
        sections = (config.model, config.residual)
        megatron = transformer_config(config.model, dtype=torch.bfloat16, tensor=tensor, sequence=sequence)
        for stage in range(len(split)):
            role = StageRole(stage, stage_layers(split, stage), first=stage == 0, last=stage == len(split) - 1)
            with torch.device("meta"):
                model = StageModel(*sections, megatron, grid.groups, role, VOCABULARY, PADDED)
            built = [as_built(name, parameter) for name, parameter in model.named_parameters()]
            said = describe(*sections, VOCABULARY, PADDED).stage(role.layers, role.first, role.last)
            where = f"{case}, tied {tied}, {split}, stage {stage}"
            yield where, built, [as_said(spec, tensor, sequence) for spec in said]


def as_built(name: str, parameter: torch.nn.Parameter) -> tuple[Any, ...]:
    divided = getattr(parameter, "tensor_model_parallel", False)
    return (
        name,
        tuple(parameter.shape),
        parameter.dtype,
        (parameter.partition_dim, parameter.partition_stride) if divided else None,  # type: ignore[attr-defined]
        getattr(parameter, "shared_embedding", False),
        not getattr(parameter, "shared", False),
        getattr(parameter, "sequence_parallel", False),
        not name.endswith(GAINS) and not name.endswith("layernorm.weight"),
    )


def as_said(spec: TensorSpec, tensor: int, sequence: bool) -> tuple[Any, ...]:
    return (
        spec.name,
        spec.sharding.local_shape(tensor),
        torch.float32 if spec.fp32 else torch.bfloat16,
        (spec.sharding.axis, spec.sharding.blocks) if spec.divided else None,
        spec.copies == 2,
        spec.owned,
        sequence and spec.partial(sequence),
        spec.decays,
    )


def differences(tensor: int, sequence: bool) -> tuple[int, list[str]]:
    count, found = 0, []
    for where, built, said in built_and_said(tensor, sequence):
        count += len(built)
        found += [f"{where}: {pair}" for pair in zip(built, said, strict=True) if pair[0] != pair[1]]
    return count, found


@pytest.mark.parametrize(("tensor", "sequence"), [(1, False), (2, False), (2, True)])
def test_every_parameter_is_what_the_description_says(tensor: int, sequence: bool) -> None:
    for count, found in run_ranks(differences, tensor, tensor, sequence):
        assert count > 5_000 and not found, found[:5]


@pytest.mark.parametrize("case", CASES)
def test_stages_hold_every_tensor_of_the_model_once(case: str) -> None:
    for tied in (False, True):
        config = tiny_config(case, tied=tied)
        said = describe(config.model, config.residual, VOCABULARY, PADDED)
        for split in SPLITS:
            stages = [said.stage(stage_layers(split, s), s == 0, s == len(split) - 1) for s in range(len(split))]
            owned = [spec for stage in stages for spec in stage if spec.owned]
            assert [spec.name for spec in owned] == [spec.name for spec in said.all]
            copies = [spec for stage in stages for spec in stage if not spec.owned]
            twice = ["embedding.weight"] * (tied and len(split) > 1)
            assert [spec.name for spec in copies] == twice
            assert [spec.name for stage in stages for spec in stage if spec.copies == 2] == twice * 2


def test_gains_of_heads_are_partial_sums_without_sequence_shards_too() -> None:
    config = tiny_config()
    said = describe(config.model, config.residual, VOCABULARY, PADDED).all
    partial = {spec.name.rsplit(".", 2)[1] for spec in said if spec.partial(sequence=False)}
    assert partial == {"q_layernorm", "k_layernorm"}
    assert all(spec.partial(sequence=True) is not spec.divided for spec in said)


def test_padding_is_in_the_size_of_tables_alone() -> None:
    config = tiny_config()
    for spec in describe(config.model, config.residual, VOCABULARY, PADDED).all:
        assert spec.size == (PADDED * 32 if spec.table else prod(spec.shape))
        assert not spec.table or spec.shape == (VOCABULARY, 32)
