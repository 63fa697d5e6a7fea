"""Saving as a transaction: write aside, all ranks vote, one rename publishes.

    start      a sibling folder is made, states are copied, the parts are planned         every rank, together
    write      each rank writes its file and flushes it                                   each alone, in a thread
    publish    the vote; metadata and manifest; the rename                                every rank, together
    read back  each rank holds its file against its checksum                              each alone, in the thread
    retire     the vote; older checkpoints go                                             every rank, together

Training goes on between them. What was not published is not there.
"""

from __future__ import annotations

import datetime
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from errno import ENOENT
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from attnres_train import __version__
from attnres_train.checkpoint.checksum import FileRecord, record_of
from attnres_train.checkpoint.folder import (
    checkpoint_name,
    checkpoints_folder,
    keep_newest,
    make_partial,
    partial_folder,
    point_to_latest,
    remove_leftovers,
    replace_published,
)
from attnres_train.checkpoint.manifest import Manifest, SavedGrid, write_manifest
from attnres_train.checkpoint.origin import Origin
from attnres_train.checkpoint.random_state import random_streams, save_random_state
from attnres_train.checkpoint.sharded import PendingStates, whole_tensors
from attnres_train.checkpoint.verify import damages
from attnres_train.durable import flush_folder
from attnres_train.engine.interface import StatePart, StateSource
from attnres_train.parallel.grid import Grid
from attnres_train.progress import TrainState

log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class RunIdentity:
    """What a checkpoint says of the run that wrote it."""

    layers_per_stage: tuple[int, ...]
    fingerprints: Mapping[str, str]
    settings: Mapping[str, Any]
    """The configuration by dotted key, so that a later run can say what changed."""
    origin: Origin | None = None
    """Of its weights, where they were not trained from step 0 on."""


class Written(NamedTuple):
    """How the writing of one rank stands."""

    done: bool
    failure: str | None


@dataclass
class CheckpointSave:
    """The checkpoint of `state` on its way to `published`; every method but `written` is a collective."""

    grid: Grid
    state: TrainState
    partial: Path
    published: Path
    manifest: Manifest
    """But for the files."""
    pending: PendingStates
    streams: dict[str, torch.Tensor]
    notes: list[str] = field(default_factory=list)
    """On rank 0, what went wrong and does the checkpoint no harm, in words."""
    started: float = field(default_factory=time.perf_counter)
    _records: dict[str, FileRecord] = field(default_factory=dict)
    _failure: str | None = None
    _written: threading.Event = field(default_factory=threading.Event)
    _damage: str | None = None
    _thread: threading.Thread | None = None

    @classmethod
    def start(
        cls, run_folder: Path, engine: StateSource, grid: Grid, state: TrainState, identity: RunIdentity
    ) -> CheckpointSave:
        """Begin; the engine may go on changing its state as soon as this returns.

        Raises RuntimeError on every rank, with nothing published, if the folder cannot be made.
        """
        checkpoints = checkpoints_folder(run_folder)
        partial = partial_folder(checkpoints, state.step)
        notes: list[str] = []
        failure = _make_room(checkpoints, partial, notes) if grid.keeps_run else None
        vote(grid, failure, partial)
        manifest = _manifest(engine, grid, state, identity)
        states = list(engine.share())
        pending = PendingStates(partial, states, grid)
        published = checkpoints / checkpoint_name(state.step)
        save = cls(grid, state, partial, published, manifest, pending, random_streams(), notes)
        # A daemon: a run that fails meanwhile need not wait for it.
        save._thread = threading.Thread(target=save._write, args=(states,), name="checkpoint", daemon=True)
        save._thread.start()
        return save

    def written(self) -> Written:
        """How this rank stands."""
        return Written(self._written.is_set(), self._failure)

    def wait(self) -> None:
        """Until every rank has written, or one has failed."""
        while True:
            everybody: list[Written] = [Written(False, None)] * self.grid.world_size
            dist.all_gather_object(everybody, self.written(), group=self.grid.control)
            if all(rank.done for rank in everybody) or any(rank.failure for rank in everybody):
                return
            time.sleep(_POLL_SECONDS)

    def publish(self) -> Path:
        """Vote, and give the checkpoint its name.

        Raises RuntimeError on every rank, with nothing published, if any rank failed.
        """
        done, failure = self.written()
        vote(self.grid, failure, self.partial)
        assert done, "published before it was written"
        parts: list[Any] | None = [None] * self.grid.world_size if self.grid.keeps_run else None
        dist.gather_object((self._records, self.pending.results), parts, group=self.grid.control)
        failure = None
        if parts is not None:
            records, results = zip(*parts, strict=True)
            failure = _in_words(lambda: self._make_whole(records, results))
        vote(self.grid, failure, self.partial)
        return self.published

    def retire(self, keep: int | None) -> None:
        """Wait until what is published has been read back; then delete what `keep` does not hold.

        Raises RuntimeError on every rank if it reads back differently; then nothing is deleted.
        """
        assert self._thread is not None
        self._thread.join()
        damages_told: list[str | None] = [None] * self.grid.world_size
        dist.all_gather_object(damages_told, self._damage, group=self.grid.control)
        told = [text for text in damages_told if text is not None]
        if told:
            raise RuntimeError(f"checkpoint {self.published} reads back differently: {'; '.join(told)}")
        if self.grid.keeps_run:
            # Where even the list of them cannot be read, the log has it, and the run goes on.
            _in_words(lambda: self.notes.extend(keep_newest(self.published.parent, keep, upto=self.state.step)))

    def _write(self, states: Sequence[StatePart]) -> None:
        """This rank's part, in the thread."""
        failure = _in_words(lambda: self._write_part(states))
        self._failure = None if failure is None else f"{self.grid}: {failure}"
        self._written.set()
        if failure is None:
            damage = _in_words(self._read_back)
            self._damage = None if damage is None else f"{self.grid}: {damage}"

    def _write_part(self, states: Sequence[StatePart]) -> None:
        for part in states:
            if not _is_finite(part.tensor):
                raise ValueError(f"{part.logical.name} or its optimizer state is not finite")
        self._records = {**self.pending.write(), **save_random_state(self.partial, self.streams, self.grid.rank)}

    def _read_back(self) -> None:
        for name, record in self._records.items():
            if self._record_of(name) != record:
                raise OSError(f"{name} is not what was written")

    def _record_of(self, name: str) -> FileRecord:
        """Of a file whose folder may get its name meanwhile."""
        try:
            return record_of(self.partial / name)
        except FileNotFoundError:
            return record_of(self.published / name)

    def _make_whole(self, records: tuple[dict[str, FileRecord], ...], results: tuple[Any, ...]) -> None:
        """On rank 0: everything that makes the folder a checkpoint, its name last."""
        files = {name: record for part in records for name, record in part.items()}
        if not self.partial.is_dir():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(self.partial))
        files |= self.pending.finish(list(results))
        whole = Manifest(**{**vars(self.manifest), "files": dict(sorted(files.items()))})
        if wrong := damages(self.partial, whole, sizes_only=True):
            raise OSError(f"{'; '.join(wrong)} as rank 0 sees it: is the run folder on a disk that all nodes share?")
        write_manifest(self.partial, whole)
        flush_folder(self.partial)
        replace_published(self.partial, self.published)
        flush_folder(self.published.parent)
        try:
            point_to_latest(self.published)
        except OSError as error:
            self.notes.append(f"the hint {error.filename} cannot be written ({error.strerror}); nothing here reads it")


