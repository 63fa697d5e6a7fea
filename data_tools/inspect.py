"""What a pair holds.

python -m data_tools.inspect PREFIX [--documents K [--from I]] [--tokenizer M] [--statistics]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from attnres_train.data.indexed import IndexedReader
from attnres_train.data.manifest import Manifest, open_pair
from attnres_train.errors import refuse
from attnres_train.tokenizer.load import load_tokenizer_of
from attnres_train.tokenizer.loss import loss_in_words
from attnres_train.tokenizer.protocol import Tokenizer
from data_tools.command import Report, Tool, ToolParser, report_lines, whole_number
from data_tools.progress import progress
from data_tools.statistics import LengthBin, histogram_lines, length_histogram, token_statistics, unigram_entropy_nats

DESCRIPTION = """\
Check that PREFIX.bin and PREFIX.idx are whole and belong together, and say what they hold: from the pair
itself, with a picture of how long its documents are, and from its manifest PREFIX.json where it has one. With
--documents some documents are shown, as text where a tokenizer is given.

With --statistics every token is read: how many pieces of the vocabulary occur, how many documents repeat an
earlier one, and the unigram entropy, which is the loss of the best model without context and so the first bar
for a trained one. `python -m data_tools.verify` compares every byte with the manifest.
"""


def add_options(parser: ToolParser) -> None:
    parser.add_pair()
    parser.add_argument("--documents", type=whole_number, default=0, metavar="K", help="show K documents")
    parser.add_argument("--from", dest="first", type=whole_number, default=0, metavar="I", help="the first one shown")
    parser.add_argument("--tokenizer", metavar="MODEL", help="the pair's tokenizer, to show text instead of ids")
    parser.add_argument("--statistics", action="store_true", help="read every token")
    parser.add_argument("--entropy", action="store_true", help="read every token for the unigram entropy alone")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the histogram of lengths (needs matplotlib)")


def inspect(arguments: argparse.Namespace) -> Report:
    """What the pair holds.

    Raises Refused for a pair that is damaged, differs from its manifest, or was made with another tokenizer.
    """
    _check(arguments)
    reader, manifest = open_pair(arguments.prefix)
    made_with = manifest.tokenizer_fingerprint if manifest else None
    tokenizer = load_tokenizer_of(arguments.tokenizer, made_with)
    bins = length_histogram(reader)
    report: Report = {
        "prefix": arguments.prefix,
        "documents": reader.num_documents,
        "tokens": reader.num_tokens,
        "token_type": reader.type.name,
        **_length_facts(reader),
        "manifest": "none" if manifest is None else "present",
    }
    if manifest is not None:
        report |= _manifest_facts(manifest)
    if arguments.statistics or arguments.entropy:
        with progress("inspect", reader.num_tokens * reader.type.itemsize) as tell:
            if arguments.statistics:
                report |= asdict(token_statistics(reader, tell))
            else:
                report["unigram_entropy_nats"] = unigram_entropy_nats(reader, tell)
    if arguments.documents:
        if arguments.first >= reader.num_documents:
            what = f"{arguments.first} is beyond the {reader.num_documents} documents, which count from 0"
            raise refuse("--from", what, "give a smaller number")
        shown = range(arguments.first, min(arguments.first + arguments.documents, reader.num_documents))
        report["shown_documents"] = [_show(reader, tokenizer, index) for index in shown]
    if arguments.plot:
        _plot(bins, Path(arguments.plot))
    loss = loss_in_words(manifest.counts) if manifest is not None else None
    return report | {"lengths": [asdict(one) for one in bins], "warnings": [loss] if loss else []}


def show(report: Report) -> Iterator[str]:
    """The report for people, its histogram drawn."""
    report = dict(report)
    bins = [LengthBin(**one) for one in report.pop("lengths")]
    warnings = report.pop("warnings")
    yield from report_lines(report)
    yield "document lengths:"
    yield from (f"  {line}" for line in histogram_lines(bins))
    yield from report_lines({"warnings": warnings})


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.prefix:
        raise refuse("PREFIX", "is empty", "give the pair's path without .bin or .idx")
    if arguments.first and not arguments.documents:
        raise refuse("--from", "says where --documents begins, which is not given", "pass --documents K too")


def _length_facts(reader: IndexedReader) -> dict[str, Any]:
    if not len(reader.lengths):
        return {}
    lengths = np.asarray(reader.lengths)
    quantiles = np.quantile(lengths, (0, 0.5, 0.9, 0.99, 1), method="lower").tolist()
    names = ("shortest", "median", "90_percent", "99_percent", "longest")
    return {f"{name}_sequence_tokens": int(value) for name, value in zip(names, quantiles, strict=True)}


def _plot(bins: Sequence[LengthBin], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise refuse("--plot", "matplotlib is not installed", "pip install 'attnres-train[plot]'") from None
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    axes.bar([f"{one.least:,}" for one in bins], [one.documents for one in bins], width=1.0, align="edge")
    axes.set(xlabel="tokens of a document, from", ylabel="documents")
    axes.tick_params(axis="x", rotation=45)
    figure.savefig(path, dpi=150)


def _manifest_facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "text_bytes": manifest.text_bytes,
        "bytes_per_token": manifest.text_bytes / max(1, manifest.tokens),
        "largest_id": manifest.largest_id,
        "vocabulary_size": manifest.vocabulary_size,
        "eod_id": manifest.eod_id,
        "tokenizer_fingerprint": manifest.tokenizer_fingerprint,
        **manifest.counts,
        "options": ", ".join(f"{name} {_option_words(value)}" for name, value in manifest.options.items()),
        "tool_version": manifest.tool_version,
        "sources": [{"path": source.path, "bytes": source.bytes} for source in manifest.sources],
    }


def _option_words(value: object) -> str:
    if isinstance(value, list):
        return " and ".join(map(repr, value)) or "none"
    return "none" if value is None else str(value)


def _show(reader: IndexedReader, tokenizer: Tokenizer | None, index: int) -> dict[str, Any]:
    ids = reader.document(index).tolist()
    try:
        content = {"ids": ids} if tokenizer is None else {"text": tokenizer.decode(ids)}
    except ValueError as error:
        raise refuse(f"{reader.prefix}: document {index}", str(error), "give the pair's own tokenizer") from None
    return {"document": index, "tokens": len(ids), **content}


main = Tool("inspect", DESCRIPTION, add_options, inspect, show)


if __name__ == "__main__":
    sys.exit(main())
