"""What a rank asks of its own machine before it joins the others: devices, threads, open files."""

from __future__ import annotations

import logging
import os

import torch

from attnres_train.config.run_config import RunConfig
from attnres_train.errors import Refused
from attnres_train.launch.cores import THREADS, environment_of, untold_threads, usable_cores
from attnres_train.launch.gpus import gpus_here
from attnres_train.launch.process import file_limit
from attnres_train.launch.rdma import why_tcp
from attnres_train.observe.console import CONSOLE
from attnres_train.parallel.device import device_problem, device_type, local_ranks, torch_gpus
from attnres_train.plan.groups import rank_groups, why_too_few

log = logging.getLogger(CONSOLE)


def prepare_machine(config: RunConfig, world: int) -> None:
    """Let this rank compute where `parallel.device` says, with the threads that are its own.

    Raises Refused where it cannot; what would make it slow, or end it later, is warned of.
    """
    problem = device_problem(config.parallel.device, gpus_here(), torch_gpus(), os.environ)
    if problem is not None:
        raise Refused(problem)
    on_gpu = device_type(config.parallel.device) == "cuda"
    ranks, launchers = local_ranks(os.environ), environment_of(os.getppid())
    threads = untold_threads(os.environ, launchers, on_gpu, usable_cores(), ranks)
    if threads is not None:
        torch.set_num_threads(threads)
        os.environ[THREADS] = str(threads)  # for libraries that are loaded later, with an OpenMP of their own
    if on_gpu and world > ranks and (slow := why_tcp()):
        log.warning(slow)
    if few := why_too_few(rank_groups(config, world), on_gpu, file_limit()):
        log.warning(few)
