"""Who owns gradients and optimizer state.

interface.py  what the trainer asks of an engine
megatron.py   megatron-core's DistributedDataParallel and DistributedOptimizer
config.py     the [engine] section
"""
