"""What every rank runs: `torchrun ... -m attnres_train.train CONFIG.toml [--section.key value ...]`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres_train.config.load import Loaded, load_checked
from attnres_train.config.resolve import resolved_split, run_folder, vocabulary_size
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import resolved_toml
from attnres_train.data.config import blend_weights
from attnres_train.data.corpus import TrainingData, ValidationData
from attnres_train.data.loader import BatchLoader
from attnres_train.errors import ExitCode, Refused, refuse
from attnres_train.model.size import training_flops_per_token
from attnres_train.observe.console import CONSOLE, log_file, start_logging
from attnres_train.parallel.grid import Grid, build_grid, start_process_group, stop_process_group
from attnres_train.tokenizer.sentencepiece import Tokenizer
from attnres_train.trainer.build import build_parts
from attnres_train.trainer.loop import Run, train
from attnres_train.trainer.signals import StopRequest

log = logging.getLogger(CONSOLE)


@dataclass(frozen=True)
class Corpora:
    """The opened corpora of a run, and what identifies them and their tokenizer."""

    train: TrainingData
    valid: ValidationData | None
    fingerprints: dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the configuration says and return the exit code.

    Launchers turn every code but 0 into 1, so rank 0 also leaves its code in the file that the environment
    variable ATTNRES_EXIT_CODE_FILE names, for the launch scripts.
    """
    code = train_or_refuse(sys.argv[1:] if arguments is None else arguments)
    if os.environ.get("RANK", "0") == "0" and "ATTNRES_EXIT_CODE_FILE" in os.environ:
        Path(os.environ["ATTNRES_EXIT_CODE_FILE"]).write_text(f"{int(code)}\n", encoding="utf-8")
    return code


def train_or_refuse(arguments: Sequence[str]) -> ExitCode:
    """Check, open, train; refusals come before any rank computes."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    stop = StopRequest()
    stop.listen()
    try:
        path, overrides = _arguments(arguments)
        loaded = load_checked(path, overrides, world_size)
        folder = run_folder(loaded.config, path)
        corpora = open_corpora(loaded.config)
        start_logging(folder, rank)
    except Refused as refusal:
        if rank == 0:
            print(f"refused:\n{refusal}", file=sys.stderr)
        return ExitCode.REFUSED
    try:
        return run(loaded, folder, corpora, stop)
    except Refused as refusal:
        log.error(f"refused:\n{refusal}")
        return ExitCode.REFUSED
    except Exception as error:
        log.exception("rank %d failed", rank)
        print(f"rank {rank} failed: {type(error).__name__}: {error}\n  log: {log_file(folder, rank)}", file=sys.stderr)
        return ExitCode.FAILED


def _arguments(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    if not arguments or arguments[0].startswith("-"):
        raise refuse("command line", "the configuration file comes first", "give CONFIG.toml [--section.key value ...]")
    return arguments[0], arguments[1:]


def open_corpora(config: RunConfig) -> Corpora:
    """Open what the configuration names. Raises Refused for damaged pairs or another tokenizer's."""
    tokenizer = Tokenizer.load(Path(config.tokenizer.model)) if config.tokenizer.model else None
    vocabulary = vocabulary_size(config)
    fingerprint = tokenizer.fingerprint if tokenizer else None
    training = config.training
    assert config.data.train is not None, "load_checked has seen to it"
    train_data = TrainingData(
        blend_weights(config.data.train), training.sequence_length, training.seed, vocabulary, fingerprint
    )
    valid = config.data.valid and ValidationData(
        blend_weights(config.data.valid), training.sequence_length, training.eval_samples, vocabulary, fingerprint
    )
    fingerprints = {"train": train_data.fingerprint, **({"tokenizer": fingerprint} if fingerprint else {})}
    return Corpora(train_data, valid or None, fingerprints)


def run(loaded: Loaded, folder: Path, corpora: Corpora, stop: StopRequest) -> ExitCode:
    """Build every part of a checked run and train."""
    config = loaded.config
    start_process_group(config.parallel.timeout_seconds)
    grid = build_grid(config.parallel, config.training.seed)
    vocabulary = vocabulary_size(config)
    split = resolved_split(config, vocabulary)
    if grid.rank == 0:
        (folder / "config.toml").write_text(resolved_toml(config, loaded.origins), encoding="utf-8")
    _announce(config, grid, split, vocabulary, corpora)
    training = config.training
    outcome = train(
        Run(
            config=config,
            grid=grid,
            parts=build_parts(config, grid, split, vocabulary),
            loader=BatchLoader(
                corpora.train, training.global_batch_size, training.micro_batch_size, grid.data_rank, grid.data
            ),
            validation=corpora.valid,
            fingerprints=corpora.fingerprints,
            folder=folder,
            flops_per_token=training_flops_per_token(
                config.model, config.model.padded_vocabulary(vocabulary, config.parallel.tensor), training.sequence_length
            ),
            stop=stop,
        )
    )
    stop_process_group()
    return outcome


def _announce(config: RunConfig, grid: Grid, split: tuple[int, ...], vocabulary: int, corpora: Corpora) -> None:
    """The facts of a run in a few lines, before the first step."""
    parallel, training = config.parallel, config.training
    padded = config.model.padded_vocabulary(vocabulary, parallel.tensor)
    log.info(
        f"{grid.world_size} ranks: tensor {parallel.tensor}, pipeline {parallel.pipeline} x {parallel.virtual}, "
        f"data {grid.data}; layers a stage {split}; residual {config.residual.mode}"
    )
    log.info(f"vocabulary {vocabulary}, padded to {padded}; {training.precision} on {grid.device}")
    for source in corpora.train.summary(training.steps * training.global_batch_size):
        log.info(
            f"{source.prefix}: {source.tokens:,} tokens, {source.samples:,} samples; "
            f"{source.draws:,} draws, {source.epochs:.2f} epochs"
            if source.samples and source.tokens
            else f"{source.prefix}: weight 0, unused"
        )


if __name__ == "__main__":
    sys.exit(main())
