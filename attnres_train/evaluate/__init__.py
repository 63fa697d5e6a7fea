"""What a checkpoint is worth, without training.

settings.py   the configuration that is in a checkpoint, on another layout
weights.py    its weights, into the stages of this rank
losses.py     losses on corpora: by set, and by position in the window
__main__.py   the same on many ranks: `torchrun ... -m attnres_train.evaluate RUN`
"""
