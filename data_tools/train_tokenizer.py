"""Text to a sentencepiece model.

python -m data_tools.train_tokenizer INPUT... --vocab-size N --output tokenizer.model
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnres_train.data.files import Publication
from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer
from attnres_train.tokenizer.training import TrainingOptions, train_model
from attnres_train.tokenizer.words import SPACE_PIECE
from data_tools.bad_records import BadRecords, documents_of
from data_tools.command import (
    Report,
    add_bad_record_arguments,
    add_input_arguments,
    add_overwrite_argument,
    positive_number,
    reading_of,
    run_tool,
    tool_parser,
)
from data_tools.inputs import Inputs, find_inputs
from data_tools.progress import progress
from data_tools.records import Reading

DESCRIPTION = """\
Train a sentencepiece model whose text comes back exactly as it went in: nothing is normalised, spaces, tabs
and line breaks stay, and characters without a piece of their own are spelt in bytes. The one exception is
U+2581, sentencepiece's own sign for a space, which comes back as a space; the report counts it.

Ids 0, 1 and 2 are unknown, end of document and padding. They are control pieces: text that spells them is
ordinary text. Long lines are cut for training, not dropped, so all of the text counts. The same text and
options give the same model. The whole text is held in memory, several times its size.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = tool_parser("train_tokenizer", DESCRIPTION)
    add_input_arguments(parser)
    add_bad_record_arguments(parser)
    parser.add_argument("--output", required=True, metavar="FILE", help="model file to write")
    parser.add_argument(
        "--vocab-size",
        type=positive_number,
        required=True,
        metavar="N",
        help="pieces, with the 3 special ones, 256 bytes and every character that is kept",
    )
    parser.add_argument("--model-type", choices=("bpe", "unigram"), default="bpe", help="default: bpe")
    parser.add_argument(
        "--character-coverage",
        type=coverage,
        default=1.0,
        metavar="F",
        help="share of the text whose characters become pieces; the rest is spelt in bytes (default: 1.0)",
    )
    parser.add_argument("--split-digits", action="store_true", help="every digit is a piece of its own")
    add_overwrite_argument(parser)
    return parser


def coverage(text: str) -> float:
    """An argument type: a share that sentencepiece accepts."""
    try:
        share = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0.98 <= share <= 1.0:
        raise argparse.ArgumentTypeError("must be between 0.98 and 1.0")
    return share


class TextStream:
    """The texts of all documents, counted as they pass."""

    def __init__(self, inputs: Inputs, reading: Reading, bad: BadRecords):
        self._inputs = inputs
        self._reading = reading
        self.bad = bad
        self.documents = self.blank_documents = self.text_bytes = self.space_sign_characters = 0

    def __iter__(self) -> Iterator[str]:
        with progress("read", self._inputs.total_bytes) as tell:
            for document in documents_of(self._inputs.files, self._reading, self.bad, tell):
                if document.is_blank:
                    self.blank_documents += 1
                else:
                    self.documents += 1
                    self.text_bytes += document.text_bytes
                    self.space_sign_characters += document.text.count(SPACE_PIECE)
                    yield document.text


def train_tokenizer(arguments: argparse.Namespace) -> Report:
    """Train and write the model.

    Raises Refused for inputs that do not do, an impossible vocabulary size, and an existing output.
    """
    started = time.monotonic()
    inputs = find_inputs(arguments.inputs)
    output = Path(arguments.output)
    options = TrainingOptions(
        vocab_size=arguments.vocab_size,
        model_type=arguments.model_type,
        character_coverage=arguments.character_coverage,
        split_digits=arguments.split_digits,
    )
    texts = TextStream(inputs, reading_of(arguments), BadRecords(arguments.bad_records, arguments.max_bad))
    with Publication([output], "replace" if arguments.overwrite else "refuse") as publication:
        model = train_model(texts, options)
        publication.open(output).write(model)
        publication.commit()
    tokenizer = SentencePieceTokenizer(model, str(output))
    return {
        "status": "done",
        "output": str(output),
        "vocabulary_size": tokenizer.vocab_size,
        "model_type": options.model_type,
        "fingerprint": tokenizer.fingerprint,
        "eod_id": tokenizer.eod_id,
        "pad_id": tokenizer.pad_id,
        "unknown_id": tokenizer.unk_id,
        "documents": texts.documents,
        "text_bytes": texts.text_bytes,
        "blank_documents": texts.blank_documents,
        "space_sign_characters": texts.space_sign_characters,
        **texts.bad.report(),
        "ignored_files": [str(path) for path in inputs.ignored],
        "seconds": time.monotonic() - started,
    }


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool(build_parser(), train_tokenizer, argv)


if __name__ == "__main__":
    sys.exit(main())
