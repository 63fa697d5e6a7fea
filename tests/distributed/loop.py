"""The real training loop around the tiny model, without corpora and configuration files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attnres_train.checkpoint.choose import choose_checkpoint
from attnres_train.checkpoint.save import RunIdentity
from attnres_train.config.run_config import RunConfig
from attnres_train.data.corpus import Sample
from attnres_train.errors import ExitCode
from attnres_train.observe.claim import Claim
from attnres_train.observe.console import CONSOLE
from attnres_train.observe.metrics import MfuTerms
from attnres_train.observe.presence import Presence
from attnres_train.parallel.grid import build_grid
from attnres_train.trainer.loop import Run, train
from attnres_train.trainer.signals import StopRequest
from tests.distributed.tiny import TOKENS, VOCABULARY
from tests.distributed.training import SyntheticLoader, build_tiny


class SyntheticValidation:
    """A validation set of `size` random samples; `reads` has the positions of every read."""

    tokens_per_byte = 0.25

    def __init__(self, size: int, seed: int = 7):
        generator = np.random.default_rng(seed)
        self.tokens = generator.integers(0, VOCABULARY, (size, TOKENS + 1))
        self.reads: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def samples(self, positions: np.ndarray) -> list[Sample]:
        self.reads.append(positions.tolist())
        return [Sample(str(position), self.tokens[position]) for position in positions.tolist()]


def run_loop(
    config: RunConfig,
    folder: Path,
    stop: StopRequest | None = None,
    validation: Mapping[str, SyntheticValidation] | None = None,
    fingerprints: Mapping[str, str] | None = None,
) -> tuple[ExitCode, list[str]]:
    """Train in `folder` on the ranks of a test; the exit code, and what the console was told on this rank."""
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(CONSOLE).addHandler(handler)
    logging.getLogger(CONSOLE).setLevel(logging.INFO)
    folder.mkdir(exist_ok=True)
    checkpoint = choose_checkpoint(config.checkpoint.resume, folder, grid, load=config.checkpoint.load)
    origin = None if checkpoint is None else checkpoint.origin
    code = train(
        Run(
            config=config,
            grid=grid,
            parts=parts,
            loader=SyntheticLoader(grid, config.training.global_batch_size),
            validation=validation or {},  # type: ignore[arg-type]
            identity=RunIdentity(parts.pipeline.setup.layers_per_stage, fingerprints or {}, {}, origin),
            texts={"config.toml": ""},
            folder=folder,
            checkpoint=checkpoint,
            mfu=MfuTerms(1.0, None),
            stop=stop or StopRequest(lambda: None),
            presence=Presence(grid.rank, grid.world_size, lambda: None),
            claim=Claim(folder) if grid.rank == 0 else None,
        )
    )
    return code, told
