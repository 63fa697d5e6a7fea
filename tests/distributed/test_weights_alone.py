"""`checkpoint.load = "weights"`: the weights of a checkpoint, in any layout and engine, and nothing else of it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core import parallel_state
from torch import Tensor

from attnres_train.checkpoint.choose import choose_checkpoint
from attnres_train.checkpoint.config import CheckpointConfig
from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.checkpoint.whole import Damaged
from attnres_train.config.run_config import RunConfig
from attnres_train.engine.kinds import MASTER
from attnres_train.errors import ExitCode
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from tests.distributed.loop import run_loop
from tests.distributed.ranks import run_ranks
from tests.distributed.state import export_state, gradients
from tests.distributed.test_checkpoints import FINGERPRINTS, SETTINGS, run_steps
from tests.distributed.tiny import tiny_config
from tests.distributed.training import build_tiny, step_tiny, whole_tensors

SAVED_AT, STEPS = 3, 2
SAVED_BY: dict[bool, dict[str, Any]] = {False: {"tensor": 2}, True: {"pipeline": 2, "virtual": 2}}
"""By whether the embedding is tied; both on two ranks."""
GRIDS: dict[str, tuple[int, dict[str, Any]]] = {
    "pipeline 3 x data 2, tied": (6, {"pipeline": 3, "tied": True}),
    "ZeRO-3, data 2": (2, {"zero": {"stage": 3}}),
    "tensor 2 x data 2, bf16": (4, {"tensor": 2, "precision": "bf16"}),
    "pipeline 2 x virtual 2": (2, {"pipeline": 2, "virtual": 2}),
    "tensor 2 x pipeline 2": (4, {"tensor": 2, "pipeline": 2}),
    "ZeRO-1, pipeline 2, tied": (4, {"pipeline": 2, "tied": True, "zero": {"stage": 1}}),
}
QUICK = "tensor 2 x data 2, bf16"
NAMES = [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in GRIDS]


def save_both(folder: Path) -> None:
    for tied, grid in SAVED_BY.items():
        run_steps(tiny_config("block", tied=tied, **grid), 0, SAVED_AT, folder / str(tied), save=True)
        parallel_state.destroy_model_parallel()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Checkpoints with moments after some steps, by whether the embedding is tied."""
    folder = tmp_path_factory.mktemp("sources")
    run_ranks(save_both, 2, folder)
    return {tied: checkpoints_folder(folder / str(tied)) / checkpoint_name(SAVED_AT) for tied in SAVED_BY}


@dataclass
class Begun:
    masters: dict[str, Tensor]
    """As they were loaded."""
    moments: float
    """The largest there was then."""
    losses: list[float]
    updates: int


def begin(config: RunConfig, source: Path) -> Begun:
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    torch.manual_seed(5)
    streams = torch.get_rng_state()
    other = {"train": "other data", **FINGERPRINTS}
    state, accepted = load_checkpoint(
        source, read_manifest(source), parts.engine, grid, other, SETTINGS, weights_only=True
    )
    assert state == TrainState() and accepted == [] and parts.engine.updates == 0
    assert torch.get_rng_state().equal(streams)
    states = export_state(parts.engine)
    masters = whole_tensors(parts.engine.parameters(), {name: one.master for name, one in states.items()}, grid)
    moments = max(float(m.abs().max()) for s in states.values() for m in (s.first_moment, s.second_moment))
    losses = [step_tiny(parts, config, grid, step)[0] for step in range(STEPS)]
    parallel_state.destroy_model_parallel()
    return Begun(masters, moments, losses, parts.engine.updates)


def test_on_the_ranks_that_saved_the_random_state_is_new_too(sources: dict[bool, Path]) -> None:
    run_ranks(begin, 2, tiny_config("block", **SAVED_BY[False]), sources[False])


def from_these_weights(config: RunConfig, source: Path) -> list[float]:
    """Losses of a run on one process whose engine is new, and whose masters are put in by hand."""
    grid = build_grid(config.parallel, seed=1)
    parts, reader = build_tiny(config, grid), CheckpointReader.open(source)
    for part in parts.engine.held():
        if part.kind is MASTER:
            whole = reader.read("weight", part.logical.name)
            part.tensor.zero_()[: whole.numel()].copy_(whole.reshape(-1))
    parts.engine.restored(0)
    return [step_tiny(parts, config, grid, step)[0] for step in range(STEPS)]


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_arrive_bit_for_bit_and_all_else_is_new(name: str, sources: dict[bool, Path]) -> None:
    ranks, grid = GRIDS[name]
    source = sources[grid.get("tied", False)]
    found = run_ranks(begin, ranks, tiny_config("block", **grid), source)[0]
    reader = CheckpointReader.open(source)
    assert found.masters.keys() == reader.manifest.tensors.keys()
    for parameter, master in found.masters.items():
        assert master.equal(reader.read("weight", parameter)), parameter
    assert found.moments == 0 and found.updates == STEPS
    plain = {key: value for key, value in grid.items() if key in ("tied", "precision")}
    expected = run_ranks(from_these_weights, 1, tiny_config("block", **plain), source)[0]
    assert found.losses == pytest.approx(expected, rel=5e-3 if "precision" in grid else 1e-5)


