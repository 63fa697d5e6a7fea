"""Whether a run ended as an undisturbed one did: curves, samples, state, and nothing left over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.folder import checkpoints_folder, named_steps
from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.verify import damages, strangers
from tests.end_to_end.conftest import records

EVERY_STEP = ("loss/train", "optim/grad_norm", "optim/lr", "optim/skipped_steps", "tokens", "samples")
MANIFEST = ("step", "samples", "tokens", "skipped_steps", "optimizer_updates", "grid", "tensors", "fingerprints")


def differences(run: Path, undisturbed: Path, steps: int) -> list[str]:
    """What is not in `run` as it is in `undisturbed`, one line each."""
    return [*_curves(run, undisturbed, steps), *_samples(run, undisturbed, steps), *_state(run, undisturbed)]


def _curves(run: Path, undisturbed: Path, steps: int) -> Iterator[str]:
    mine, other = (records(folder / "metrics.jsonl") for folder in (run, undisturbed))
    for tag in (*EVERY_STEP, "loss/valid"):
        # A record of a step has a loss; others (of saves) repeat the position.
        key = tag if "/" in tag else "loss/train"
        here, there = ([(one["step"], one[tag]) for one in of if key in one] for of in (mine, other))
        yield from _first_difference(f"metrics.jsonl: {tag}", here, there)
        if tag != "loss/valid" and [step for step, _ in here] != list(range(1, steps + 1)):
            yield f"metrics.jsonl: {tag} does not have every step once"
    yield from _tensorboard(run, [(one["step"], one["loss/train"]) for one in mine if "loss/train" in one])


def _tensorboard(run: Path, losses: list[tuple[int, float]]) -> Iterator[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of every restart
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("loss/train")]
    rounded = [(step, value) for (step, value), (_, exact) in zip(shown, losses, strict=False) if _close(value, exact)]
    yield from _first_difference("tensorboard: steps of loss/train", [s for s, _ in shown], [s for s, _ in losses])
    if rounded != shown:
        yield "tensorboard: loss/train is not that of metrics.jsonl"


def _close(value: float, exact: float) -> bool:
    return abs(value - exact) <= 1e-6 * abs(exact)


def _samples(run: Path, undisturbed: Path, steps: int) -> Iterator[str]:
    mine, other = (records(folder / "samples.jsonl") for folder in (run, undisturbed))
    yield from _first_difference("samples.jsonl", mine, other)
    if [one["step"] for one in mine] != list(range(1, steps + 1)):
        yield "samples.jsonl does not have every step once"


def _first_difference(what: str, mine: list[Any], other: list[Any]) -> Iterator[str]:
    if len(mine) != len(other):
        yield f"{what}: {len(mine)} entries, undisturbed {len(other)}"
    for here, there in zip(mine, other, strict=False):
        if here != there:
            yield f"{what}: {here}, undisturbed {there}"
            return


def _state(run: Path, undisturbed: Path) -> Iterator[str]:
    mine, other = (named_steps(checkpoints_folder(folder)) for folder in (run, undisturbed))
    if not mine or not other:
        yield "there is no checkpoint"
        return
    for folder in (run, checkpoints_folder(run)):
        names = {path.name for path in folder.iterdir()}
        expected = {path.name for path in (undisturbed / folder.relative_to(run)).iterdir()}
        if names != expected:
            yield f"{folder.name}/ has {sorted(names - expected)} more and {sorted(expected - names)} less"
    last, last_other = mine[max(mine)], other[max(other)]
    manifest, manifest_other = read_manifest(last), read_manifest(last_other)
    for field in MANIFEST:
        if getattr(manifest, field) != getattr(manifest_other, field):
            yield f"manifest: {field} differs"
    yield from damages(last, manifest)
    yield from (f"{last.name} has the stranger {name}" for name in strangers(last, manifest))
    yield from _tensors(last, last_other)


def _tensors(last: Path, last_other: Path) -> Iterator[str]:
    import torch

    mine, other = _load(last), _load(last_other)
    if mine.keys() != other.keys():
        yield f"the checkpoints differ in {sorted(mine.keys() ^ other.keys())}"
    for name in sorted(mine.keys() & other.keys()):
        same = mine[name].shape == other[name].shape and torch.equal(_bits(mine[name]), _bits(other[name]))
        if not same:
            yield f"{name} differs"


def _bits(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().view(torch.uint8)


def _load(folder: Path) -> dict[str, Any]:
    """Every tensor of a checkpoint, and the random streams of its ranks."""
    import torch

    from attnres_train.checkpoint.reader import CheckpointReader

    parts = CheckpointReader.open(folder).parts()
    tensors: dict[str, Any] = {f"{part.kind}/{part.name}": part.tensor for part in parts}
    for path in folder.glob("random-*.pt"):
        streams = torch.load(path, weights_only=True)
        tensors |= {f"{path.name}: {name}": stream for name, stream in streams.items()}
    return tensors
