"""Documents into a training and a validation file.

python -m data_tools.split INPUT... --train A.jsonl --valid B.jsonl --valid-fraction F --seed S
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from attnres_train.data.files import Publication
from attnres_train.errors import refuse
from attnres_train.strict_json import as_strict, as_text, dumps
from data_tools.command import Report, Tool, ToolParser, bad_records_of, reading_of, real_number, whole_number
from data_tools.inputs import find_inputs
from data_tools.progress import progress
from data_tools.records import BYTE_ORDER_MARK, Document, documents_of

DESCRIPTION = """\
Divide documents into a training and a validation file, one JSON object a line: lines of .jsonl files as they are,
rows of .parquet files with all their columns, .txt files as {"text": ...}. NaN and infinities, which JSON has no word
for, are written as texts. Lines and rows without any text are left out, or kept where they hold other keys; both are
counted as blank.

Where a document goes depends on its text and the seed alone: documents with the same text stay together, and
the order of the inputs, or other documents in them, do not matter. So the share of the validation file is F on
average. Both files appear together, or neither. A second run that would write the same files leaves them as
they are.
"""


def add_options(parser: ToolParser) -> None:
    parser.add_inputs()
    parser.add_argument("--train", required=True, metavar="A.jsonl", help="training file to write")
    parser.add_argument("--valid", required=True, metavar="B.jsonl", help="validation file to write")
    parser.add_argument(
        "--valid-fraction", type=fraction, required=True, metavar="F", help="share for validation, 0 < F < 1"
    )
    parser.add_argument("--seed", type=whole_number, default=1, metavar="S", help="default: 1")
    parser.add_keys(
        "--metadata",
        "of .parquet files keep this column and the text alone (default: all); add it to every document where it "
        "stands in the names of folders (as lang=de/); may be repeated; refused where no document has it",
    )
    parser.add_overwrite(otherwise="compare")


def fraction(text: str) -> float:
    """An argument type: a number between 0 and 1, both excluded."""
    number = real_number(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError("must be above 0 and below 1")
    return number


def is_for_validation(text: str, seed: int, valid_fraction: float) -> bool:
    """Whether the document `text` is drawn for validation: a hash of both against the fraction."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest) < valid_fraction * 2**64


def split(arguments: argparse.Namespace) -> Report:
    """Write both files.

    Raises Refused for bad records as the policy says, for a side that would get no document, and for existing other
    outputs.
    """
    inputs = find_inputs(arguments.inputs)
    outputs = [Path(arguments.train), Path(arguments.valid)]
    if len({path.resolve() for path in (*outputs, *inputs.files)}) != 2 + len(inputs.files):
        raise refuse("--train, --valid", "they are the same file, or one of the inputs", "name others")
    wrong = [str(path) for path in outputs if path.suffix != ".jsonl"]
    if wrong:
        raise refuse(", ".join(wrong), "is no name for lines of JSON, written plain", "give one that ends in .jsonl")
    bad = bad_records_of(arguments)
    reading = reading_of(arguments)
    if arguments.metadata is None:
        reading = replace(reading, metadata_keys=None)
    without: Counter[str] = Counter()
    with Publication(outputs, arguments.existing) as publication, progress("split", inputs.total_bytes) as tell:
        files = [publication.open(path) for path in outputs]
        documents, texts = [0, 0], 0
        for document in documents_of(inputs.files, reading, bad, tell):
            texts += not document.is_blank
            if document.raw.strip() or document.text:
                without.update(key for key in arguments.metadata or () if key not in document.fields)
                side = int(is_for_validation(document.text, arguments.seed, arguments.valid_fraction))
                files[side].write(_line(document))
                documents[side] += 1
        if not texts:
            raise bad.nothing(arguments.inputs)
        _check_counts(documents, without)
        written = publication.commit()
    return {
        "status": "done" if written else "already done",
        "train": arguments.train,
        "valid": arguments.valid,
        "train_documents": documents[0],
        "valid_documents": documents[1],
        "blank_documents": bad.blank_documents,
        "documents_without": [{"key": key, "documents": count} for key, count in without.items()],
        **bad.report(),
        **inputs.report(),
    }


def _check_counts(documents: list[int], without: dict[str, int]) -> None:
    """Refuse a side without documents, and a key that none of them has."""
    if absent := [key for key, count in without.items() if count == sum(documents)]:
        remedy = "correct the key; without --metadata everything is kept"
        raise refuse("--metadata", f"no document has {', '.join(map(repr, absent))}", remedy)
    if 0 in documents:
        counts = f"{documents[0]} documents for training, {documents[1]} for validation"
        raise refuse("--valid-fraction", f"gives {counts}", "choose another fraction or --seed")


def _line(document: Document) -> bytes:
    """The document as a line: its own, where it has one, with what the names of its folders say."""
    if not document.raw:
        return dumps(document.fields, ensure_ascii=False, default=as_text).encode() + b"\n"
    line = as_strict(document.raw.removeprefix(BYTE_ORDER_MARK).rstrip(b"\r\n"))
    if document.of_folder:
        more = json.dumps(document.of_folder).encode()
        line = line.rstrip().removesuffix(b"}") + b", " + more.removeprefix(b"{")
    return line + b"\n"


main = Tool("split", DESCRIPTION, add_options, split)


if __name__ == "__main__":
    sys.exit(main())
