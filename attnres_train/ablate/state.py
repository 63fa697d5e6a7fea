"""Which runs of a grid are done, begun or not begun; and every problem of all of them before one starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from attnres_train.ablate.grid import PlannedRun, RunGrid
from attnres_train.checkpoint.folder import checkpoints_folder, named_steps, problems_at_a_glance
from attnres_train.config.keys import all_keys
from attnres_train.config.load import load, load_checked
from attnres_train.config.run_config import RunConfig
from attnres_train.config.show import config_values
from attnres_train.errors import Problem, Refused
from attnres_train.setup import Setup

Stand = Literal["done", "begun", "not begun"]
_MOST_NAMES = 3


@dataclass(frozen=True)
class CheckedRun:
    """A run whose configuration is sound. `done_steps` is the step of its newest whole checkpoint."""

    planned: PlannedRun
    steps: int
    done_steps: int
    stand: Stand
    model_flops: float
    """Of the whole run."""

    @property
    def flops_left(self) -> float:
        return self.model_flops * (1 - self.done_steps / self.steps)


def check_all(grid: RunGrid) -> list[CheckedRun]:
    """Every run of the grid, held against all rules.

    Raises Refused with the problems of all of them, one that several have once.
    """
    checked: list[CheckedRun] = []
    found: dict[tuple[str, str, str], list[str]] = {}
    for planned in grid.runs:
        try:
            checked.append(_checked(grid, planned))
        except Refused as refusal:
            for problem in refusal.problems:
                found.setdefault((problem.key, problem.message, problem.remedy), []).append(planned.name)
    if found:
        told = ((key, f"{message}; {_of(names, grid)}", remedy) for (key, message, remedy), names in found.items())
        raise Refused([Problem(*words) for words in told])
    return checked


def _checked(grid: RunGrid, planned: PlannedRun) -> CheckedRun:
    config = load_checked(grid.base, planned.overrides, grid.ranks, "train").config
    if problems := list(_another_configuration(config, planned.folder)):
        raise Refused(problems)
    steps = config.training.steps
    saved = named_steps(checkpoints_folder(planned.folder)).items()
    whole = [step for step, path in saved if not problems_at_a_glance(path)]
    done_steps = min(max(whole, default=0), steps)
    begun: Stand = "begun" if (planned.folder / "config.toml").exists() else "not begun"
    stand: Stand = "done" if done_steps == steps else begun
    return CheckedRun(planned, steps, done_steps, stand, Setup.of(config).step_flops * steps)


def why_another(grid: RunGrid, planned: PlannedRun) -> str | None:
    """What in the folder of a run is not what the grid says now, in words; None for a run of this grid.

    Raises Refused where the configuration of the grid cannot be made.
    """
    config = load(grid.base, planned.overrides).config
    problem = next(_another_configuration(config, planned.folder), None)
    return None if problem is None else problem.message


def _another_configuration(config: RunConfig, folder: Path) -> Iterator[Problem]:
    """Problems of a run folder that holds a run of other values; its own place is not one of them."""
    path = folder / "config.toml"
    if not path.exists():
        if named_steps(checkpoints_folder(folder)):
            yield Problem(str(folder), "it has checkpoints but no config.toml to say of what", "remove or rename it")
        return
    try:
        there = load(path).config
    except Refused as refusal:
        yield Problem(str(path), f"cannot be read: {refusal.problems[0].message}", "remove or rename the folder")
        return
    there = replace(there, training=replace(there.training, run_folder=config.training.run_folder))
    keys = all_keys()
    wanted, has = config_values(config, keys), config_values(there, keys)
    differing = [f"{key} {has[key]!r}, wanted {wanted[key]!r}" for key in keys if has[key] != wanted[key]]
    if differing:
        message = f"it holds a run of another configuration: {'; '.join(differing)}"
        yield Problem(str(folder), message, "remove or rename it, or choose another `folder`")


def _of(names: Sequence[str], grid: RunGrid) -> str:
    if len(names) == len(grid.runs):
        return "in every run"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"in {', '.join(names[:_MOST_NAMES])}{more}"
