"""Text to a sentencepiece model.

python -m data_tools.train_tokenizer INPUT... --vocab-size N --output tokenizer.model
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from attnres_train.data.files import Publication
from attnres_train.errors import refuse
from attnres_train.tokenizer.loss import RoundTrip, check_round_trip
from attnres_train.tokenizer.sampling import Sample
from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer
from attnres_train.tokenizer.training import TrainingOptions, coverage_advice, smallest_vocabulary, train_model
from attnres_train.tokenizer.words import SPACE_PIECE
from data_tools.bad_records import BadRecords
from data_tools.command import (
    Report,
    Tool,
    ToolParser,
    bad_records_of,
    positive_number,
    reading_of,
    real_number,
    whole_number,
)
from data_tools.inputs import Inputs, find_inputs
from data_tools.pool import Advance, WorkerPool
from data_tools.progress import progress, waiting
from data_tools.records import Reading, documents_of

DESCRIPTION = """\
Train a sentencepiece model whose text comes back exactly as it went in: nothing is normalised, spaces, tabs
and line breaks stay, and characters without a piece of their own are spelt in bytes. The one exception is
U+2581, sentencepiece's own sign for a space, which comes back as a space; the report counts it.

Ids 0, 1 and 2 are unknown, end of document and padding. They are control pieces: text that spells them is
ordinary text. Long lines are cut for training, not dropped, so all of the text counts. The same text and
options give the same model.

Of a large corpus a random sample is used, each stretch of at most 65,536 characters with the same chance; the
report says how much. Training takes some 4 bytes of memory (unigram: 20) a byte of the sample. At the end a part
of the sample is encoded and decoded, and the report says whether all of it came back, and in how many tokens.
"""
SAMPLE_MIB = 512
ROUND_TRIP_BYTES = 8 << 20
"""Text that is encoded and decoded after training; a few seconds."""


def add_options(parser: ToolParser) -> None:
    parser.add_inputs()
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
    parser.add_number("--sample-mib", SAMPLE_MIB, "text to train on, in MiB; of more, a random sample is used")
    parser.add_argument("--seed", type=whole_number, default=1, metavar="S", help="of the sample (default: 1)")
    parser.add_argument("--split-digits", action="store_true", help="every digit is a piece of its own")
    parser.add_overwrite(otherwise="refuse")


def coverage(text: str) -> float:
    """An argument type: a share that sentencepiece accepts."""
    share = real_number(text)
    if not 0.98 <= share <= 1.0:
        raise argparse.ArgumentTypeError("must be between 0.98 and 1.0")
    return share


def _texts(inputs: Inputs, reading: Reading, bad: BadRecords, counts: Counter[str]) -> Iterator[str]:
    """The texts of all documents, counted as they pass."""
    with progress("read", inputs.total_bytes) as tell:
        for document in documents_of(inputs.files, reading, bad, tell):
            if not document.is_blank:
                counts["documents"] += 1
                counts["text_bytes"] += document.text_bytes
                counts["space_sign_characters"] += document.text.count(SPACE_PIECE)
                yield document.text


def train_tokenizer(arguments: argparse.Namespace) -> Report:
    """Train and write the model.

    Raises Refused for inputs that do not do, an impossible vocabulary size, and an existing output.
    """
    started = time.monotonic()
    options = TrainingOptions(
        vocab_size=arguments.vocab_size,
        model_type=arguments.model_type,
        character_coverage=arguments.character_coverage,
        split_digits=arguments.split_digits,
    )
    inputs = find_inputs(arguments.inputs)
    output = Path(arguments.output)
    if output.resolve() in {path.resolve() for path in inputs.files}:
        raise refuse("--output", f"{output} is one of the inputs", "name another file")
    reading, bad, counts = reading_of(arguments), bad_records_of(arguments), Counter[str]()
    sample = Sample(arguments.sample_mib << 20, arguments.seed)
    with Publication([output], arguments.existing) as publication:
        for text in _texts(inputs, reading, bad, counts):
            sample.add(text)
        if not counts["documents"]:
            raise bad.nothing(arguments.inputs)
        used = {"sample_documents": sample.num_documents(), "sample_bytes": sample.num_bytes}
        to_check = sample.part(ROUND_TRIP_BYTES)
        model = _trained(sample, options)
        tokenizer = SentencePieceTokenizer(model, str(output))
        round_trip = check_round_trip(tokenizer, to_check)
        publication.open(output).write(model)
        publication.commit()
    return {
        "status": "done",
        "output": str(output),
        "vocabulary_size": tokenizer.vocab_size,
        "smallest_vocabulary_size": smallest_vocabulary(model),
        "model_type": options.model_type,
        "fingerprint": tokenizer.fingerprint,
        "eod_id": tokenizer.eod_id,
        "pad_id": tokenizer.pad_id,
        "unknown_id": tokenizer.unk_id,
        "documents": counts["documents"],
        "text_bytes": counts["text_bytes"],
        **used,
        "sample_share": sample.num_bytes / counts["text_bytes"],
        "blank_documents": bad.blank_documents,
        "space_sign_characters": counts["space_sign_characters"],
        **bad.report(),
        **_round_trip_facts(round_trip),
        **inputs.report(),
        "seconds": time.monotonic() - started,
        "warnings": list(_warnings(round_trip, coverage_advice(model, to_check))),
    }


def _trained(sample: Sample, options: TrainingOptions) -> bytes:
    """The model; the sample is gone. The trainer hears no signal; a process of its own can be ended."""

    def work(_: None, advance: Advance) -> bytes:
        return train_model(sample.give(), options)

    remedy = "take a smaller sample (--sample-mib), or free memory"
    with (
        waiting("train") as tell,
        WorkerPool(work, 1, lambda read_bytes, tokens: tell(), remedy, fork=True) as training,
    ):
        sample.drop()
        (model,) = training.map([None])
    return model


def _warnings(found: RoundTrip, advice: str | None) -> Iterator[str]:
    if advice is not None:
        yield advice
    if differing := found.differing - found.differing_with_space_sign:
        yield f"{differing:,} of {found.texts:,} texts do not come back from their tokens"


def _round_trip_facts(found: RoundTrip) -> Report:
    return {
        "round_trip_texts": found.texts,
        "round_trip_bytes": found.text_bytes,
        "round_trip_differing": found.differing,
        "round_trip_differing_with_space_sign": found.differing_with_space_sign,
        "unknown_tokens": found.unknown_tokens,
        "pieces_used": found.pieces_used,
        "bytes_per_token": found.text_bytes / found.tokens,
        "characters_per_token": found.characters / found.tokens,
        "byte_token_share": found.byte_tokens / found.tokens,
    }


main = Tool("train_tokenizer", DESCRIPTION, add_options, train_tokenizer)


if __name__ == "__main__":
    sys.exit(main())
