"""An exported model's own code: copied into its folder as it is, and what the package itself generates with.

configuration_attnres.py   sizes and residual mode, and which sources each sublayer reads
depth_attnres.py           the mix of these sources, in every mode
modeling_attnres.py        the model: forward, loss, cache, generation

They import torch, transformers and each other, nothing of attnres_train; nothing is imported here.
"""
