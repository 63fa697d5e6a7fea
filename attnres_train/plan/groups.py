"""Process groups of a rank: which there are, how many communicators NCCL forms of them, how many files they hold open.

Between GPUs all groups are NCCL's but one, the control group; between CPUs all are gloo's, and each is a mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnres_train.config.run_config import RunConfig
from attnres_train.parallel.colours import colours_of
from attnres_train.words import counted

MESH_DESCRIPTORS = 3
"""Of a gloo group beside a socket for every other rank and one that listens: two ends of a pipe and an epoll."""
STORE_DESCRIPTORS = 2
"""Connections of a rank to the store, which may be a rank's own: the process group's, and that of who looks after
ranks that are late."""
OTHER_DESCRIPTORS = 256
"""Kept free for all else that a rank opens: data, checkpoints, curves, libraries. An allowance, not a measurement."""
NCCL_DESCRIPTORS = 64
"""Kept free for each communicator of NCCL, whose own number depends on links and channels; an allowance too."""


@dataclass(frozen=True)
class RankGroups:
    """Of the rank that has the most."""

    world: int
    made: tuple[int, ...]
    """Members of every group that is made, those of a single rank and the control group included."""
    communicators: tuple[int, ...]
    """Members of those in which something is sent on the device, largest first."""

    def descriptors(self, on_gpu: bool) -> int:
        """File descriptors of the groups and, at most, of their store; NCCL's own are not among them."""
        meshes = (self.world,) if on_gpu else self.made
        return sum(members + MESH_DESCRIPTORS for members in meshes) + STORE_DESCRIPTORS * self.world

    def wanted(self, on_gpu: bool) -> int:
        """The limit of open files with which nothing should run short."""
        of_nccl = NCCL_DESCRIPTORS * len(self.communicators) if on_gpu else 0
        return self.descriptors(on_gpu) + of_nccl + OTHER_DESCRIPTORS

    def as_json(self) -> dict[str, object]:
        descriptors = {"gpu": self.descriptors(True), "cpu": self.descriptors(False)}
        return {"communicators": list(self.communicators), "descriptors": descriptors}

    def in_words(self) -> str:
        """Of both kinds of machine, for a line."""
        sizes = ", ".join(f"{self.communicators.count(size)} of {size:,}" for size in dict.fromkeys(self.communicators))
        formed = f"{counted(len(self.communicators), 'communicator')} ({sizes})"
        return f"{formed}, {self.descriptors(True):,} files a rank; on CPUs {self.descriptors(False):,} files"


def rank_groups(config: RunConfig, world: int) -> RankGroups:
    """Of a rank on the first pipeline stage, which no other has more than; groups of the same ranks are one."""
    parallel, data = config.parallel, config.parallel.data(world)
    replicas = parallel.tensor * data
    # As megatron-core counts ranks: first along the tensor ranks, then along the replicas, then along the stages.
    axes = {"t": (parallel.tensor, 1), "d": (data, parallel.tensor), "p": (parallel.pipeline, replicas)}

    def along(names: str) -> frozenset[int]:
        ranks = {0}
        for number, stride in (axes[name] for name in names):
            ranks = {rank + place * stride for rank in ranks for place in range(number)}
        return frozenset(ranks)

    tables = frozenset({0, (parallel.pipeline - 1) * replicas})
    used = {along(names) for names in ("tdp", "t", "d", "p")} | ({tables} if config.model.tie_embeddings else set())
    made = used | {along(names) for names in ("", "td", "tp")} | {tables}
    number = 2 * colours_of(parallel.pipeline, parallel.virtual > 1) if parallel.pipeline > 1 else 0
    lanes = [parallel.pipeline] * number
    formed = [*(len(ranks) for ranks in used if len(ranks) > 1), *lanes]
    return RankGroups(world, made=(world, *map(len, made), *lanes), communicators=tuple(sorted(formed, reverse=True)))


def why_too_few(groups: RankGroups, on_gpu: bool, limit: int | None) -> str | None:
    """Why a rank may not run where a process may open only `limit` files (None: any number); None if nothing."""
    wanted = groups.wanted(on_gpu)
    if limit is None or limit >= wanted:
        return None
    held = f"{groups.descriptors(on_gpu):,} for its process groups"
    return (
        f"a process may open {limit:,} files here (`ulimit -Hn`), and a rank of {groups.world:,} should have "
        f"{wanted:,}, {held}: raise it (limits.conf, LimitNOFILE of the unit, docker run --ulimit nofile=1048576)"
    )
