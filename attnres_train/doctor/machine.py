"""What a rank would meet on this machine: its devices, the links between machines, open files."""

from __future__ import annotations

import os
from collections.abc import Iterable

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Problem
from attnres_train.launch.gpus import gpus_here
from attnres_train.launch.process import file_limit
from attnres_train.launch.rdma import why_tcp
from attnres_train.parallel.config import ParallelConfig
from attnres_train.parallel.device import device_problem, device_type, torch_gpus
from attnres_train.plan.groups import rank_groups, why_too_few


def machine_lines(config: RunConfig | None, world: int) -> list[str]:
    """Lines for the page: problems, and with a configuration what the groups of its ranks hold open."""
    wish = (config.parallel if config else ParallelConfig()).device
    problem = device_problem(wish, gpus_here(), torch_gpus(), os.environ)
    lines = problem_lines([problem] if problem else [])
    lines += [f"PROBLEM: {slow}" for slow in [why_tcp()] if slow]
    limit = file_limit()
    allowed = f"open files: {'any number' if limit is None else f'{limit:,}'} for a process"
    if config is None:
        return [*lines, allowed]
    groups, on_gpu = rank_groups(config, world), device_type(wish) == "cuda"
    few = why_too_few(groups, on_gpu, limit)
    lines += [allowed, f"process groups of {world:,} ranks: {groups.in_words()}"] if world > 1 else [allowed]
    return lines + ([f"PROBLEM: {few}"] if few else [])


def problem_lines(problems: Iterable[Problem]) -> list[str]:
    return [f"PROBLEM: {problem.key}: {problem.message}; {problem.remedy}" for problem in problems]
