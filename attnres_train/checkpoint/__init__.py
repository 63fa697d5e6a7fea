"""Checkpoints: one layout-free format, published by one rename.

folder.py        names and order of the checkpoints of a run
manifest.py      what a checkpoint says of itself, in JSON
save.py          write aside, vote, publish
load.py          choose, compare, continue
sharded.py       optimizer states under logical names, through megatron-core's dist_checkpointing
random_state.py  the random streams of each rank
config.py        the [checkpoint] section
"""
