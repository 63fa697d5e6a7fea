"""The process grid and how the depth history crosses it. README.md follows one source there and back.

split.py      layers to stages (pure)
wire.py       what each hop brings, what each rank keeps, how many gradients are due (pure)
schedule.py   the order in which ranks visit their stages (pure)
device.py     where ranks compute, and what keeps them from it
grid.py       degrees, groups and coordinates of this rank
visit.py      one micro-batch on one stage, and what happens to it in which order
cache.py      the history of every micro-batch in flight on a rank, and the account of its gradients
lane.py       messages of one direction between neighbours
pool.py       receive buffers, used again
transport.py  the bundle and the communicator under megatron-core's schedules
lanes.py      the groups of these messages, and how they are connected before anything is computed
colours.py    which of them a hop uses (pure)
offload.py    slices that wait in host memory, copied beside what is computed
feed.py       micro-batches on their way to the device
pipeline.py   one run of the schedule
light_imports.py  megatron-core imported at half the price
cpu.py        what lets megatron-core run without CUDA; does nothing where a GPU computes
config.py     the [parallel] section; rules.py what it may say
"""

from attnres_train.parallel.wire import WirePlan

__all__ = ["WirePlan"]
