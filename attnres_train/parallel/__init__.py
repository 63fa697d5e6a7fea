"""The process grid and how the depth history crosses it.

split.py      layers to stages (pure)
wire.py       what travels on each hop (pure)
grid.py       degrees, groups and coordinates of this rank
transport.py  the payload and the communicator under megatron-core's schedules
cpu.py        what lets megatron-core run without CUDA; does nothing where CUDA is
config.py     the [parallel] section
"""

from attnres_train.parallel.wire import WirePlan

__all__ = ["WirePlan"]
