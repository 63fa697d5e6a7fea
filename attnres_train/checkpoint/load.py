"""Continuing from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.manifest import Manifest
from attnres_train.checkpoint.random_state import load_random_state
from attnres_train.checkpoint.sharded import load_states, whole_shapes
from attnres_train.engine.interface import Engine
from attnres_train.errors import Problem, Refused
from attnres_train.parallel.grid import Grid
from attnres_train.progress import TrainState

FINGERPRINT_REMEDIES = {
    "tokenizer": "use the tokenizer model the checkpoint was trained with",
    "train": "use the same corpora, blend, training.seed and training.sequence_length, or another run folder",
}


def check_fits(
    folder: Path, manifest: Manifest, mine: Mapping[str, tuple[int, ...]], fingerprints: Mapping[str, str]
) -> None:
    """Refuse, listing every difference, a checkpoint of another model, tokenizer or corpus."""
    stored = {name: tuple(entry["shape"]) for name, entry in manifest.tensors.items()}
    problems = [
        Problem(f"{folder.name}: {name}", text, "use the configuration the checkpoint was trained with")
        for name in sorted(stored.keys() | mine.keys())
        if (text := _difference(stored.get(name), mine.get(name))) is not None
    ]
    problems += [
        Problem(
            f"{folder.name}: {kind}",
            f"was trained with {kind} {manifest.fingerprints[kind][:12]}, this run has {fingerprints[kind][:12]}",
            FINGERPRINT_REMEDIES[kind],
        )
        for kind in sorted(manifest.fingerprints.keys() & fingerprints.keys())
        if manifest.fingerprints[kind] != fingerprints[kind]
    ]
    if problems:
        raise Refused(problems)


def _difference(stored: tuple[int, ...] | None, mine: tuple[int, ...] | None) -> str | None:
    if stored is None:
        return f"the model has it with shape {mine}, the checkpoint lacks it"
    if mine is None:
        return f"the checkpoint has it with shape {stored}, the model lacks it"
    return None if stored == mine else f"has shape {stored} in the checkpoint, {mine} in the model"


def load_checkpoint(
    folder: Path, manifest: Manifest, engine: Engine, grid: Grid, fingerprints: Mapping[str, str]
) -> TrainState:
    """Continue from `folder`, written under any grid: weights, moments, position, and random streams where the
    grid is the same. A collective. Raises Refused where it does not fit.
    """
    check_fits(folder, manifest, whole_shapes(engine.parameters(), grid), fingerprints)
    engine.import_state(load_states(folder, engine.parameters(), grid), manifest.optimizer_updates)
    if _same_grid(manifest, grid):
        load_random_state(folder, grid)
    return TrainState(manifest.step, manifest.samples, manifest.tokens, manifest.skipped_steps)


def _same_grid(manifest: Manifest, grid: Grid) -> bool:
    stored = manifest.grid
    now = (grid.parallel.tensor, grid.parallel.pipeline, grid.parallel.virtual, grid.data)
    return (stored["tensor"], stored["pipeline"], stored["virtual"], stored["data"]) == now


def changed_settings(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between the configuration of a checkpoint and the one that goes on from it, a line a key."""
    return [
        f"{key}: was {stored[key]!r}, is {now[key]!r} from now on"
        for key in sorted(stored.keys() & now.keys())
        if json.loads(json.dumps(now[key])) != stored[key]
    ]
