"""The mean of the weights of several checkpoints, as a checkpoint of weights alone: one tensor in memory at a time.

Of every weight (and buffer) w_i with its weight in the mean a_i it has (sum a_i w_i) / sum a_i, in float64 in the order
given, rounded once to fp32. So the mean of one, or of equals, is the same bits.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres_train.checkpoint.fit import FREE_TO_CHANGE, Difference, changed_settings, told
from attnres_train.checkpoint.folder import is_named
from attnres_train.checkpoint.manifest import Manifest, SavedGrid, write_manifest
from attnres_train.checkpoint.origin import Origin, Source, digest_of
from attnres_train.checkpoint.plain import NotPlain
from attnres_train.checkpoint.reader import ANOTHER, CheckpointReader
from attnres_train.checkpoint.stream import Whole, write_whole
from attnres_train.engine.kinds import BUFFER, MASTER
from attnres_train.errors import Problem, Refused, refuse
from attnres_train.exchange.publish import published, refuse_taken
from attnres_train.model.sharding import Sharding

_ONE_MODEL = "merge checkpoints of one model and one tokenizer"
_BLOCK_ELEMENTS = 16 << 20
"""Of a tensor, summed in float64 at a time: 192 MiB with what is added."""
_CACHED_ELEMENTS = 1 << 15
"""Of them, at a time: what stays in a processor's cache, and is no work for torch's threads, whose meetings cost more
than they save."""
_FP32_BYTES = 4
_MIB = 2**20


class Merged(NamedTuple):
    """What was written."""

    folder: Path
    origin: Origin
    step: int
    tensors: int
    parameters: int
    bytes: int


def merge(checkpoints: Sequence[Path], weights: Sequence[float], folder: Path) -> Merged:
    """Write the mean of `checkpoints`, by `weights` above zero, to `folder`: whole or not at all.

    Raises Refused where one of them is damaged, is of another model or tokenizer, is named twice, or where `folder`
    exists or has no room; OSError where writing fails.
    """
    _refuse_unusable(checkpoints, folder)
    readers = _opened(checkpoints)
    first = readers[0]
    if found := [one for other in readers[1:] for one in misfits(first, other)]:
        raise Refused(told(found))
    shapes = {_key(first, name): record.shape for name, record in first.manifest.tensors.items()}
    parameters = sum(map(prod, shapes.values()))
    _refuse_without_room(folder, parameters * _FP32_BYTES)
    total = sum(weights)
    digests = [digest_of(reader.folder) for reader in readers]
    sources = tuple(
        Source(str(reader.folder.absolute()), reader.manifest.step, digest, weight / total)
        for reader, digest, weight in zip(readers, digests, weights, strict=True)
    )
    newest = max((reader.manifest for reader in readers), key=lambda manifest: manifest.step)
    manifest = _manifest(newest, Origin("merge", sources))
    with published(folder) as partial:
        means = (Whole(key, mean(readers, weights, key, shape)) for key, shape in shapes.items())
        manifest = replace(manifest, files=dict(sorted(write_whole(partial, means).items())))
        write_manifest(partial, manifest)
    return Merged(folder, Origin("merge", sources), newest.step, len(shapes), parameters, manifest.bytes)


def _refuse_unusable(checkpoints: Sequence[Path], folder: Path) -> None:
    refuse_taken(folder)
    if is_named(folder):
        what = "is named as a run names its own checkpoints, and this one cannot be gone on from"
        raise refuse(str(folder), what, "give it another name")
    seen = [path.resolve() for path in checkpoints]
    for path in checkpoints:
        if seen.count(path.resolve()) > 1:
            raise refuse(str(path), "is named twice", "name it once, with more weight: --weights")


def _opened(checkpoints: Sequence[Path]) -> list[CheckpointReader]:
    """Each read against its checksums. Raises Refused with what is wrong with any."""
    readers, problems = list[CheckpointReader](), list[Problem]()
    for path in checkpoints:
        try:
            readers.append(CheckpointReader.open(path))
        except Refused as refusal:
            problems += refusal.problems
    if problems:
        raise Refused(problems)
    return readers


def misfits(first: CheckpointReader, other: CheckpointReader) -> Iterator[Difference]:
    """In what `other` is not of the model and the tokenizer of `first`."""
    one, two = first.manifest, other.manifest
    differing: dict[str, tuple[Any, Any]] = {
        key: values
        for key, values in changed_settings(one.settings, two.settings).items()
        if key.startswith(("model.", "residual.")) and key not in FREE_TO_CHANGE
    }
    marks = [manifest.fingerprints.get("tokenizer") for manifest in (one, two)]
    if None not in marks and marks[0] != marks[1]:
        differing["tokenizer"] = (str(marks[0])[:12], str(marks[1])[:12])
    for key, (was, now) in differing.items():
        yield _difference(other, first, key, f"{now!r}", f"{was!r}", None)
    shapes = [{name: record.shape for name, record in manifest.tensors.items()} for manifest in (one, two)]
    yield from _other_tensors(first, other, shapes[0], shapes[1])


def _other_tensors(
    first: CheckpointReader, other: CheckpointReader, one: Mapping[str, tuple[int, ...]], two: Mapping[str, Any]
) -> Iterator[Difference]:
    for name in sorted(one.keys() | two.keys()):
        if one.get(name) != two.get(name):
            has, had = (f"shape {shapes[name]}" if name in shapes else "none" for shapes in (two, one))
            yield _difference(other, first, name, has, had, name)
        elif _key(first, name) != _key(other, name):
            yield _difference(other, first, name, _key(other, name), _key(first, name), name)


def _difference(
    other: CheckpointReader, first: CheckpointReader, key: str, has: str, had: str, tensor: str | None
) -> Difference:
    return Difference(Problem(f"{other.folder}: {key}", f"{has}, in {first.folder} {had}", _ONE_MODEL), None, tensor)


def _key(reader: CheckpointReader, name: str) -> str:
    stored = reader.metadata.state_dict_metadata
    return next((key for kind in (MASTER, BUFFER) if (key := f"{kind.stored}/{name}") in stored), f"no {name}")


def _refuse_without_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder.absolute().parent).free
    if free < needed:
        what = f"takes {needed / _MIB:,.0f} MiB, {free / _MIB:,.0f} MiB are free there"
        raise refuse(str(folder), what, "make room, or name another folder")


def mean(readers: Sequence[CheckpointReader], weights: Sequence[float], key: str, shape: tuple[int, ...]) -> Tensor:
    """That of one tensor, fp32. Raises Refused where a file holds something else; OSError."""
    sharding, whole = Sharding(shape), torch.empty(shape, dtype=torch.float32)
    flat, total = whole.view(-1), sum(weights)
    length = min(_BLOCK_ELEMENTS, flat.numel())
    block, sums = torch.empty(length), torch.empty(length, dtype=torch.float64)
    for begin in range(0, flat.numel(), _BLOCK_ELEMENTS):
        wanted = slice(begin, min(begin + _BLOCK_ELEMENTS, flat.numel()))
        mine, summed = (buffer[: wanted.stop - begin] for buffer in (block, sums))
        for number, (reader, weight) in enumerate(zip(readers, weights, strict=True)):
            try:
                with closing(reader.files):
                    reader.fill(mine, key, sharding, wanted)
            except NotPlain as reason:
                raise refuse(str(reader.folder), f"cannot be read: {reason}", ANOTHER) from reason
            for part, of_sum in zip(mine.split(_CACHED_ELEMENTS), summed.split(_CACHED_ELEMENTS), strict=True):
                weighted = part.double().mul_(weight)
                of_sum.copy_(weighted) if number == 0 else of_sum.add_(weighted)
        flat[wanted] = summed.div_(total)
    return whole


def _manifest(newest: Manifest, origin: Origin) -> Manifest:
    """Position, settings and fingerprints of the newest; no update that a moment could remember."""
    return replace(
        newest,
        optimizer_updates=0,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        grid=SavedGrid(tensor=1, pipeline=1, virtual=1, data=1, sequence=0),
        layers_per_stage=[sum(newest.layers_per_stage)],
        losses={},
        origin=origin,
    )
