"""The documents of a file into a training and a validation file.

python -m data_tools.split FILE.jsonl --train A.jsonl --valid B.jsonl --valid-fraction F --seed S
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from attnres_train.data.files import Publication
from attnres_train.errors import refuse
from data_tools.command import Report, add_overwrite_argument, progress, run_tool, tool_parser, whole_number
from data_tools.inputs import find_inputs
from data_tools.records import BadRecord, BadRecords, holds_lines, parse_chunk, read_chunks

DESCRIPTION = """\
Divide the documents of a .jsonl file into a training and a validation file, line by line as they are.

Where a document goes depends on its text and the seed alone: documents with the same text stay together, and
the order of the file, or other documents in it, do not matter. So the share of the validation file is F on
average. Both files appear together, or neither. A second run that would write the same files leaves them as
they are.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = tool_parser("split", DESCRIPTION)
    parser.add_argument("input", metavar="FILE", help="a .jsonl file, plain or .gz, .xz, .bz2")
    parser.add_argument("--train", required=True, metavar="A.jsonl", help="training file to write")
    parser.add_argument("--valid", required=True, metavar="B.jsonl", help="validation file to write")
    parser.add_argument(
        "--valid-fraction", type=fraction, required=True, metavar="F", help="share for validation, 0 < F < 1"
    )
    parser.add_argument("--seed", type=whole_number, default=1, metavar="S", help="default: 1")
    parser.add_argument("--text-key", default="text", help="key of the text in a JSON object (default: text)")
    add_overwrite_argument(parser)
    return parser


def fraction(text: str) -> float:
    """An argument type: a number between 0 and 1, both excluded."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError("must be above 0 and below 1")
    return number


def is_for_validation(text: str, seed: int, valid_fraction: float) -> bool:
    """Whether the document `text` is drawn for validation: a hash of both against the fraction."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest) < valid_fraction * 2**64


def split(arguments: argparse.Namespace) -> Report:
    """Write both files.

    Raises Refused for bad records, for a side that would get no document, and for existing other outputs.
    """
    inputs = find_inputs([arguments.input])
    outputs = [Path(arguments.train), Path(arguments.valid)]
    if len(inputs.files) != 1 or not holds_lines(inputs.files[0]):
        raise refuse(arguments.input, "is not one .jsonl file", "name one .jsonl file")
    if len({path.resolve() for path in (*outputs, inputs.files[0])}) != 3:
        raise refuse("--train, --valid", "input and outputs are not three different files", "name others")
    bad = BadRecords("stop", None)
    documents = [0, 0]
    with (
        Publication(outputs, "replace" if arguments.overwrite else "compare") as publication,
        progress("split", inputs.total_bytes) as advance,
    ):
        files = [publication.open(path) for path in outputs]
        for chunk in read_chunks(inputs.files):
            for record in parse_chunk(chunk, arguments.text_key):
                if isinstance(record, BadRecord):
                    bad.add(record)
                elif record.raw.strip():
                    side = int(is_for_validation(record.text, arguments.seed, arguments.valid_fraction))
                    files[side].write(record.raw.rstrip(b"\r\n") + b"\n")
                    documents[side] += 1
            advance(chunk.read_bytes)
        if 0 in documents:
            counts = f"{documents[0]} documents for training, {documents[1]} for validation"
            raise refuse("--valid-fraction", f"gives {counts}", "choose another fraction or --seed")
        written = publication.commit()
    return {
        "status": "done" if written else "already done",
        "train": arguments.train,
        "valid": arguments.valid,
        "train_documents": documents[0],
        "valid_documents": documents[1],
    }


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool(build_parser(), split, argv)


if __name__ == "__main__":
    sys.exit(main())
