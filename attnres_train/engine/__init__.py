"""Who owns gradients and optimizer state.

interface.py           what the trainer asks of an engine
kinds.py               what is kept of every parameter and buffer, in one function
average.py             the exponential mean of masters
sharded.py             state of which every data-parallel rank holds ranges: shown, shared out, for either engine
megatron.py            megatron-core's DistributedDataParallel and DistributedOptimizer
deepspeed.py           DeepSpeed's ZeRO-1, -2, -3
deepspeed_shards.py    where DeepSpeed keeps each parameter's range of masters, moments and gradients
deepspeed_settings.py  the configuration that DeepSpeed gets
deepspeed_json.py      what of a user's own DeepSpeed JSON is taken, and why the rest is refused
deepspeed_patches.py   what is changed inside DeepSpeed, and why
mpu.py                 our process grid in DeepSpeed's words
config.py              the [engine] section; rules.py what it may say
"""
