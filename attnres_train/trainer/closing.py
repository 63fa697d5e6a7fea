"""The last words of a run that ended in order: what was done, why it ends here, what comes next."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from attnres_train.checkpoint.folder import checkpoint_name, checkpoints_folder
from attnres_train.config.run_config import RunConfig
from attnres_train.progress import TrainState
from attnres_train.words import counted


def closing(config: RunConfig, folder: Path, state: TrainState, *, stopped: bool, trained: bool = True) -> list[str]:
    """A few lines. `stopped`: on a signal; `trained`: this process made steps."""
    words = [_why(config, state, stopped, trained)]
    if trained:
        words.append(f"  checkpoint  {checkpoints_folder(folder) / checkpoint_name(state.step)}")
    words.append(f"  look at it  {_command('attnres', 'report', folder)}; {_command('attnres', 'inspect', folder)}")
    if config.observe.tensorboard:
        words.append(f"  curves      {_command('tensorboard', '--logdir', folder / 'tensorboard')}")
    return words


def _command(tool: str, *arguments: object) -> str:
    """A line to paste into a shell: the tool by its path where the shell would not find it by its name."""
    name = tool if shutil.which(tool) else str(Path(sys.executable).with_name(tool))
    return shlex.join([name, *map(str, arguments)])


def _why(config: RunConfig, state: TrainState, stopped: bool, trained: bool) -> str:
    steps = config.training.steps
    if stopped:
        return f"stopped on a signal after step {state.step}; {_how_to_go_on(config.checkpoint.resume)}"
    if state.step < steps:
        where = f"{state.step} of {steps} steps"
        if not trained:
            return f"training.stop_after_steps is reached: {where} are done, nothing to train"
        return f"stopped after {where}, as training.stop_after_steps says; without it the same command goes on"
    if not trained:
        return f"complete: {state.step} of {steps} steps are done, nothing to train"
    skipped = state.skipped_steps
    but = f"; {counted(skipped, 'step')} changed nothing, for want of a finite gradient" if skipped else ""
    return f"done: {state.step} of {steps} steps, {state.samples:,} samples, {state.tokens:,} tokens{but}"


def _how_to_go_on(resume: str) -> str:
    if resume != "never":  # a run that began from a named checkpoint goes on from its own newest
        return "run the same command to go on"
    return 'run the same command with checkpoint.resume = "auto" to go on'
