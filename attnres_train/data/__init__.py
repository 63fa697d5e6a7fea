"""From token files to batches; only `loader.py` and what is on top of it know torch.

    files.py      files written aside and published together, by rename
    paths.py      names of the files of a corpus
    indexed.py    a `.bin/.idx` pair of tokens, its format and reader
    indexed_writer.py  its writer
    manifest.py   the `.json` beside a pair: which tokenizer made it, from what, how much
    order.py      the sample order, a pure function of (seed, epoch, index)
    blend.py      which source each draw comes from, a pure function of the position
    continuation.py  what other training data mean for a run that goes on
    drawn.py      telling long files apart by some of their blocks
    corpus.py     pairs cut into samples; training data (blended, shuffled), and what a run takes of each source
    validation.py validation data (fixed)
    loader.py     the batches of a step on one data rank
    ahead.py      the next step's batches, read while this one runs
    config.py     the [data] section; rules.py what it may say

A *position* counts samples from the start of a run. What is drawn at a position depends on nothing else: not
on micro-batch, accumulation, rank count, or on what was read before. So there is no index to build or cache,
and resuming is going on at the next position.
"""
