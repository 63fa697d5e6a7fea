"""`optimizer.average_decay`: a mean of weights in shards, which is the recursion and survives saves bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core import parallel_state
from torch import Tensor

from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.cli.run import main
from attnres_train.config.run_config import RunConfig
from attnres_train.engine.average import decay_after
from attnres_train.engine.interface import Engine
from attnres_train.engine.kinds import AVERAGE, MASTER, Kind
from attnres_train.errors import Refused
from attnres_train.parallel.grid import Grid, build_grid
from attnres_train.plan.whole import plan
from attnres_train.progress import TrainState
from tests.distributed.ranks import run_ranks
from tests.distributed.state import _whole
from tests.distributed.test_checkpoints import save_whole
from tests.distributed.test_merge import settings_of
from tests.distributed.tiny import VOCABULARY, tiny_config
from tests.distributed.training import build_tiny, step_tiny, whole_tensors

DECAY, SAVED_AT, STEPS = 0.7, 2, 4
GRIDS: dict[str, tuple[int, dict[str, Any]]] = {
    "data 2, bf16": (2, {"precision": "bf16"}),
    "pipeline 2 x data 2, tied": (4, {"pipeline": 2, "tied": True}),
    "tensor 2 x data 2, bf16": (4, {"tensor": 2, "precision": "bf16"}),
    "ZeRO-1, data 2, bf16": (2, {"precision": "bf16", "zero": {"stage": 1}}),
    "ZeRO-3, data 2": (2, {"zero": {"stage": 3}}),
    "ZeRO-2 in host memory, data 2": (2, {"zero": {"stage": 2, "offload_optimizer": True}}),
    "pipeline 2 x virtual 2": (2, {"pipeline": 2, "virtual": 2}),
}
QUICK = "data 2, bf16"
NAMES = [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in GRIDS]


def averaging(**grid: Any) -> RunConfig:
    config = tiny_config("block", **grid)
    return replace(config, optimizer=replace(config.optimizer, average_decay=DECAY))


def wholes(engine: Engine, grid: Grid, kind: Kind) -> dict[str, Tensor]:
    held = {part.logical.name: (part.owned, part.tensor) for part in engine.held() if part.kind is kind}
    mine = {
        p.name: _whole(engine, p, *held.get(p.name, (None, None)))
        for p in engine.parameters()
        if p.owned and not p.spec.buffer
    }
    return whole_tensors(engine.parameters(), mine, grid)


@dataclass
class Kept:
    masters: list[dict[str, Tensor]]
    """At the beginning, and after every step."""
    average: dict[str, Tensor]
    bytes: int
    """Of the means on this rank."""


def steps(config: RunConfig, first: int, last: int, folder: Path, keep: bool = False, **load: Any) -> Kept:
    """Steps `first` to `last`, from the checkpoint of step `first` unless it is 0; saved at the end if `keep`."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    engine: Any = parts.engine
    if first:
        saved = checkpoints_folder(folder) / checkpoint_name(first)
        load_checkpoint(saved, read_manifest(saved), engine, grid, {}, settings_of(config), **load)
    elif engine.averages is not None:
        engine.keep_averages(DECAY)  # once more: the tests move the weights after the engine was made
    masters = [wholes(engine, grid, MASTER)]
    for step in range(first, last):
        step_tiny(parts, config, grid, step)
        masters.append(wholes(engine, grid, MASTER))
    if keep:
        identity = RunIdentity(parts.pipeline.setup.layers_per_stage, {}, settings_of(config))
        save_whole(CheckpointSave.start(folder, engine, grid, TrainState(step=last), identity))
    size = sum(mean.nbytes for mean in engine.averages.means) if engine.averages else 0
    average = wholes(engine, grid, AVERAGE) if engine.averages else {}
    parallel_state.destroy_model_parallel()
    return Kept(masters, average, size)


