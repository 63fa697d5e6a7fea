"""From raw text to token files, on the command line; each tool explains itself with `--help`.

    train_tokenizer.py     text to a sentencepiece model
    preprocess.py          text to a `.bin/.idx` pair with its manifest
    split.py               documents of a file into a training and a validation file
    inspect.py             what a pair holds
    state_of_the_union.py  the corpus of the quickstart as JSONL

    command.py   what all share: report, progress, exit codes
    inputs.py    which files are read
    records.py   files to documents, and what is no document
    pool.py      work shared among processes, results in order

Outputs appear whole or not at all. Exit codes: 0 done, 2 refused (with the reason and the remedy), 1 anything
else. With `--json` stdout is one JSON object.
"""
