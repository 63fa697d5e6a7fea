"""Checkpoints of any layouts become one of weights alone, which runs begin with, exports take and resumes refuse."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron.core import parallel_state

from attnres_train.checkpoint.load import load_checkpoint
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.cli.run import main
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Refused
from attnres_train.exchange.merge import merge
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from tests.distributed.ranks import run_ranks
from tests.distributed.state import export_state
from tests.distributed.test_checkpoints import save_whole
from tests.distributed.tiny import tiny_config
from tests.distributed.training import build_tiny, step_tiny, whole_tensors

LAYOUTS: dict[str, dict[str, Any]] = {
    "pipeline 2 x virtual 2": {"pipeline": 2, "virtual": 2},
    "tensor 2": {"tensor": 2},
    "data 2, bf16": {"precision": "bf16"},
}
"""Of two ranks each; one after the other has a step more."""


def settings_of(config: RunConfig) -> dict[str, Any]:
    sections = {
        "model": config.model,
        "residual": config.residual,
        "training": config.training,
        "optimizer": config.optimizer,
    }
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in asdict(section).items()}


def save_each(folder: Path) -> list[Path]:
    made = []
    for count, (name, layout) in enumerate(LAYOUTS.items(), start=1):
        config = tiny_config("block", **layout)
        grid = build_grid(config.parallel, seed=1)
        parts = build_tiny(config, grid)
        for step in range(count):
            step_tiny(parts, config, grid, step)
        identity = RunIdentity(parts.pipeline.setup.layers_per_stage, {}, settings_of(config))
        saving = CheckpointSave.start(folder / name, parts.engine, grid, TrainState(step=count), identity)
        made.append(save_whole(saving))
        parallel_state.destroy_model_parallel()
    return made


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return run_ranks(save_each, 2, tmp_path_factory.mktemp("runs"))[0]


def weights(folder: Path) -> dict[str, np.ndarray]:
    reader = CheckpointReader.open(folder)
    return {name: reader.read("weight", name).numpy().astype(np.float64) for name in reader.manifest.tensors}


def begun_and_refused(folder: Path) -> tuple[bool, str]:
    """Whether the masters of a run that begins with it are its weights, and how an exact resume is refused."""
    config = tiny_config("block", tensor=2)
    grid = build_grid(config.parallel, seed=1)
    engine = build_tiny(config, grid).engine
    manifest, settings = read_manifest(folder), settings_of(config)
    with pytest.raises(Refused) as refusal:
        load_checkpoint(folder, manifest, engine, grid, {}, settings, ("moments", "settings", "data"))
    load_checkpoint(folder, manifest, engine, grid, {}, settings, weights_only=True)
    masters = {name: state.master for name, state in export_state(engine).items()}
    whole = whole_tensors(engine.parameters(), masters, grid)
    reader = CheckpointReader.open(folder)
    return all(tensor.equal(reader.read("weight", name)) for name, tensor in whole.items()), str(refusal.value)


def test_three_layouts_merge_into_their_mean_which_a_run_begins_with(sources: list[Path], tmp_path: Path) -> None:
    merge(sources, [1.0, 2.0, 1.0], tmp_path / "mean")
    parts, found = [weights(source) for source in sources], weights(tmp_path / "mean")
    assert found.keys() == parts[0].keys()
    for name, tensor in found.items():
        expected = np.average(np.stack([part[name] for part in parts]), axis=0, weights=[1, 2, 1])
        assert np.array_equal(tensor, expected.astype(np.float32)), name
    begun, refused = run_ranks(begun_and_refused, 2, tmp_path / "mean")[0]
    assert begun
    assert "moments: the checkpoint has weights alone, as a merge writes them" in refused
    assert refused.count("\n    -> ") == 1 and 'write checkpoint.load = "weights"' in refused


def test_the_merge_of_one_is_its_weights_and_is_exported(sources: list[Path], tmp_path: Path) -> None:
    one = tmp_path / "one"
    assert main(["merge", str(sources[0]), str(one)]) == 0
    (part, found) = (weights(folder) for folder in (sources[0], one))
    assert all(np.array_equal(found[name].view(np.int64), part[name].view(np.int64)) for name in part)
    assert main(["verify", str(one)]) == 0 and main(["inspect", str(one)]) == 0
    assert main(["export", str(one), str(tmp_path / "model"), "--no-tokenizer"]) == 0
    assert f"| weights | a mean of {sources[0]} (step 1) |" in (tmp_path / "model/README.md").read_text()