def whole_and_in_halves(config: RunConfig, folder: Path) -> tuple[Kept, Kept]:
    """At the end of all steps, and of the second half in an engine that is new."""
    whole = steps(config, 0, STEPS, folder)
    steps(config, 0, SAVED_AT, folder, keep=True)
    return whole, steps(config, SAVED_AT, STEPS, folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_mean_is_the_recursion_and_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    ranks, grid = GRIDS[name]
    config = averaging(**grid)
    everybody = run_ranks(whole_and_in_halves, ranks, config, tmp_path)
    whole, halves = everybody[0]
    assert whole.average.keys() == whole.masters[0].keys()
    for parameter, mean in whole.average.items():
        expected = whole.masters[0][parameter].double()
        for update, masters in enumerate(whole.masters[1:], start=1):
            keep = decay_after(update, DECAY)
            expected = keep * expected + (1 - keep) * masters[parameter].double()
        torch.testing.assert_close(mean.double(), expected, rtol=0, atol=1e-7)
        assert halves.average[parameter].equal(mean), parameter
    moved = [name for name, mean in whole.average.items() if not mean.equal(whole.masters[-1][name])]
    assert "embedding.weight" in moved and len(moved) > len(whole.average) // 2
    planned = plan(config, ranks, VOCABULARY)
    each, rank = ranks // config.parallel.pipeline, planned.memory.rank  # the pipeline is the outermost degree
    fullest = max(kept.bytes for kept, _ in everybody[rank * each : (rank + 1) * each])
    if config.engine.kind == "megatron":
        assert fullest == planned.memory.average
    elif not config.engine.deepspeed.offload_optimizer:
        assert fullest == pytest.approx(planned.memory.average, rel=0.02)
    saved = checkpoints_folder(tmp_path) / checkpoint_name(SAVED_AT)
    size = sum(path.stat().st_size for path in saved.iterdir())
    assert planned.checkpoint.total_bytes == pytest.approx(size, rel=0.05)
    assert planned.checkpoint.state_bytes == 4 * 4 * sum(mean.numel() for mean in whole.average.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run that keeps a mean, on pipeline 2 x virtual 2, and one that keeps none."""
    folder = tmp_path_factory.mktemp("runs")
    run_ranks(save_both, 2, folder)
    return folder


def save_both(folder: Path) -> None:
    steps(averaging(pipeline=2, virtual=2), 0, SAVED_AT, folder / "with", keep=True)
    steps(tiny_config("block", pipeline=2, virtual=2), 0, SAVED_AT, folder / "without", keep=True)


def saved(folder: Path) -> CheckpointReader:
    return CheckpointReader.open(checkpoints_folder(folder) / checkpoint_name(SAVED_AT))


def other_ways(folder: Path) -> dict[str, Any]:
    """What a run on tensor 2 has right after loading, and what it is refused."""
    config = averaging(tensor=2)
    with pytest.raises(Refused) as refusal:
        steps(config, SAVED_AT, SAVED_AT, folder / "without", allow=("moments", "missing"))
    parallel_state.destroy_model_parallel()
    return {
        "with": steps(config, SAVED_AT, SAVED_AT, folder / "with"),
        "allowed": steps(config, SAVED_AT, SAVED_AT, folder / "without", allow=("average",)),
        "weights": steps(config, SAVED_AT, SAVED_AT, folder / "with", weights_only=True),
        "off": steps(tiny_config("block", tensor=2), SAVED_AT, SAVED_AT, folder / "with"),
        "refused": str(refusal.value),
    }


def test_other_layouts_go_on_with_it_and_who_lacks_one_begins_with_the_weights(folder: Path) -> None:
    found = run_ranks(other_ways, 2, folder)[0]
    reader = saved(folder / "with")
    for name, mean in found["with"].average.items():
        assert mean.equal(reader.read("average", name)), name
        for way in ("allowed", "weights"):
            assert found[way].average[name].equal(found[way].masters[0][name]), name
    assert found["off"].average == {}
    told = found["refused"]
    assert "optimizer.average_decay: is set, but the checkpoint has no mean of weights to go on with" in told
    assert 'accept it with "average" in checkpoint.allow' in told and told.count("\n    -> ") == 1


def test_the_mean_is_exported_and_where_there_is_none_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="the test extra installs it")
    options = ["--average", "--no-tokenizer", "--dtype", "fp32"]
    source = saved(folder / "with")
    assert main(["export", str(source.folder), str(tmp_path / "model"), *options]) == 0
    tensors = safetensors.load_file(tmp_path / "model/model-00001-of-00001.safetensors")
    assert tensors["model.embed_tokens.weight"].equal(source.read("average", "embedding.weight"))
    assert not tensors["model.embed_tokens.weight"].equal(source.read("weight", "embedding.weight"))
    card = (tmp_path / "model/README.md").read_text(encoding="utf-8")
    assert f"| weights are | the exponential mean of those of training, decay {DECAY} |" in card
    assert main(["export", str(saved(folder / "without").folder), str(tmp_path / "none"), *options]) == 2
    assert "has no mean of weights: its run had no optimizer.average_decay" in capsys.readouterr().err
