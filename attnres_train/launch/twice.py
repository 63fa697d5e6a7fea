"""What the environment says of other launchers: two that each believe to start all ranks, ranks that none has told."""

from __future__ import annotations

from collections.abc import Mapping

from attnres_train.errors import Refused, refuse
from attnres_train.launch.commands import Launch
from attnres_train.words import counted

_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
"""How Open MPI, MPICH with its kin and MVAPICH tell their processes how many there are."""


def refuse_double_launch(environment: Mapping[str, str], launch: Launch) -> None:
    """Refuse a script that runs several times on a node, under srun, mpirun or another launcher."""
    tasks, nodes = slurm_tasks(environment)
    if tasks > nodes:
        what = (
            f"srun starts this script {tasks} times on {counted(nodes, 'node')} (SLURM_NTASKS), "
            f"and each would start {counted(launch.ranks, 'rank')}"
        )
        raise refuse("double launch", what, "one task a node: srun --ntasks-per-node=1, as launch/slurm.sbatch does")
    for name in _MPI_SIZES:
        if _number(environment, name) > launch.nodes:
            what = f"mpirun starts this script {environment[name]} times ({name})"
            raise refuse("double launch", what, "start it once a node, without mpirun")
    if "RANK" in environment and "LOCAL_RANK" in environment:
        what = f"this script runs as rank {environment['RANK']} of another launcher"
        raise refuse("double launch", what, "run it by itself; or unset RANK and LOCAL_RANK if they are left over")


def place(environment: Mapping[str, str], has_gpu: bool) -> tuple[int, int]:
    """This rank and the number of all, as its launcher says; 0 of 1 without a launcher.

    Raises Refused where that is said by halves, or many were started and none was told: each would train alone.
    """
    alone = {"WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    if "RANK" not in environment:
        for name, value in alone.items():
            if environment.get(name, value) != value:
                raise _half(f"{name} is {environment[name]!r}, and no RANK says which of them this is")
        _refuse_lonely_rank(environment)
        return 0, 1
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise _half(f"RANK is {environment['RANK']!r}, and there is no {' and no '.join(missing)}")
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not environment[name].isdecimal():
            raise _half(f"{name} is {environment[name]!r}, which is no number")
    rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    if rank >= world:
        raise _half(f"RANK is {rank}, of WORLD_SIZE {world}: ranks count from 0")
    if has_gpu and world > 1 and not environment.get("LOCAL_RANK", "").isdecimal():
        raise _half("there is no LOCAL_RANK, by which a rank knows its GPU")
    return rank, world


def _half(what: str) -> Refused:
    remedy = "start launch/torchrun.sh, or torchrun, which sets all of them; or unset what is left over"
    return refuse("environment", what, remedy)


def _refuse_lonely_rank(environment: Mapping[str, str]) -> None:
    """Refuse one of many that srun or mpirun started without telling them so."""
    tasks, _ = slurm_tasks(environment)
    many = [("srun", "SLURM_NTASKS", tasks)] + [("mpirun", name, _number(environment, name)) for name in _MPI_SIZES]
    for starter, name, number in many:
        if number > 1:
            what = f"{starter} starts {number} of these ({name}), and no launcher says which rank this is"
            raise refuse("RANK", what, "start launch/torchrun.sh once a node, as launch/slurm.sbatch does")


def slurm_tasks(environment: Mapping[str, str]) -> tuple[int, int]:
    """Tasks and nodes of the SLURM step this process is a task of; 1 and 1 outside of any."""
    if "SLURM_PROCID" not in environment and "SLURM_STEP_NUM_TASKS" not in environment:
        return 1, 1
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS") or _number(environment, "SLURM_NTASKS") or 1
    nodes = _number(environment, "SLURM_STEP_NUM_NODES") or _number(environment, "SLURM_NNODES") or 1
    return tasks, nodes


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else 0
