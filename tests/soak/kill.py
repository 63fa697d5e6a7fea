"""A run killed again and again, at any moment, must end as one that was left alone.

    python -m tests.soak.kill                      100 kills of 2 ranks: about 20 minutes on 2 cores
    python -m tests.soak.kill --kills 30 --ranks 4

A tiny run (pipeline 2, asynchronous saves every 3 steps, two kept, evaluation every 7) is launched with
launch/torchrun.sh and killed with SIGKILL: one rank, all ranks, torchrun, the launch script, or everything at once. The
moment is drawn anew each time: a time within start-up, or the end of loading, or a number of steps and then an event
(an evaluation, deleting old checkpoints, a save, its publishing, its name), each with a random delay. The same command
is launched again, without any help, until all kills are spent; then it may end. Losses, gradient norms, validation
losses, samples, the last weights, moments and random streams must be those of an undisturbed run, bit for bit, each
step once, and nothing left over. After each kill every process must be gone within `--patience` seconds and train no
further, no launch may stand still for as long, none may end by itself, and what was said to be durable must be there.

Exit code 0, or 1 with the failures, and the folder is kept.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.bench.namespaces import clean_up_on_signals
from tests.end_to_end.conftest import ROOT, WORDS, tool
from tests.soak.launched import PHASES, Intervals, Launch
from tests.soak.outcome import differences

TARGETS = ("rank", "ranks", "torchrun", "script", "everything")
INTERVALS = Intervals(save=3, evaluation=7)
MOST_STEPS_AIMED_FOR, STEPS_A_KILL = 8, 12
MOST_STEPS_AFTER = 8
"""Of ranks that save and end when their launcher dies: signals take a while to arrive on a busy machine."""
MOST_FAILURES = 10
POLL_SECONDS = 0.002

AIMS = {
    "start-up": 20, "load": 10, "step": 10, "evaluation": 10, "retention": 10, "save": 15, "publish": 15, "named": 10,
}  # fmt: skip
"""How often each is drawn, in percent."""
SPREAD_SECONDS = {
    "load": 0.3, "step": 0.05, "evaluation": 0.02, "retention": 0.01, "save": 0.08, "publish": 0.004, "named": 0.006,
}  # fmt: skip

CONFIG = """
[model]
num_layers = 2
hidden_size = 32
ffn_hidden_size = 48
num_attention_heads = 4
[residual]
mode = "block"
block_size = 2
[tokenizer]
model = "{corpus}/tokenizer.model"
[data]
train = "{corpus}/train"
valid = "{corpus}/valid"
[optimizer]
learning_rate = 1e-3
[schedule]
warmup_steps = 4
[parallel]
pipeline = {pipeline}
[training]
global_batch_size = {batch}
micro_batch_size = 1
sequence_length = 16
steps = {steps}
precision = "fp32"
eval_samples = 8
eval_interval_steps = {eval_interval}
[checkpoint]
interval_steps = {save_interval}
keep = 2
[observe]
sample_log = true
"""


class Kill(NamedTuple):
    launch: int
    aim: str
    target: str
    phase: str
    seconds: float
    """From the launch to the kill."""
    steps: int
    """Done by this launch until then."""
    gone_seconds: float


@dataclass
class Soak:
    """What has happened so far."""

    launches: int = 0
    kills: list[Kill] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    """Seconds from a launch to its first step."""
    durable: int = 0
    """The newest step whose checkpoint was said to be durable."""
    started: float = field(default_factory=time.monotonic)


def main() -> int:
    options = _options()
    clean_up_on_signals()
    scratch = Path(tempfile.mkdtemp(prefix="attnres-soak-", dir=options.folder))
    make_corpus(scratch)
    steps = STEPS_A_KILL * (options.kills + 1)
    (scratch / "soak.toml").write_text(_config(scratch, options.ranks, steps), encoding="utf-8")
    soak = Soak()
    with _launch(soak, scratch, "undisturbed", options) as launch:
        _end(soak, launch, options.patience)
    generator = random.Random(options.seed)
    while len(soak.kills) < options.kills and len(soak.failures) < MOST_FAILURES:
        with _launch(soak, scratch, "killed", options) as launch:
            _once(soak, launch, options, generator)
    if len(soak.failures) < MOST_FAILURES:
        with _launch(soak, scratch, "killed", options) as launch:
            _end(soak, launch, options.patience)
        soak.failures += differences(scratch / "killed", scratch / "undisturbed", steps)
    _report(soak, options, scratch, steps)
    if not soak.failures:
        shutil.rmtree(scratch)
    return 1 if soak.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS, help="what is killed")
    parser.add_argument("--aims", nargs="+", choices=tuple(AIMS), default=tuple(AIMS), help="when")
    parser.add_argument("--patience", type=float, default=30, help="seconds without any sign of life (%(default)s)")
    parser.add_argument("--folder", help="where the folder of the trial is made (default: the system's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a summary")
    return parser.parse_args()


def make_corpus(folder: Path) -> None:
    """300 documents in 320 pieces, made with the real tools."""
    generator = random.Random(1)
    with open(folder / "all.jsonl", "w", encoding="utf-8") as file:
        for _ in range(300):
            text = " ".join(generator.choices(WORDS, k=generator.randint(20, 60)))
            file.write(json.dumps({"text": text}) + "\n")
    train, valid = folder / "train.jsonl", folder / "valid.jsonl"
    tool("split", folder / "all.jsonl", "--train", train, "--valid", valid, "--valid-fraction", "0.2")
    tool("train_tokenizer", train, "--vocab-size", "320", "--output", folder / "tokenizer.model")
    for path in (train, valid):
        made_with = ("--tokenizer", folder / "tokenizer.model", "--workers", "1")
        tool("preprocess", path, "--output", path.with_suffix(""), *made_with)


def _config(corpus: Path, ranks: int, steps: int) -> str:
    pipeline = 2 if ranks % 2 == 0 else 1
    intervals = {"save_interval": INTERVALS.save, "eval_interval": INTERVALS.evaluation}
    batch = 2 * ranks // pipeline
    return CONFIG.format(corpus=corpus, pipeline=pipeline, batch=batch, steps=steps, **intervals)


def _launch(soak: Soak, scratch: Path, name: str, options: argparse.Namespace) -> closing[Launch]:
    """Launch the run `name`; the undisturbed one is the first, number 0."""
    number, run = soak.launches, scratch / name
    soak.launches += 1
    command = [ROOT / "launch/torchrun.sh", scratch / "soak.toml", "--ranks", options.ranks]
    command += ["--training.run_folder", run]
    return closing(Launch([str(part) for part in command], scratch, number, run, INTERVALS))


def _once(soak: Soak, launch: Launch, options: argparse.Namespace, generator: random.Random) -> None:
    """Let `launch` go on until the moment that is drawn, kill it, and wait for the end of all of it."""
    aim = generator.choices(options.aims, [AIMS[name] for name in options.aims])[0]
    target, least = generator.choice(options.targets), generator.randint(1, MOST_STEPS_AIMED_FOR)
    start_up, within, which = generator.random() * median(soak.starts or [10]), generator.random(), generator.random()
    reached = _wait(launch, options.patience, lambda: _is_time(launch, aim, least, start_up))
    if reached is not None:
        _fail(soak, launch, f"before it was killed, it {reached}")
        _judge(soak, launch)
        return
    time.sleep(within * SPREAD_SECONDS.get(aim, 0))
    hit, phase = launch.kill(target, which)
    killed, steps = launch.age, launch.steps
    if left := launch.wait_until_gone(options.patience):
        _fail(soak, launch, f"{hit} killed in phase `{phase}`: left after {options.patience:.0f} s: {', '.join(left)}")
    if launch.steps > steps + MOST_STEPS_AFTER:
        _fail(soak, launch, f"{hit} killed in phase `{phase}`: {launch.steps - steps} steps more were trained")
    _judge(soak, launch)
    soak.kills.append(Kill(launch.number, aim, hit, phase, killed, steps, launch.age - killed))
    print(_in_words(soak.kills[-1]), file=sys.stderr, flush=True)


def _is_time(launch: Launch, aim: str, least: int, start_up: float) -> bool:
    """Whether the event that `aim` names is there."""
    if aim == "start-up":
        return launch.age >= start_up
    if launch.began_at is None or (aim != "load" and launch.steps < least):
        return False
    match aim:
        case "retention":
            return launch.saves
        case "save":
            return bool(launch.partials())
        case "publish":
            return launch.is_written
        case "named":
            return launch.is_named
        case "evaluation":
            return launch.evaluates
    return True


def _wait(launch: Launch, patience: float, event: Any) -> str | None:
    """Wait for `event`; what came instead, in words."""
    looked = 0.0
    while not event():
        time.sleep(POLL_SECONDS)
        launch.read()
        code = launch.process.poll()
        if code is not None:
            return f"ended with code {code}"
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            if launch.is_stuck(patience):
                return f"stood still for {patience:.0f} s: {launch.pids()}"
    return None


def _end(soak: Soak, launch: Launch, patience: float) -> None:
    """Let `launch` go on to its end."""
    ended = _wait(launch, patience, lambda: False)
    if ended != "ended with code 0":
        _fail(soak, launch, f"left alone, it {ended}")
    if left := launch.wait_until_gone(patience):
        _fail(soak, launch, f"ended, but {', '.join(left)} did not")
    if launch.number:
        _judge(soak, launch)
    elif launch.first_step_seconds:
        soak.starts.append(launch.first_step_seconds)


def _judge(soak: Soak, launch: Launch) -> None:
    """Whether it began where it should have, and what it leaves to the next."""
    if launch.began_at is not None and launch.began_at < soak.durable:
        _fail(soak, launch, f"began at step {launch.began_at}, though step {soak.durable} had been durable")
    soak.durable = max(soak.durable, launch.durable)
    if launch.first_step_seconds:
        soak.starts = [*soak.starts, launch.first_step_seconds][-9:]


def _fail(soak: Soak, launch: Launch, text: str) -> None:
    soak.failures.append(f"launch {launch.number}: {text} (it said: {launch.output}; log: {launch.run}/logs)")
    print(soak.failures[-1], file=sys.stderr, flush=True)


def _in_words(kill: Kill) -> str:
    return (
        f"{kill.launch:4d}  aimed at {kill.aim:10s}  {kill.target:10s} killed in {kill.phase:21s}  "
        f"{kill.seconds:5.1f} s, {kill.steps} steps, gone in {kill.gone_seconds:.1f} s"
    )


def _report(soak: Soak, options: argparse.Namespace, scratch: Path, steps: int) -> None:
    minutes = (time.monotonic() - soak.started) / 60
    hits = {phase: Counter(kill.target for kill in soak.kills if kill.phase == phase) for phase in PHASES}
    if options.json:
        shown = {"kills": [kill._asdict() for kill in soak.kills], "failures": soak.failures, "steps": steps}
        print(json.dumps({**shown, "minutes": minutes, "phases": hits, "folder": str(scratch)}))
        return
    print(f"{len(soak.kills)} kills of {options.ranks} ranks on the way to step {steps}, {minutes:.1f} minutes")
    print("".join(name.rjust(12) for name in ("all", *TARGETS)).rjust(22 + 12 * 6))
    for phase, count in hits.items():
        print(phase.ljust(22) + "".join(str(n or "").rjust(12) for n in (count.total(), *(count[t] for t in TARGETS))))
    slowest = max((kill.gone_seconds for kill in soak.kills), default=0)
    print(f"start to first step: median {median(soak.starts or [0]):.1f} s; gone after a kill: {slowest:.1f} s at most")
    for failure in soak.failures:
        print(f"FAILED {failure}")
    print(f"kept: {scratch}" if soak.failures else "the end is that of an undisturbed run, bit for bit")


if __name__ == "__main__":
    sys.exit(main())
