"""Records what a run reports. Rank 0 writes, whichever rank owns the loss; every rank makes the calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch.distributed as dist

from attnres_train.config.run_config import RunConfig
from attnres_train.observe.console import CONSOLE, Remaining, step_line, validation_words
from attnres_train.observe.depth_look import DepthLook
from attnres_train.observe.depth_recorder import DepthRecorder
from attnres_train.observe.event_file import EventFile
from attnres_train.observe.metrics import LogInterval, MfuTerms, over_ranks, step_metrics, validation_metrics
from attnres_train.observe.record_lines import parse_record
from attnres_train.observe.sinks import Guarded, Sink, guarded_lines
from attnres_train.observe.wandb_sink import WandbSink
from attnres_train.parallel.grid import Grid
from attnres_train.progress import LossSum, StepReport, TrainState

log = logging.getLogger(CONSOLE)


class Recorder:
    """Curves and lines of a run that continues at `state`."""

    def __init__(self, config: RunConfig, grid: Grid, run_folder: Path, state: TrainState, mfu: MfuTerms):
        self.config = config
        self.grid = grid
        self.mfu = mfu
        self.sinks = _open_sinks(config, run_folder, state.step) if grid.keeps_run else []
        looks = config.observe.depth_interval is not None and grid.keeps_run
        self._depth = DepthRecorder(run_folder, state.step, self._picture) if looks else None
        wanted = config.observe.sample_log and grid.keeps_run
        self.sample_sink = guarded_lines(run_folder / "samples.jsonl", state.step) if wanted else None
        self._remaining = Remaining()
        self._restart_clock(state)

    def step(self, state: TrainState, report: StepReport, sample_ids: Sequence[Sequence[str]], *, last: bool) -> None:
        """Record one training step where it is due; the last of this process always is."""
        for phase, spent in report.seconds.items():
            self._phases[phase] = self._phases.get(phase, 0.0) + spent
        if self.config.observe.sample_log:
            self._record_samples(state.step, sample_ids)
        if not (last or self.config.observe.records(state.step, applied=report.applied)):
            return
        peaks, phases = over_ranks(self.grid, report.kept_bytes, self._phases)
        seconds = time.perf_counter() - self._since
        interval = LogInterval(seconds, phases, state.step - self._logged.step, state.tokens - self._logged.tokens)
        values = step_metrics(state, report, interval, self.mfu, devices=self.grid.world_size, peaks=peaks)
        self._write(state, values)
        steps = self.config.training.steps
        left = self._remaining.seconds(time.perf_counter(), state.step, steps, values["time/step_seconds"])
        log.info(step_line(state.step, steps, values, left))
        self._restart_clock(state)

    def depth(self, state: TrainState, look: DepthLook) -> None:
        """Record a look at the depth during the step that led to `state`."""
        self._write(state, look.curves())
        if self._depth is not None:
            self._depth.record(state.step, look)

    def evaluation(
        self,
        state: TrainState,
        losses: Mapping[str, LossSum],
        tokens_per_byte: Mapping[str, float | None],
        seconds: float,
        recorded: Collection[str] = (),
    ) -> None:
        """Tell the losses of the validation sets, by name, and record them but for the tags that the step has
        already."""
        values = validation_metrics(losses, tokens_per_byte)
        if new := {tag: value for tag, value in values.items() if tag not in recorded}:
            self._write(state, new)
        log.info(f"step {state.step}  validation loss {validation_words(values)} ({seconds:.1f} s)")
        for name in filter(None, losses):
            log.info(f"  {name}: {validation_words(values, name)}")
        if len(new) < len(values):
            log.info("  the curves keep what this step was evaluated on before")
        self._restart_clock(state)

    def checkpoint_started(self, state: TrainState, blocked_seconds: float) -> None:
        """Record that saving `state` has begun, and for how long that kept the loop."""
        self._write(state, {"time/checkpoint_seconds": blocked_seconds})
        log.info(f"step {state.step}  checkpoint started ({blocked_seconds:.1f} s)")
        self._restart_clock(state)

    def checkpoint_durable(self, state: TrainState, folder: Path, seconds: float) -> None:
        """Record that the checkpoint of `state` is published in `folder`, `seconds` after it was begun."""
        self._write(state, {"time/checkpoint_durable_seconds": seconds})
        log.info(f"step {state.step}  checkpoint durable: {folder} ({seconds:.1f} s)")

    def text(self, step: int, tag: str, words: str) -> None:
        """Words for the text tab; called on rank 0 alone."""
        for sink in self.sinks:
            sink.text(step, tag, words)

    def close(self) -> None:
        if self._depth is not None:
            self._depth.close()
        for sink in [*self.sinks, *([self.sample_sink] if self.sample_sink else [])]:
            sink.close()

    def _write(self, state: TrainState, values: dict[str, float]) -> None:
        position = {"tokens": state.tokens, "samples": state.samples}
        for sink in self.sinks:
            sink.write(state.step, {**position, **values})

    def _picture(self, step: int, tag: str, png: bytes) -> None:
        for sink in self.sinks:
            sink.picture(step, tag, png)

    def _restart_clock(self, state: TrainState) -> None:
        """Time from here on counts for the next logged step; evaluation and saving never do."""
        self._since = time.perf_counter()
        self._logged = state
        self._phases: dict[str, float] = {}

    def _record_samples(self, step: int, sample_ids: Sequence[Sequence[str]]) -> None:
        """The ids that the ranks really used, gathered from one rank of each replica, in step order."""
        grid = self.grid
        everybody: list[tuple[int, Sequence[Sequence[str]]] | None] = [None] * grid.world_size
        mine = (grid.data_rank, sample_ids) if grid.speaks_for_replica else None
        dist.all_gather_object(everybody, mine, group=grid.control)
        if self.sample_sink is not None:
            parts = [part for part in everybody if part is not None]
            replicas = [ids for _, ids in sorted(parts, key=lambda part: part[0])]
            in_order = [i for micro in zip(*replicas, strict=True) for batch in micro for i in batch]
            self.sample_sink.write(step, {"samples": in_order})


def recorded_tags(grid: Grid, run_folder: Path, step: int) -> set[str]:
    """The tags that `metrics.jsonl` has of `step`, as rank 0 sees it. A collective."""
    found: list[set[str]] = [set()]
    path = run_folder / "metrics.jsonl"
    if grid.keeps_run and path.is_file():
        with open(path, "rb") as lines:
            records = [record for line in lines if (record := parse_record(line)) and record["step"] == step]
        found = [set().union(*records)]
    dist.broadcast_object_list(found, src=0, group=grid.control)
    return found[0]


def _open_sinks(config: RunConfig, run_folder: Path, step: int) -> list[Sink]:
    sinks: list[Sink] = [guarded_lines(run_folder / "metrics.jsonl", step)]
    if config.observe.tensorboard:
        sinks.append(Guarded(lambda: EventFile(run_folder / "tensorboard", step), "tensorboard"))
    project = config.observe.wandb_project
    if project is not None:
        sinks.append(Guarded(lambda: WandbSink(project, run_folder, asdict(config)), "wandb", once=True))
    return sinks
