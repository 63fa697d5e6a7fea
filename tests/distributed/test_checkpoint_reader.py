"""What four ranks saved, one plain process reads whole."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.checkpoint.reader import CheckpointReader
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.config.run_config import RunConfig
from attnres_train.engine.kinds import KINDS as ENGINE_KINDS
from attnres_train.errors import Refused
from attnres_train.parallel.grid import build_grid
from attnres_train.progress import TrainState
from tests.distributed.ranks import run_ranks
from tests.distributed.state import OptimizerState, export_state
from tests.distributed.tiny import VOCABULARY, tiny_config
from tests.distributed.training import build_tiny, step_tiny, whole_tensors

KINDS = {"weight": "master", "first_moment": "first_moment", "second_moment": "second_moment"}
TABLES = {"untied": ("embedding.weight", "head.projection.weight"), "tied": ("embedding.weight",)}

READ = """
import sys
from pathlib import Path
import torch
from attnres_train.checkpoint.reader import CheckpointReader
parts = {f"{part.kind}/{part.name}": part.tensor for part in CheckpointReader.open(Path(sys.argv[1])).parts()}
torch.save(parts, sys.argv[2])
assert not torch.distributed.is_initialized()
assert not [name for name in sys.modules if name.startswith("megatron")]
"""


def save_each(configs: dict[str, RunConfig], folder: Path) -> dict[str, dict[str, Tensor]]:
    """By run, the engine's whole state after two steps, under the keys of the checkpoint that is saved of it."""
    grid = build_grid(next(iter(configs.values())).parallel, seed=1)
    found = {}
    for run, config in configs.items():
        parts = build_tiny(config, grid)
        for step in range(2):
            step_tiny(parts, config, grid, step)
        saving = CheckpointSave.start(folder / run, parts.engine, grid, TrainState(step=2), RunIdentity((2, 2), {}, {}))
        saving.wait()
        saving.publish()
        saving.retire(keep=1)
        states = export_state(parts.engine)
        found[run] = {
            f"{kind}/{name}": tensor
            for kind, attribute in KINDS.items()
            for name, tensor in whole_tensors(
                parts.engine.parameters(), {n: getattr(s, attribute) for n, s in states.items()}, grid
            ).items()
        }
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Tensor]]]:
    """The folder with both runs, and their states."""
    folder = tmp_path_factory.mktemp("runs")
    configs = {run: tiny_config("block", tensor=2, pipeline=2, tied=run == "tied") for run in TABLES}
    return folder, run_ranks(save_each, 4, configs, folder)[0]


def checkpoint(folder: Path, run: str) -> Path:
    return checkpoints_folder(folder / run) / checkpoint_name(2)


@pytest.mark.parametrize("run", TABLES)
def test_every_tensor_is_the_engines_in_a_process_without_ranks(
    runs: tuple[Path, dict[str, dict[str, Tensor]]], run: str, tmp_path: Path
) -> None:
    folder, states = runs
    subprocess.run([sys.executable, "-c", READ, checkpoint(folder, run), tmp_path / "read.pt"], check=True)
    read = torch.load(tmp_path / "read.pt", weights_only=True)
    assert list(read) == sorted(states[run])
    for key, tensor in read.items():
        assert tensor.dtype == torch.float32 and tensor.equal(states[run][key]), key
    assert {key for key, tensor in read.items() if tensor.shape[0] == VOCABULARY} == {
        f"{kind}/{table}" for kind in KINDS for table in TABLES[run]
    }


def test_the_kinds_of_state_are_those_that_are_read() -> None:
    """In their order: the tests' whole states are made by it."""
    assert [kind.stored for kind in ENGINE_KINDS] == list(KINDS)
    assert [kind.words.replace(" ", "_") for kind in ENGINE_KINDS] == [field.name for field in fields(OptimizerState)]


def test_one_tensor_by_name_and_one_that_is_not_there(runs: tuple[Path, dict[str, dict[str, Tensor]]]) -> None:
    folder, states = runs
    reader = CheckpointReader.open(checkpoint(folder, "untied"))
    assert reader.read("second_moment", "head.projection.weight").equal(
        states["untied"]["second_moment/head.projection.weight"]
    )
    assert reader.manifest.step == 2
    with pytest.raises(Refused, match="has no weight/nobody"):
        reader.read("weight", "nobody")


def test_a_damaged_file_is_refused_before_a_byte_of_it_is_used(
    runs: tuple[Path, dict[str, dict[str, Tensor]]],
) -> None:
    """By its checksum; where that is not asked for, by its size."""
    damaged = checkpoint(runs[0], "tied")
    file = min(damaged.glob("*.distcp"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Refused, match=f"{file.name} has checksum"):
        CheckpointReader.open(damaged)
    CheckpointReader.open(damaged, verify=False)
    file.write_bytes(whole[:-1])
    with pytest.raises(Refused, match=f"{file.name} has .* bytes"):
        CheckpointReader.open(damaged, verify=False)
    file.write_bytes(whole)
