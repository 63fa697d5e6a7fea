"""`attnres evaluate`: the loss of a checkpoint, without training."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres_train.checkpoint.manifest import Manifest, read_manifest
from attnres_train.checkpoint.newest import checkpoint_of
from attnres_train.cli.command import Answer, Command
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem, Refused, refuse
from attnres_train.observe.record_lines import recorded_losses
from attnres_train.paths import path_argument
from attnres_train.progress import LossSum

if TYPE_CHECKING:
    from attnres_train.data.validation import ValidationData
    from attnres_train.evaluate.losses import Measured

_EPILOG = """\
Of a run the newest whole checkpoint is taken, with the run's own validation sets, as training evaluates them; other
corpora are named with --data, and then told apart. The configuration is the checkpoint's; keys of it can be overridden.

  attnres evaluate runs/my
  attnres evaluate runs/my/checkpoints/step-00010000 --data corpora/news corpora/code --samples 500

On several ranks, in any layout:

  torchrun --nproc-per-node 4 -m attnres_train.evaluate runs/my --parallel.tensor 2 --parallel.pipeline 2

By EleutherAI's harness, where lm-eval is installed:

  attnres evaluate runs/my --tasks hellaswag tasks/mine.yaml
"""
_ALL = 1 << 62
_OF_TOKENIZERS = ("--tokenizer", "--eod-piece")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN|CHECKPOINT", type=path_argument)
    data = "corpora to evaluate on; default: the run's data.valid"
    parser.add_argument("--data", action="extend", nargs="+", metavar="PREFIX", help=data)
    samples = "windows of each set, spread evenly; default: training.eval_samples; or `all`"
    parser.add_argument("--samples", type=_samples, metavar="N", help=samples)
    tasks = parser.add_argument_group(
        "tasks of EleutherAI's lm-eval, on an export that is made for it; nothing is fetched"
    )
    tasks.add_argument(
        "--tasks", action="extend", nargs="+", metavar="NAME|FILE", help="of the harness, or .yaml files"
    )
    tasks.add_argument("--batch", type=_count, default=8, metavar="N", help="requests at once; 8")
    tasks.add_argument("--limit", type=_count, metavar="N", help="at most so many documents of a task")
    tasks.add_argument("--shots", type=_shots, metavar="N", help="examples in front; default: the task's")
    tasks.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of the weights; fp32")
    tasks.add_argument("--tokenizer", type=path_argument, metavar="PATH", help="where the run's tokenizer lies now")
    tasks.add_argument("--eod-piece", metavar="PIECE", help="of a tokenizer.json: what ends documents")


def _samples(text: str) -> int:
    if text == "all":
        return _ALL
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of windows, 1 or more, nor `all`")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 1 or more")
    return int(text)


def _shots(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of examples, 0 or more")
    return int(text)


def _tasks(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    from attnres_train.evaluate.harness import TaskAsk, run_tasks, task_names, tasks_in_words

    beside = [*overrides[:1], *(["--data"] if options.data else []), *(["--samples"] if options.samples else [])]
    if beside:
        raise refuse("--tasks", f"takes no {beside[0]} beside it: a task brings its data", "run them one by one")
    ask = TaskAsk(
        options.path,
        task_names(options.tasks),
        batch=options.batch,
        limit=options.limit,
        shots=options.shots,
        dtype=options.dtype,
        device=None,
        tokenizer=options.tokenizer,
        eod_piece=options.eod_piece,
    )
    found = run_tasks(ask)
    return Answer(found, tasks_in_words(found))


def _answer(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    if options.tasks:
        return _tasks(options, overrides)
    from attnres_train.evaluate.settings import configuration
    from attnres_train.parallel.device import hide_gpus
    from attnres_train.parallel.light_imports import light_imports

    checkpoint = checkpoint_of(options.path)
    manifest = read_manifest(checkpoint)
    config = configuration(checkpoint, manifest, overrides, int(os.environ.get("WORLD_SIZE", "1"))).config
    sets = _open(config, manifest, options.data, options.samples)
    hide_gpus(config.parallel.device, os.environ)
    with light_imports():
        from attnres_train.evaluate.losses import measure, together
    measured = measure(checkpoint, config, sets)
    whole = together(list(measured.values()))
    recorded = None
    if options.data is None and options.samples in (None, config.training.eval_samples):
        run, step = checkpoint.absolute().parent.parent, manifest.step
        recorded = recorded_losses(run, first=step, last=step).get("loss/valid")
    found = {
        "checkpoint": str(checkpoint),
        "step": manifest.step,
        **_as_json(whole, config),
        "sets": {name: _as_json(one, config) for name, one in measured.items() if name},
        "recorded_loss": recorded,
    }
    return Answer(found, _as_text(checkpoint, measured, whole, config, recorded))


def _open(
    config: RunConfig, manifest: Manifest, prefixes: Sequence[str] | None, samples: int | None
) -> dict[str, ValidationData]:
    """The sets, checked against the tokenizer of the run. Raises Refused with all that is wrong with them."""
    from attnres_train.config.resolve import vocabulary_size
    from attnres_train.data.config import validation_sets
    from attnres_train.data.corpus import Cut
    from attnres_train.data.validation import ValidationData

    if prefixes is None and config.data.valid is None:
        raise refuse("--data", "not given, and the run has no data.valid", "name a corpus: --data PREFIX")
    named = {prefix: {prefix: 1.0} for prefix in prefixes or ()}
    cut = Cut(
        config.training.sequence_length,
        vocabulary_size(config),
        manifest.fingerprints.get("tokenizer"),
        isolate_documents=config.data.isolate_documents,
        read_all=config.data.verify == "all",
    )
    found: dict[str, ValidationData] = {}
    problems: list[Problem] = []
    for name, weights in (named or validation_sets(config.data.valid)).items():
        try:
            found[name] = ValidationData(weights, cut, samples or config.training.eval_samples)
        except Refused as refusal:
            problems += refusal.problems
    if problems:
        raise Refused(problems)
    return found


def _as_json(measured: Measured, config: RunConfig) -> dict[str, Any]:
    return {
        "loss": measured.loss.mean,
        "tokens": measured.loss.tokens,
        "samples": measured.samples,
        "bits_per_byte": measured.bits_per_byte,
        "positions": [
            {"from": first, "to": last, "loss": part.mean} for first, last, part in _stretches(measured, config)
        ],
    }


def _stretches(measured: Measured, config: RunConfig) -> list[tuple[int, int, LossSum]]:
    length = config.training.sequence_length // max(1, len(measured.positions))
    return [(n * length, (n + 1) * length, part) for n, part in enumerate(measured.positions) if part.tokens]


def _as_text(
    checkpoint: Path, measured: Mapping[str, Measured], whole: Measured, config: RunConfig, recorded: float | None
) -> str:
    lines = [f"{checkpoint}: {_in_words(whole)}"]
    if recorded is not None:
        lines.append(f"  the run recorded {recorded:.6f}")
    if len(measured) > 1:
        lines += [f"  {name}: {_in_words(one)}" for name, one in measured.items()]
    if stretches := _stretches(whole, config):
        lines.append("  by position in the window:")
        lines += [f"    {first:>7,} to {last - 1:>7,}  {part.mean:.4f}" for first, last, part in stretches]
    return "\n".join(lines)


def _in_words(measured: Measured) -> str:
    bits = measured.bits_per_byte
    per_byte = "" if bits is None else f", {bits:.4f} bits a byte"
    return f"loss {measured.loss.mean:.6f}{per_byte} on {measured.loss.tokens:,} tokens of {measured.samples:,} windows"


COMMAND = Command(
    name="evaluate",
    help="the loss of a checkpoint on validation data",
    answer=_answer,
    options=_options,
    epilog=_EPILOG,
    usage="attnres evaluate RUN|CHECKPOINT [--data PREFIX ...] [--samples N] [--json] [--section.key value ...]\n"
    "       attnres evaluate RUN|CHECKPOINT --tasks NAME|FILE ... [--json]",
    own_flags=(*("--data", "--samples", "--tasks", "--batch", "--limit", "--shots", "--dtype"), *_OF_TOKENIZERS),
)
