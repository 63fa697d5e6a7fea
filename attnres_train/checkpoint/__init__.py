"""Checkpoints: one layout-free format, written while training goes on, published by one rename.

folder.py        names and order of the checkpoints of a run, and which ones a resume may use
manifest.py      what a checkpoint says of itself, in JSON
checksum.py      CRC-32 of files, computed while they are written
crc.py           the CRC-32 of a file from those of its parts (pure)
read_sums.py     what a load has read, summed file by file
whole.py         whether all ranks together have read what was written
verify.py        whether the files are those that were written
choose.py        the newest whole one, agreed on by all ranks
fit.py           whether it is of this model, tokenizer and corpus, and what may differ
origin.py        what its weights were made of, if not of this run's first step
save.py          write aside, vote, publish
load.py          continue from it
reader.py        its tensors one at a time, or ranges of them; in a plain process, too
runs.py          which elements of a file are those of a range
pieces.py        elements out of files, without what stands beside them
sharded.py       writing optimizer states under logical names in torch's and megatron-core's distributed format
stream.py        the same of a plain process, tensor by tensor
metadata.py      reading that format's metadata without running what is in it
plain.py         what torch's safe mode does not load, in words
random_state.py  the random streams of each rank
space.py         whether the next one will have room
config.py        the [checkpoint] section; rules.py what it may say

What DeepSpeed itself saved becomes a checkpoint of this format by `attnres import`: attnres_train/exchange.
"""