def first_update(config: RunConfig, source: Path) -> None:
    """Against AdamW's formulas at its first step, in float64."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    load_checkpoint(source, read_manifest(source), parts.engine, grid, {}, SETTINGS, weights_only=True)
    before = {name: state.master.double().clone() for name, state in export_state(parts.engine).items()}
    _, norm, _ = step_tiny(parts, config, grid, 0)
    ours, rate = config.optimizer, config.optimizer.learning_rate / 3  # of step 1 of a warm-up of 3
    factor = min(1.0, (ours.clip_grad_norm or np.inf) / (norm + 1e-6))
    after, clipped = export_state(parts.engine), parts.engine.pre_clip  # type: ignore[attr-defined]
    decays = {p.name: p.spec.decays for p in parts.engine.parameters()}
    assert gradients(parts.engine).keys() == after.keys()
    for name, master in before.items():
        gradient = clipped[name].double() * factor
        decayed = master * (1 - rate * ours.weight_decay * decays[name])
        expected = decayed - rate * gradient / (gradient.abs() + ours.eps)
        torch.testing.assert_close(after[name].master.double(), expected, rtol=0, atol=3e-7)


def test_the_first_update_is_that_of_a_fresh_adamw(sources: dict[bool, Path]) -> None:
    run_ranks(first_update, 1, tiny_config("block"), sources[False])


def damaged_is_told(config: RunConfig, source: Path) -> str:
    grid = build_grid(config.parallel, seed=1)
    engine = build_tiny(config, grid).engine
    with pytest.raises(Damaged) as found:
        load_checkpoint(source, read_manifest(source), engine, grid, {}, SETTINGS, weights_only=True)
    parallel_state.destroy_model_parallel()
    return str(found.value)


@pytest.mark.parametrize("kind", [pytest.param("weight", marks=pytest.mark.slow), "first_moment"])
def test_a_damage_is_found_whatever_it_hits(kind: str, sources: dict[bool, Path], tmp_path: Path) -> None:
    """Checksums are of whole files, so what is not used is summed too."""
    copy = shutil.copytree(sources[False], tmp_path / sources[False].name)
    reader = CheckpointReader.open(copy)
    places = reader.metadata.storage_data or {}
    place = next(place for index, place in places.items() if index.fqn == f"{kind}/embedding.weight")
    path = copy / place.relative_path
    content = bytearray(path.read_bytes())
    content[place.offset + place.length // 2] ^= 1
    path.write_bytes(content)
    (told,) = set(run_ranks(damaged_is_told, 2, tiny_config("block"), copy))
    assert f"{path.name} has checksum" in told


def interrupted_and_not(config: RunConfig, folder: Path) -> tuple[list[str], list[str]]:
    """What was told of a run from beginning to end, and of the second launch of one that was interrupted."""
    told = []
    half = replace(config, training=replace(config.training, stop_after_steps=2))
    for name, launched in (("whole", config), ("broken", half), ("broken", config)):
        code, lines = run_loop(launched, folder / name)
        parallel_state.destroy_model_parallel()
        assert code is ExitCode.DONE
        told.append(lines)
    return told[0], told[2]


def test_an_interrupted_run_goes_on_from_its_own_newest_exactly(sources: dict[bool, Path], tmp_path: Path) -> None:
    source = sources[True]
    config = tiny_config("block", pipeline=2, virtual=2, tied=True)
    kept = CheckpointConfig(resume=str(source), load="weights", keep=None)
    config = replace(config, checkpoint=kept, training=replace(config.training, steps=4))
    first, second = run_ranks(interrupted_and_not, 2, config, tmp_path)[0]
    assert f"beginning at step 0 with the weights of {source}, which is at step {SAVED_AT}" in first
    assert any("all else is new: moments, schedule, order of the data, random state" in line for line in first)
    own = tmp_path / "broken/checkpoints" / checkpoint_name(2)
    assert f"resuming from {own} at step 2, sample 16" in second
    last = [CheckpointReader.open(tmp_path / name / "checkpoints" / checkpoint_name(4)) for name in ("whole", "broken")]
    assert last[0].manifest.samples == 4 * 8 and last[0].manifest.optimizer_updates == 4
    for one, other in zip(*(reader.parts() for reader in last), strict=True):
        assert one[:2] == other[:2] and one.tensor.equal(other.tensor), one[:2]
    for reader in last:
        origin = reader.manifest.origin
        assert origin is not None and str(origin) == f"began with the weights of {source} (step {SAVED_AT})"


def chosen(resume: str, folder: Path) -> tuple[bool, int, int]:
    choice = choose_checkpoint(resume, folder, build_grid(tiny_config().parallel, seed=1), load="weights")
    assert choice is not None
    return choice.weights_only, choice.step, choice.samples


def test_a_run_with_nothing_of_its_own_begins_at_the_first_sample(sources: dict[bool, Path], tmp_path: Path) -> None:
    assert run_ranks(chosen, 1, str(sources[False]), tmp_path)[0] == (True, 0, 0)
