"""From raw text to token files, on the command line; each tool explains itself with `--help`.

    split.py               documents into a training and a validation file
    train_tokenizer.py     text to a sentencepiece model
    preprocess.py          text to a `.bin/.idx` pair with its manifest, on many processes or machines
    merge.py               several pairs to one, in order
    inspect.py             what a pair holds: documents as text, statistics, lengths
    verify.py              proof that a pair is whole and says what its sources say
    state_of_the_union.py  the corpus of the quickstart as JSONL

How text becomes tokens, from the file to the pair:

    inputs.py       which files are read: files, folders, patterns, lists
    content.py      what a file is by its first bytes, where its name says otherwise
    sources.py      where each may be cut, and the checksums by which it is known again
    pieces.py       the plan: all inputs in shards, a pure function of their sizes
    task.py         the shards of this run and all that their bytes depend on
    streams.py      bytes out of files and archives, in bounded memory, damage told from the end
    parquet.py      rows out of `.parquet` files, in bounded memory
    parquet_pages.py  what their pages take, known before they are decoded
    json_lines.py   a line to its JSON object, or why it is none
    records.py      lines, rows and files to documents, and why a record is none
    encode.py       the work on one shard: documents to tokens, counted and checked
    pool.py         shards shared among processes, deaths noticed at once
    work.py         finished shards, kept for the run after a kill
    assemble.py     finished shards in order to one pair
    bad_records.py  why a record is none, the policy on that and the account of it

    command.py, progress.py, statistics.py: what the tools share

Outputs appear whole or not at all. Documents keep the order of the inputs; what is left out (blank documents, bad
records, files that are empty) is counted and named with its file and line, a bad record with its reason. Only what is
asked for is judged: a line must be one JSON object in UTF-8 with the text, and may hold anything besides. Text that
does not come back from its tokens is the last line of a report. Exit codes: 0 done, 2 refused (with
the reason and the remedy), 1 anything else. With `--json` stdout is one JSON object.

Proved by tests/unit/test_data_tools_*.py; by `python -m tests.soak.fuzz_preprocess`, 10,000 broken inputs held against
an oracle; by `python -m tests.soak.kill_preprocess`, 50 kills; measured by `python -m tests.bench.preprocess`.
"""

import os
import signal
import sys


def _stop(number: int, frame: object) -> None:
    """Ends a tool that has not begun, or is done, without a traceback; in between `command.Tool` sees to it."""
    os.write(2, b"interrupted\n")
    os._exit(1)


# As `python -m data_tools.TOOL` this is read first; what the tool imports takes long enough to be interrupted, too.
if sys.argv[:1] == ["-m"]:
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(_number) != signal.SIG_IGN:
            signal.signal(_number, _stop)
