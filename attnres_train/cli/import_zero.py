"""`attnres import` of a checkpoint of DeepSpeed's: its run goes on here, under any engine and layout."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres_train.cli.command import Answer
from attnres_train.config.load import Loaded, load_checked
from attnres_train.config.resolve import run_folder, vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values
from attnres_train.errors import Problem, Refused
from attnres_train.model.describe import describe
from attnres_train.observe.claim import claim_run_folder
from attnres_train.optim.schedule import learning_rate
from attnres_train.progress import TrainState
from attnres_train.words import counted

if TYPE_CHECKING:
    from attnres_train.exchange.checkpoint import ZeroCheckpoint
    from attnres_train.model.sharding import Sharding
    from attnres_train.model.tensors import TensorSpec


@dataclass(frozen=True)
class Imported:
    """What was written, and what is worth saying of it."""

    path: Path
    source: Path
    origin: str
    """ZeRO stage, version and ranks, in words."""
    parameters: int
    state: TrainState
    updates: int
    samples_from: str
    notes: Sequence[str]


def import_deepspeed(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    """Write the checkpoint at DeepSpeed's step. Raises Refused before anything is written."""
    loaded = load_checked(options.config, overrides, None, "check")
    done = import_zero(options.folder, loaded, options.tag, options.samples)
    return Answer(_as_json(done), _as_text(done))


def import_zero(folder: Path, loaded: Loaded, tag: str | None, samples: int | None) -> Imported:
    """Write the checkpoint `tag` of DeepSpeed's `folder` into the run folder of `loaded`.

    Raises Refused, before anything is written, with all that is wrong with the files, or else all in which they are
    not of the configured model.
    """
    config = loaded.config
    # Only now: importing numpy, torch and megatron-core takes seconds, which other commands can do without.
    from attnres_train.corpora import open_corpora
    from attnres_train.exchange.checkpoint import read_checkpoint

    fingerprints = {} if config.data.train is None else open_corpora(config).fingerprints(config.training.seed)
    vocabulary = vocabulary_size(config)
    found = read_checkpoint(folder, tag)
    padded = config.model.padded_vocabulary(vocabulary, len(found.ranks))
    model = describe(config.model, config.residual, vocabulary, padded).all
    return _import(found, model, loaded, samples, fingerprints)


def _import(
    found: ZeroCheckpoint,
    model: Sequence[TensorSpec],
    loaded: Loaded,
    samples: int | None,
    fingerprints: Mapping[str, str],
) -> Imported:
    from attnres_train.parallel.light_imports import light_imports

    with light_imports():
        from attnres_train.checkpoint.save import RunIdentity
        from attnres_train.exchange.fit import unequal_copies
        from attnres_train.exchange.write import ImportedState, refuse_a_later_one, write_imported

    config, folder = loaded.config, run_folder(loaded.config, loaded.path)
    shardings = {spec.name: spec.sharding for spec in model}
    position = found.position.samples if samples is None else samples
    _refuse_unfit(found, shardings, folder, position)
    assert position is not None
    tokens = position * config.training.sequence_length
    state = TrainState(found.position.steps, position, tokens, found.position.skipped_steps)
    identity = RunIdentity((config.model.num_layers,), fingerprints, config_values(config, loaded.origins))
    folder.mkdir(parents=True, exist_ok=True)
    with claim_run_folder(folder):
        refuse_a_later_one(folder, state.step)  # once more: now nobody else writes here
        path = write_imported(folder, ImportedState(found, model), config, state, identity)
    tensor = f" x {len(found.ranks)} tensor ranks" if len(found.ranks) > 1 else ""
    return Imported(
        path=path,
        source=found.folder,
        origin=f"ZeRO-{found.stage} of DeepSpeed {found.version}, {counted(found.data_ranks, 'data rank')}{tensor}",
        parameters=sum(math.prod(sharding.shape) for sharding in shardings.values()),
        state=state,
        updates=found.updates,
        samples_from="DeepSpeed's global_samples" if samples is None else "--samples",
        notes=[*_notes(config, state, found.settings), *_copies_note(unequal_copies(found, shardings))],
    )


