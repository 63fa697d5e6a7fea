"""The training loop.

step.py        one training step, from samples to new weights
loop.py        step, record, evaluate, save, until the last step or a signal
build.py       the parts of a run from its configuration
evaluation.py  the loss on the fixed validation set
resume.py      going on from a checkpoint, and saying what is different
machine.py     what a rank asks of its machine before it joins the others
numerics.py    how a GPU rounds, and whether a run repeats to the bit
preflight.py   what ranks compare before any of them computes
saving.py      when checkpoints are started and published
skipped.py     steps whose gradient is not finite
closing.py     the last words of a run that ended in order
signals.py     signals that ask a run to save and end
config.py      the [training] section; rules.py what it may say, above all of batches
"""
