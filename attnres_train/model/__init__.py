"""The transformer of one pipeline stage, from megatron-core's modules.

describe.py        every tensor of the model as a value, without torch: what all others read
tensors.py         what is said of one tensor: its name, shape, cut, first values, decay, copies
sharding.py        how a logical tensor is cut over tensor ranks
cost.py, size.py   what the parts cost, and FLOPs a token, without torch
branches/          what a sublayer may be, one file each: tensors, cost, module
stage.py           embedding, layers, head: what one stage holds
layer.py           a sublayer: read the depth, norm, branch, add to the history
head.py            last depth read, norm, projection, loss of every token
megatron.py        megatron-core's configuration
attention_core.py  causal attention by torch's kernels, over whole windows or inside documents
documents.py       where the documents of a micro-batch begin
norm.py            RMSNorm
recompute.py       what backward makes again instead of keeping it
parameters.py      the parameters of a stage with what is said of each, and their initial values
config.py          the [model] section; rules.py what it may say
"""
