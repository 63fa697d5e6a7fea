"""The transformer of one pipeline stage, from megatron-core's modules.

stage.py           embedding, layers, head: what one stage holds
layer.py           a sublayer: read the depth, norm, branch, add to the history
head.py            last depth read, norm, projection, loss of every token
spec.py            the branches as megatron-core specs, and megatron-core's configuration
attention_core.py  causal attention by torch's kernels, over whole windows or inside documents
documents.py       where the documents of a micro-batch begin
norm.py            RMSNorm
recompute.py       what backward makes again instead of keeping it
parameters.py      logical names, shapes and initial values, the same under every layout
sharding.py        how a logical tensor is cut over tensor ranks
size.py            parameter and FLOP counts (pure)
config.py          the [model] section; rules.py what it may say
"""
