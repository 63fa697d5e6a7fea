"""Continuing from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.manifest import Manifest
from attnres_train.checkpoint.random_state import load_random_state
from attnres_train.checkpoint.sharded import CheckpointFailure, load_states, whole_shapes
from attnres_train.engine.interface import Engine
from attnres_train.errors import Problem, Refused, refuse
from attnres_train.parallel.grid import Grid
from attnres_train.progress import TrainState

# Keys of the model that say how it is started, padded or computed, not what it computes.
FREE_TO_CHANGE = (
    "model.init_std",
    "model.pad_vocabulary_to",
    "residual.backend",
    "residual.entropy_weight",
    "residual.gate_bias",
)
FINGERPRINT_REMEDIES = {
    "tokenizer": "use the tokenizer model the checkpoint was trained with",
    "train": "use the same corpora, blend, training.seed and training.sequence_length, or another run folder",
}


def check_fits(
    folder: Path,
    manifest: Manifest,
    mine: Mapping[str, tuple[int, ...]],
    fingerprints: Mapping[str, str],
    settings: Mapping[str, Any],
) -> None:
    """Refuse, listing every difference, a checkpoint of another model, tokenizer or corpus.

    Shapes alone do not tell: with twice the attention heads every matrix has the shape it had.
    """
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
    changed = changed_settings(manifest.settings, settings)
    problems += [
        Problem(key, f"was {was!r} in {folder.name}, is {now!r}: another model", f"write {key} = {was!r}")
        for key, (was, now) in changed.items()
        if key.startswith(("model.", "residual.")) and key not in FREE_TO_CHANGE
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
    folder: Path,
    manifest: Manifest,
    engine: Engine,
    grid: Grid,
    fingerprints: Mapping[str, str],
    settings: Mapping[str, Any],
) -> TrainState:
    """Continue from `folder`, written under any grid: weights, moments, position, and random streams where the
    grid is the same. A collective. Raises Refused where it does not fit.
    """
    check_fits(folder, manifest, whole_shapes(engine.parameters(), grid), fingerprints, settings)
    try:
        states = load_states(folder, engine.parameters(), grid)
    except CheckpointFailure as failure:
        raise refuse(str(folder), f"cannot be read: {failure}", "use an older checkpoint of the run") from failure
    engine.import_state(states, manifest.optimizer_updates)
    if _same_grid(manifest, grid):
        load_random_state(folder, grid)
    return TrainState(manifest.step, manifest.samples, manifest.tokens, manifest.skipped_steps)


def _same_grid(manifest: Manifest, grid: Grid) -> bool:
    stored = manifest.grid
    now = (grid.parallel.tensor, grid.parallel.pipeline, grid.parallel.virtual, grid.data)
    return (stored["tensor"], stored["pipeline"], stored["virtual"], stored["data"]) == now


def changed_settings(stored: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> (was, is) of what differs between a checkpoint's configuration and the one that goes on from it."""
    plain_now = json.loads(json.dumps(dict(now)))
    both = sorted(stored.keys() & now.keys())
    return {key: (stored[key], plain_now[key]) for key in both if stored[key] != plain_now[key]}
