"""`attnres init`: its options, and what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from attnres_train.cli.command import Answer, Command, ranks
from attnres_train.errors import refuse
from attnres_train.paths import path_argument
from attnres_train.starter.rules import TOKENS_A_PARAMETER
from attnres_train.starter.shape import read_size
from attnres_train.words import counted

INIT = """\
Writes a complete configuration for a prepared corpus: a model of the size, batch and rates by published rules that it
states, and the fastest layout for the ranks. It passes `attnres check`; every number is yours to change.

  attnres init corpus --size 100m --ranks 8 --output my.toml
  attnres init corpus/train --size 1.3b --ranks 64 --device h200    to the screen, laid out for another device
"""


def _init(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    """Write the configuration."""
    from attnres_train.starter.corpus import find_corpus  # imports numpy
    from attnres_train.starter.write import starter

    output: Path | None = options.output
    if output is not None and output.exists():
        raise refuse("--output", f"{output} is there already", "name another file")
    if output is not None and not output.parent.is_dir():
        raise refuse("--output", f"there is no folder {output.parent.absolute()}", "make it, or name another file")
    found = find_corpus(options.corpus, options.tokenizer)
    made = starter(found, options.size, options.ranks, options.device)
    tokens = made.recipe.steps * made.recipe.global_batch_size * made.recipe.sequence_length
    rule = f"where {TOKENS_A_PARAMETER} are the rule: a smaller model may learn more of this text"
    share = tokens / made.shape.parameters
    notes = [f"{tokens:,} tokens are {share:.2g} a parameter, {rule}"] if share < TOKENS_A_PARAMETER / 4 else []
    facts = {
        "output": None if output is None else str(output),
        "text": made.text,
        "parameters": made.shape.parameters,
        "steps": made.recipe.steps,
        "tokens": tokens,
        "learning_rate": made.config.optimizer.learning_rate,
        "notes": notes,
    }
    if output is None:
        return Answer(facts, made.text.rstrip())
    output.write_text(made.text, encoding="utf-8")
    lines = [f"{output}: {made.shape.parameters:,} parameters, {counted(made.recipe.steps, 'step')}"]
    lines += [f"  note: {note}" for note in notes]
    return Answer(facts, "\n".join([*lines, f"  next: attnres plan {output} --world {options.ranks}"]))


def _options(command: argparse.ArgumentParser) -> None:
    where = "prefix of a .bin/.idx pair, or a folder with the pair `train`, and perhaps `valid`"
    command.add_argument("corpus", metavar="CORPUS", type=path_argument, help=where)
    command.add_argument("--size", required=True, type=_size, help="parameters in all, such as 20m, 350m, 1.3b")
    command.add_argument("--ranks", required=True, type=ranks, metavar="N")
    command.add_argument("--output", metavar="FILE.toml", type=path_argument, help="default: to the screen")
    made_with = "the one that the pair was made with; default: the file beside it that is that"
    command.add_argument("--tokenizer", metavar="FILE", type=path_argument, help=made_with)
    device = "what to lay it out for, as in `attnres plan` (default: %(default)s)"
    command.add_argument("--device", metavar="NAME|FILE", default="h100-sxm", help=device)


def _size(text: str) -> int:
    try:
        return read_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


COMMAND = Command(
    name="init",
    help="write a first configuration for a prepared corpus",
    answer=_init,
    options=_options,
    epilog=INIT,
)