def _make_room(checkpoints: Path, partial: Path, notes: list[str]) -> str | None:
    def make() -> None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        notes.extend(remove_leftovers(checkpoints))
        make_partial(partial)

    return _in_words(make)


def _in_words(action: Callable[[], None]) -> str | None:
    """Run `action`; what went wrong, in words, so that all ranks can be told of it."""
    try:
        action()
    except Exception as error:  # whatever it is: a save that fails in a thread must not go unsaid
        log.exception("a save failed")
        return _words_of(error)
    return None


def _words_of(error: Exception) -> str:
    if not isinstance(error, OSError) or error.strerror is None:
        return f"{type(error).__name__}: {error}"
    what = error.strerror if error.filename is None else f"{error.strerror} ({error.filename})"
    if isinstance(error, FileNotFoundError | FileExistsError | NotADirectoryError):
        return f"the folder was moved, removed or replaced while the run saved: {what}"
    return what


def vote(grid: Grid, failure: str | None, partial: Path) -> None:
    """Raises RuntimeError on every rank if any has a `failure`, and removes `partial`; a collective."""
    failures: list[str | None] = [None] * grid.world_size
    dist.all_gather_object(failures, failure, group=grid.control)
    told = [text for text in failures if text is not None]
    if told:
        if grid.keeps_run:
            shutil.rmtree(partial, ignore_errors=True)  # gives the space back; what is left goes with the next save
        what = f"checkpoint {partial} was not published: {'; '.join(dict.fromkeys(told))}"
        raise RuntimeError(f"{what}. The same command goes on from the newest whole checkpoint in {partial.parent}")


def _is_finite(tensor: torch.Tensor) -> bool:
    """Without a mask as large as the tensor: its least and greatest tell."""
    return tensor.numel() == 0 or all(bool(extreme.isfinite()) for extreme in tensor.aminmax())


def _manifest(engine: StateSource, grid: Grid, state: TrainState, identity: RunIdentity) -> Manifest:
    return Manifest(
        **state.as_dict(),
        optimizer_updates=engine.updates,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        grid=SavedGrid.of(grid),
        layers_per_stage=list(identity.layers_per_stage),
        versions={
            "attnres_train": __version__,
            "torch": str(torch.__version__),
            "megatron-core": version("megatron-core"),
        },
        tensors=whole_tensors(engine.parameters(), grid),
        files={},
        fingerprints=dict(identity.fingerprints),
        settings=dict(identity.settings),
        origin=identity.origin,
    )
