"""Which checkpoint all ranks continue from: the first candidate whose every byte is what was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from attnres_train.checkpoint.folder import Load, candidates, checkpoints_folder, is_stated
from attnres_train.checkpoint.manifest import Manifest, read_manifest
from attnres_train.checkpoint.origin import Origin, Source, digest_of
from attnres_train.checkpoint.read_sums import state_files
from attnres_train.checkpoint.verify import damages, share_of
from attnres_train.errors import Problem, Refused
from attnres_train.parallel.grid import Grid

_MOST_SAID = 3


class Choice(NamedTuple):
    """A verified checkpoint, and why not a newer one, or the one that was named."""

    folder: Path
    manifest: Manifest
    passed_over: tuple[str, ...]
    weights_only: bool = False
    """Whether a run begins at step 0 with its weights; else it goes on from it exactly."""

    @property
    def step(self) -> int:
        """The step to begin after."""
        return 0 if self.weights_only else self.manifest.step

    @property
    def samples(self) -> int:
        """Where in the data to begin."""
        return 0 if self.weights_only else self.manifest.samples

    def draw_of_data(self, otherwise: int) -> int:
        """As the manifest's, where the run goes on with its data."""
        return otherwise if self.weights_only else self.manifest.draw_of_data(otherwise)

    @property
    def origin(self) -> Origin | None:
        """Of the weights of a run that begins here. Raises OSError."""
        if not self.weights_only:
            return self.manifest.origin
        return Origin("weights", (Source(str(self.folder), self.manifest.step, digest_of(self.folder)),))


def choose_checkpoint(
    resume: str,
    run_folder: Path,
    grid: Grid,
    damaged: Mapping[Path, Sequence[str]] | None = None,
    load: Load = "all",
) -> Choice | None:
    """The newest whole checkpoint that `resume` and `load` allow; None starts at step 0.

    A collective: rank 0 looks for candidates, all ranks together read their files. With `damaged`, which is what loads
    have found, by folder, the files of state are held against their sizes alone: `load_checkpoint` sums what it reads.

    Raises Refused on every rank where the wish cannot be met.
    """
    offered, problems = _agree_on_candidates(resume, run_folder, load, grid)
    if problems:
        raise Refused(problems)
    told: list[Problem] = []
    for folder in offered:
        manifest, wrong = _look_at(folder, grid, damaged)
        if manifest is not None and not wrong:
            passed_over = [f"{problem.key}: {problem.message}" for problem in told]
            stated = is_stated(resume) and folder == Path(resume).absolute()
            if is_stated(resume) and not stated:
                passed_over.append(f"checkpoint.resume = {resume}: this run has gone on from there")
            return Choice(folder, manifest, tuple(passed_over), weights_only=stated and load == "weights")
        more = f"; and {len(wrong) - _MOST_SAID} more" if len(wrong) > _MOST_SAID else ""
        told.append(Problem(str(folder), "; ".join(wrong[:_MOST_SAID]) + more, "use another checkpoint of the run"))
    if told and not is_stated(resume):
        where = checkpoints_folder(run_folder).absolute()
        remedy = "restore one of them, or choose another training.run_folder to start at step 0"
        told.append(Problem("checkpoint.resume", f"no checkpoint in {where} is whole", remedy))
    if told:
        raise Refused(told)
    return None


def _agree_on_candidates(resume: str, run_folder: Path, load: Load, grid: Grid) -> tuple[list[Path], list[Problem]]:
    answer: list[tuple[list[Path], list[Problem]]] = [([], [])]
    if grid.keeps_run:
        try:
            answer = [(candidates(resume, run_folder, load), [])]
        except Refused as refusal:
            answer = [([], list(refusal.problems))]
    dist.broadcast_object_list(answer, src=0, group=grid.control)
    return answer[0]


def _look_at(
    folder: Path, grid: Grid, damaged: Mapping[Path, Sequence[str]] | None
) -> tuple[Manifest | None, list[str]]:
    """The manifest, and what is wrong with the files, which the ranks share between them."""
    answer: list[tuple[Manifest | None, list[str]]] = [(None, [])]
    if grid.keeps_run:
        try:
            answer = [(read_manifest(folder), [])]
        except Refused as refusal:
            answer = [(None, [problem.message for problem in refusal.problems])]
    dist.broadcast_object_list(answer, src=0, group=grid.control)
    manifest, wrong = answer[0]
    if manifest is None:
        return None, wrong
    if damaged is not None and folder in damaged:
        return manifest, list(damaged[folder])
    share = share_of(manifest, grid.rank, grid.world_size)
    later = [] if damaged is None else state_files(share)
    mine = damages(folder, manifest, [name for name in share if name not in later])
    mine += damages(folder, manifest, later, sizes_only=True)
    everybody: list[list[str]] = [[]] * grid.world_size
    dist.all_gather_object(everybody, mine, group=grid.control)
    return manifest, [text for part in everybody for text in part]
