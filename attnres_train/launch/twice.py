"""Double launches: two launchers that each believe to start all ranks."""

from __future__ import annotations

from collections.abc import Mapping

from attnres_train.errors import refuse
from attnres_train.launch.commands import Launch


def refuse_double_launch(environment: Mapping[str, str], launch: Launch) -> None:
    """Refuse a script that runs several times on a node, under srun, mpirun or another launcher."""
    tasks, nodes = slurm_tasks(environment)
    if tasks > nodes:
        what = (
            f"srun starts this script {tasks} times on {nodes} nodes (SLURM_NTASKS), "
            f"and each would start {launch.ranks} ranks"
        )
        raise refuse("double launch", what, "one task a node: srun --ntasks-per-node=1, as launch/slurm.sbatch does")
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if _number(environment, name) > launch.nodes:
            what = f"mpirun starts this script {environment[name]} times ({name})"
            raise refuse("double launch", what, "start it once a node, without mpirun")
    if "RANK" in environment and "LOCAL_RANK" in environment:
        what = f"this script runs as rank {environment['RANK']} of another launcher"
        raise refuse("double launch", what, "run it by itself; or unset RANK and LOCAL_RANK if they are left over")


def refuse_lonely_rank(environment: Mapping[str, str]) -> None:
    """Refuse a rank that srun started many times without telling it so: each would train alone, as rank 0 of 1."""
    tasks, _ = slurm_tasks(environment)
    if tasks > 1 and "RANK" not in environment:
        what = f"srun starts {tasks} of these (SLURM_NTASKS), and no launcher says which rank this is"
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
