"""Rules of the `[observe]` section."""

from __future__ import annotations

from collections.abc import Iterator

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem, Unused


def problems(config: RunConfig, world: int | None) -> Iterator[Problem]:
    """What is asked for must come: a trace of steps and ranks that there are."""
    observe, steps = config.observe, config.training.steps
    if observe.profile_steps is not None:
        first, last = observe.profile_steps
        if not 1 <= first <= last <= steps:
            message = f"{first} to {last} are no steps of 1 to training.steps = {steps}"
            remedy = "write the first and the last step, like [10, 12]"
            yield Unused("observe.profile_steps", message, remedy, made_by=("training.steps",))
        if not observe.profile_ranks:
            message = "no rank, though observe.profile_steps asks for a trace"
            yield Problem("observe.profile_ranks", message, "write ranks, like [0], or leave observe.profile_steps out")
    ranks = config.parallel.model_ranks if world is None else world
    absent = [rank for rank in observe.profile_ranks if not 0 <= rank < ranks]
    if absent and (world is not None or min(absent) < 0):
        message = f"rank {absent[0]} is not one of {ranks}, which count from 0"
        yield Problem("observe.profile_ranks", message, f"write ranks below {ranks}")


def file_problems(config: RunConfig) -> Iterator[Problem]:
    """Whether the library is there that curves are to be sent with."""
    from importlib.util import find_spec

    if config.observe.wandb_project is not None and find_spec("wandb") is None:
        remedy = "pip install wandb, or leave it out"
        yield Problem("observe.wandb_project", "set, but wandb is not installed", remedy)