def _refuse_unfit(
    found: ZeroCheckpoint, shardings: Mapping[str, Sharding], run_folder: Path, position: int | None
) -> None:
    """Raises Refused with everything for which the checkpoint cannot go into this run."""
    from attnres_train.exchange.fit import misfits
    from attnres_train.exchange.write import refuse_a_later_one

    problems = list(misfits([rank.shapes for rank in found.ranks], shardings)) + found.not_finite()
    try:
        refuse_a_later_one(run_folder, found.position.steps)
    except Refused as refusal:
        problems += refusal.problems
    if position is None:
        message = "does not say how many samples were seen"
        problems.append(Problem(str(found.folder), message, "say where in the data to go on: --samples N"))
    if problems:
        raise Refused(problems)


def _notes(config: RunConfig, state: TrainState, settings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What goes on otherwise than in the run of DeepSpeed's, or may be taken for granted and should not."""
    steps = config.training.steps
    if state.step >= steps:
        yield f"training.steps = {steps}: the run is complete, a launch will train nothing"
    else:
        rate = learning_rate(config.optimizer, config.schedule, steps, state.step + 1)
        last = ", ".join(dict.fromkeys(f"{group['lr']:.6g}" for group in settings if "lr" in group))
        yield f"learning rate of step {state.step + 1}: {rate:.6g}" + (f"; DeepSpeed's last was {last}" if last else "")
    if config.data.train is None:
        yield "the configuration names no data.train: it must before a launch"
    ours = config.optimizer
    for key, now in {"beta1": ours.beta1, "beta2": ours.beta2, "eps": ours.eps}.items():
        for was in dict.fromkeys(_setting(group, key) for group in settings):
            if was is not None and was != now:
                yield f"optimizer.{key}: was {was!r}, is {now!r} from now on"
    decays = {group["weight_decay"] for group in settings if "weight_decay" in group}
    if decays and decays | {0.0} != {ours.weight_decay, 0.0}:
        text = ", ".join(f"{value!r}" for value in sorted(decays))
        yield f"optimizer.weight_decay: was {text}, is {ours.weight_decay!r} for matrices, 0 for vectors from now on"


def _copies_note(unequal: Sequence[str]) -> list[str]:
    if not unequal:
        return []
    what = f"{len(unequal)} parameters that tensor ranks share differ between them, such as {unequal[0]}"
    return [f"{what}: the first rank's are taken"]


def _setting(group: Mapping[str, Any], key: str) -> Any:
    if key == "eps":
        return group.get("eps")
    betas = group.get("betas")
    return None if betas is None else betas[("beta1", "beta2").index(key)]


def _as_json(done: Imported) -> dict[str, Any]:
    return {
        "checkpoint": str(done.path),
        "source": str(done.source),
        "origin": done.origin,
        "parameters": done.parameters,
        **done.state.as_dict(),
        "optimizer_updates": done.updates,
        "samples_from": done.samples_from,
        "notes": list(done.notes),
        "problems": [],
    }


def _as_text(done: Imported) -> str:
    state = done.state
    skipped = f", {state.skipped_steps} of the steps skipped" if state.skipped_steps else ""
    lines = [
        f"{done.path}: written and read back, {counted(done.parameters, 'parameter')} with their moments",
        f"  from {done.source}: {done.origin}",
        f"  step {state.step} after {counted(done.updates, 'update')}{skipped}",
        f"  goes on behind sample {state.samples:,} in the order of this configuration ({done.samples_from})",
        f"  tokens so far: {state.tokens:,}, taken as samples x training.sequence_length",
        *(f"  note: {note}" for note in done.notes),
    ]
    return "\n".join(lines)
