"""When checkpoints are started and published, beside the steps of a run."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from attnres_train.checkpoint.config import CheckpointConfig
from attnres_train.checkpoint.save import CheckpointSave, RunIdentity
from attnres_train.engine.interface import Engine
from attnres_train.observe.console import CONSOLE
from attnres_train.observe.recorder import Recorder
from attnres_train.parallel.grid import Grid
from attnres_train.progress import TrainState

log = logging.getLogger(CONSOLE)


class Saves:
    """The checkpoints of a run, of which one at a time is under way. All methods but `votes` are collectives."""

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        grid: Grid,
        identity: RunIdentity,
        config: CheckpointConfig,
        recorder: Recorder,
    ):
        self.folder, self.engine, self.grid, self.identity = folder, engine, grid, identity
        self.config, self.recorder = config, recorder
        self._current: CheckpointSave | None = None
        self._published: CheckpointSave | None = None
        self._told: set[str] = set()

    def votes(self) -> dict[str, bool]:
        """How this rank's part of the one under way stands, for the ranks to count."""
        mine = None if self._current is None else self._current.written()
        return {"writing": mine is not None and not mine.done, "failed": mine is not None and mine.failure is not None}

    def start(self, state: TrainState) -> None:
        """Begin to save `state`; the one before, if it is still under way, is waited for."""
        began = time.perf_counter()
        self._settle()
        self._retire()
        self._current = CheckpointSave.start(self.folder, self.engine, self.grid, state, self.identity)
        if not self.config.asynchronous:
            self._settle()
        self.recorder.checkpoint_started(state, time.perf_counter() - began)

    def advance(self, counted: Mapping[str, int]) -> None:
        """Publish the one under way, if the votes counted in a step say that every rank has written or one failed."""
        if self._current is not None and (counted["failed"] or not counted["writing"]):
            self._publish()

    def finish(self) -> None:
        """Wait for the one under way, publish it, and delete what need not be kept."""
        self._settle()
        self._retire()

    def _settle(self) -> None:
        if self._current is not None:
            self._current.wait()
            self._publish()

    def _publish(self) -> None:
        assert self._current is not None
        save, self._current = self._current, None
        folder = save.publish()
        self._published = save
        self.recorder.checkpoint_durable(save.state, folder, time.perf_counter() - save.started)

    def _retire(self) -> None:
        """Older ones go once the last one has been read back."""
        if self._published is not None:
            save, self._published = self._published, None
            save.retire(self.config.keep)
            for note in save.notes:
                if note not in self._told:
                    log.warning(note)
            self._told.update(save.notes)
