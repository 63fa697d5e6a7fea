"""`attnres check`: a configuration against every rule."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from attnres_train.cli.command import OVERRIDES, Answer, Command, add_configuration
from attnres_train.config.load import COMMAND_LINE, DEFAULT, Loaded, load, load_checked
from attnres_train.config.resolve import run_folder
from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Refused
from attnres_train.launch.gpus import gpus_here
from attnres_train.observe.claim import SECONDS_TO_END, refuse_in_use
from attnres_train.words import counted


def _options(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    parser.add_argument("--idle", action="store_true", help="refuse also where a run is writing to the run folder")


def _check(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    if options.idle:
        _refuse_in_use(options.config, overrides)
    loaded = load_checked(options.config, overrides, options.world, "check")
    notes = _notes(loaded)
    if not options.idle:  # a launch: its ranks will say it, each of its own node
        notes = [*notes, *_about_this_machine(loaded.config)]
    origins = list(loaded.origins.values())
    given, defaults = origins.count(COMMAND_LINE), origins.count(DEFAULT)
    world = loaded.config.parallel.model_ranks if options.world is None else options.world
    lines = [
        f"{options.config}: no problem on {counted(world, 'rank')}",
        f"  {counted(len(origins) - given - defaults, 'key')} from the file, {given} from the command line, "
        f"{counted(defaults, 'default')}",
        *(f"  note: {note}" for note in notes),
    ]
    return Answer({"problems": [], "notes": notes}, "\n".join(lines))


def _refuse_in_use(path: Path, overrides: Sequence[str]) -> None:
    """Before what the living run makes hard to judge, such as what is left to train."""
    try:
        config = load(path, overrides).config
    except Refused:
        return  # told with everything else that is wrong
    refuse_in_use(run_folder(config, path), SECONDS_TO_END)


def _notes(loaded: Loaded) -> list[str]:
    """What is no problem and yet worth a line."""
    if loaded.config.data.train is None:
        return [*loaded.notes, "enough for a plan; training also needs data.train"]
    from attnres_train.corpora import open_corpora  # imports numpy, which a plan can do without

    return [*loaded.notes, *open_corpora(loaded.config).notes]


def _about_this_machine(config: RunConfig) -> list[str]:
    """Why a rank would be refused here, where this machine may be one that trains: not without GPUs."""
    node, wish = gpus_here(), config.parallel.device
    if wish == "cpu" or not node.nvidia:
        return ["this machine has no GPU of NVIDIA's"] if wish == "cuda" and not node.amd else []
    from attnres_train.parallel.device import device_problem, torch_gpus

    problem = device_problem(wish, node, torch_gpus(), os.environ)
    return [f"a run here would be refused: {problem.message}; {problem.remedy}"] if problem else []


COMMAND = Command(
    name="check",
    help="hold a configuration against every rule, all problems at once",
    answer=_check,
    options=_options,
    epilog=OVERRIDES.format(command="check"),
    usage="attnres check CONFIG.toml [--world N] [--idle] [--json] [--section.key value ...]",
    describes=True,
    own_flags=("--world", "--idle"),
)
