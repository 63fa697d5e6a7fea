"""Measurements: ratios of things run in turn in one process. `python -m tests.bench.NAME --help`.

aggregate.py   the operator: every backend beside the plain form and the memory bus
step.py        a whole training step of each residual mode over `standard`
paired.py      how they are timed
kept.py        what stands in memory after a forward
wire.py        pipeline steps on slow links, each transport over standard; namespaces.py makes the links
checkpoint.py  how long a save keeps the loop, and what it writes a second, over the disk, torch.save and torch's DCP
"""
