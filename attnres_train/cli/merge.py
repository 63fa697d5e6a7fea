"""`attnres merge`: the mean of checkpoints' weights as a checkpoint."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from attnres_train.cli.command import Answer, Command
from attnres_train.cli.export import checkpoint_of
from attnres_train.errors import refuse
from attnres_train.paths import path_argument
from attnres_train.words import counted

_MIB = 2**20
_EPILOG = """\
Every weight of OUT is the mean of that weight, in float64, rounded once to fp32. Checkpoints may be of any layouts and
runs, of one model and one tokenizer; of a run the newest whole one is taken. Every byte is held against its checksum
first, one tensor is in memory at a time, and OUT is published by one rename; its manifest says what it was made of.
It has weights alone: a run begins with it by checkpoint.resume = OUT and checkpoint.load = "weights".

  attnres merge runs/my/checkpoints/step-* my-mean
  attnres merge runs/seed-1 runs/seed-2 runs/seed-3 my-mean --weights 1 2 1
  attnres export my-mean my-model
"""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", metavar="CHECKPOINT", nargs="+", type=path_argument)
    parser.add_argument("folder", metavar="OUT", type=path_argument, help="made by this; must not exist")
    of_each = "of each checkpoint in the mean, at the end of the line; all 1"
    parser.add_argument("--weights", nargs="+", type=_weight, metavar="W", help=of_each)


def _weight(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number (OUT stands before --weights)") from None
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is no weight above 0")
    return value


def _answer(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    count = len(options.checkpoints)
    weights = options.weights or [1.0] * count
    if len(weights) != count:
        what = f"{counted(len(weights), 'weight')} for {counted(count, 'checkpoint')}"
        raise refuse("--weights", what, "give one for each, in their order")
    # Only now: importing torch and megatron-core takes seconds.
    from attnres_train.parallel.light_imports import light_imports

    with light_imports():
        from attnres_train.checkpoint.origin import plain_origin
        from attnres_train.exchange.merge import merge

    checkpoints = [checkpoint_of(path) for path in options.checkpoints]
    try:
        made = merge(checkpoints, weights, options.folder)
    except OSError as error:
        raise refuse(str(options.folder), f"cannot be written: {error}", "mend it; nothing was left behind") from error
    found = {**made._asdict(), "folder": str(made.folder), "origin": plain_origin(made.origin)}
    size = f"{counted(made.parameters, 'parameter')} in {counted(made.tensors, 'tensor')}, {made.bytes / _MIB:,.1f} MiB"
    lines = [f"{made.folder}: the mean of {counted(count, 'checkpoint')}, {size}"]
    lines += [f"  {source.share:.4g} of {source.path} (step {source.step})" for source in made.origin.sources]
    lines.append(f"to begin with it: --checkpoint.resume {made.folder} --checkpoint.load weights")
    return Answer(found, "\n".join(lines))


COMMAND = Command(
    name="merge",
    help="write the mean of checkpoints' weights as a checkpoint",
    answer=_answer,
    options=_options,
    epilog=_EPILOG,
    usage="attnres merge CHECKPOINT [CHECKPOINT ...] OUT [--weights W [W ...]] [--json]",
)
