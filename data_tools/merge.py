"""Several pairs to one, in order.

python -m data_tools.merge PREFIX... --output PREFIX
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from attnres_train import __version__
from attnres_train.data.files import blocks_of
from attnres_train.data.indexed import IndexedReader
from attnres_train.data.indexed_writer import IndexedWriter, PairFacts
from attnres_train.data.manifest import Manifest, SourceFile, open_pair
from attnres_train.data.paths import bin_path, idx_path, list_path, sidecar_path
from attnres_train.errors import Problem, Refused, refuse
from data_tools.command import Report, Tool, ToolParser, prefix_argument
from data_tools.progress import progress

DESCRIPTION = """\
Join pairs to one, documents in order. The parts that `preprocess --part` made are put in the order of their
numbers, all of them must be there, and the result is what one run without parts would have made, byte for byte.
Other pairs are joined in the order given; they must have been made with one tokenizer. Checksums are compared
while the tokens are copied. Pairs of other tools, without manifests, can be joined among each other.
"""

LISTS = ("metadata", "skipped")
ENDINGS = [str(path) for path in (bin_path(""), idx_path(""), *(list_path("", c) for c in LISTS), sidecar_path(""))]


@dataclass(frozen=True)
class Pair:
    """A pair that is joined, not kept open; `manifest` None for one of another tool."""

    prefix: str
    token_type: np.dtype[np.integer]
    bin_bytes: int
    manifest: Manifest | None

    @classmethod
    def opened(cls, prefix: str) -> Pair:
        """The pair, whole. Raises Refused if it is not."""
        reader, manifest = open_pair(prefix)
        return cls(prefix, reader.type, reader.num_tokens * reader.type.itemsize, manifest)


def add_options(parser: ToolParser) -> None:
    parser.add_argument("prefixes", nargs="+", metavar="PREFIX", help="a pair's path without .bin or .idx")
    parser.add_argument("--output", required=True, metavar="PREFIX", help="prefix of the files to write")
    parser.add_overwrite(otherwise="refuse")


def merge(arguments: argparse.Namespace) -> Report:
    """Write the joined pair.

    Raises Refused for pairs that are damaged or do not belong together, all problems at once, and for existing
    outputs.
    """
    pairs = _in_order(_open(arguments.prefixes))
    first = pairs[0]
    vocabulary_size = first.manifest.vocabulary_size if first.manifest else int(np.iinfo(first.token_type).max) + 1
    output = prefix_argument(arguments.output)
    outputs = {content: list_path(output, content) for content in LISTS}
    with (
        progress("merge", sum(pair.bin_bytes for pair in pairs)) as tell,
        IndexedWriter(output, vocabulary_size, arguments.existing, tuple(outputs.values()), first.token_type) as writer,
    ):
        copied = 0
        for pair in pairs:
            copied += _append(writer, pair)
            tell(copied, 0)
        for content, path in outputs.items():
            _join_lists(writer, path, [list_path(pair.prefix, content) for pair in pairs])
        facts = writer.finish()
        manifest = _manifest([pair.manifest for pair in pairs if pair.manifest], facts, writer.list_digests())
        writer.publish(manifest.to_json() if manifest else None)
    return {
        "status": "done",
        "output": output,
        "pairs": [pair.prefix for pair in pairs],
        "documents": facts.documents,
        "tokens": facts.tokens,
        "manifest": "written" if manifest else "none, as the pairs have none",
    }


def _open(names: Sequence[str]) -> list[Pair]:
    """The pairs that `names` name, each whole. Raises Refused for all that are not, and for one named twice."""
    pairs: list[Pair] = []
    problems: list[Problem] = []
    for prefix in _prefixes(names, problems):
        try:
            pairs.append(Pair.opened(prefix))
        except Refused as refused:
            problems.extend(refused.problems)
    if problems:
        raise Refused(problems)
    return pairs


def _prefixes(names: Sequence[str], problems: list[Problem]) -> list[str]:
    """The prefix of each pair once, in order. A shell pattern names all files of a pair; two prefixes are a mistake."""
    found: dict[str, str] = {}
    named: set[str] = set()
    for name in names:
        ending = next((ending for ending in ENDINGS if name.endswith(ending)), "")
        prefix = name.removesuffix(ending)
        real = os.path.realpath(prefix)
        if ending in ("", ".idx") and real in named:
            problems.append(Problem(prefix, "is given twice", "name each pair once"))
        if ending in ("", ".idx"):
            named.add(real)
        found.setdefault(real, prefix)
    return list(found.values())


def _in_order(pairs: list[Pair]) -> list[Pair]:
    """The pairs in the order in which they are joined. Raises Refused where they do not belong together."""
    first = pairs[0]
    problems = []
    for pair in pairs[1:]:
        for name, theirs, ours in _differences(pair, first):
            what = f"has {name} {theirs}, {first.prefix} has {ours}"
            problems.append(Problem(pair.prefix, what, "join pairs that were made with one tokenizer in one way"))
    parts = [pair.manifest.part for pair in pairs if pair.manifest and pair.manifest.part]
    if problems:
        raise Refused(problems)
    if not parts:
        return pairs
    of, numbers = parts[0].of, [part.number for part in parts]
    missing = sorted(set(range(1, of + 1)) - set(numbers))
    if missing or len(parts) < len(pairs) or len(set(numbers)) < len(numbers):
        named = ", ".join(map(str, missing)) or "none"
        what = f"are parts {', '.join(map(str, sorted(numbers)))} of {of}, missing: {named}; each part is wanted once"
        raise refuse(", ".join(pair.prefix for pair in pairs), what, "make the missing parts, or name all of them")
    ordered = [pair for _, pair in sorted(zip(numbers, pairs, strict=True), key=lambda numbered: numbered[0])]
    _check_shared(ordered)
    return ordered


def _check_shared(pairs: list[Pair]) -> None:
    """Raises Refused where parts that share a file have read different ones under its name."""
    rest: tuple[str, ...] = ()
    for pair in pairs:
        assert pair.manifest is not None and pair.manifest.part is not None
        part = pair.manifest.part
        if rest and part.begun and rest[: len(part.begun)] != part.begun:
            what = f"has read another {pair.manifest.sources[0].path} than the part that began it"
            raise refuse(pair.prefix, what, "make both parts again, of copies that are the same")
        rest = rest[len(part.begun) :] or part.rest


def _differences(pair: Pair, first: Pair) -> list[tuple[str, object, object]]:
    if pair.manifest is None or first.manifest is None:
        either = ("manifest", "none" if pair.manifest is None else "one", "none" if first.manifest is None else "one")
        found: list[tuple[str, object, object]] = [] if pair.manifest is first.manifest else [either]
        types = ("token type", pair.token_type.name, first.token_type.name)
        return found + ([types] if types[1] != types[2] else [])
    theirs, ours = pair.manifest, first.manifest
    plans = (theirs.part and (theirs.part.plan, theirs.part.of), ours.part and (ours.part.plan, ours.part.of))
    facts = [
        ("tokenizer", theirs.tokenizer_fingerprint, ours.tokenizer_fingerprint),
        ("end-of-document id", theirs.eod_id, ours.eod_id),
        ("token type", theirs.token_type, ours.token_type),
        ("metadata", theirs.options.get("metadata") or [], ours.options.get("metadata") or []),
        ("plan of the parts", *plans),
        *([("options", theirs.options, ours.options)] if any(plans) else []),
    ]
    return [(name, their, our) for name, their, our in facts if their != our]


def _append(writer: IndexedWriter, pair: Pair) -> int:
    """Copy the tokens, compare their checksum on the way, then the lengths; returns the bytes."""
    digest = hashlib.sha256()
    size = 0
    for block in blocks_of(bin_path(pair.prefix)):
        writer.add_tokens(block)
        digest.update(block)
        size += len(block)
    if pair.manifest is not None and digest.hexdigest() != pair.manifest.bin_sha256:
        what = f"has SHA-256 {digest.hexdigest()}, the manifest says {pair.manifest.bin_sha256}"
        raise refuse(str(bin_path(pair.prefix)), what, "copy the pair again, or make it again")
    largest, reader = pair.manifest.largest_id if pair.manifest else None, IndexedReader(pair.prefix)
    for lengths in reader.document_lengths():
        writer.add_lengths(lengths, largest)
    return size


def _join_lists(writer: IndexedWriter, output: Path, lists: list[Path]) -> None:
    found = [path for path in lists if path.exists()]
    if found:
        joined = writer.open_extra(output)
        for path in found:
            with open(path, "rb") as file:
                shutil.copyfileobj(file, joined)


def _manifest(manifests: list[Manifest], facts: PairFacts, lists: dict[str, str]) -> Manifest | None:
    if not manifests:
        return None
    counts: Counter[str] = Counter()
    for manifest in manifests:
        counts.update(manifest.counts)
    first = manifests[0]
    same_options = all(manifest.options == first.options for manifest in manifests)
    return replace(
        first,
        **asdict(facts),
        text_bytes=sum(manifest.text_bytes for manifest in manifests),
        sources=_sources(manifests),
        options=first.options
        if same_options
        else {"merged_pairs": len(manifests), "metadata": first.options.get("metadata") or []},
        counts=dict(counts),
        part=None,
        lists=lists,
        tool_version=__version__,
    )


def _sources(manifests: list[Manifest]) -> tuple[SourceFile, ...]:
    """All sources in order; a file that two parts share is one, with the checksum that one of them took."""
    sources: list[SourceFile] = []
    for manifest in manifests:
        for number, source in enumerate(manifest.sources):
            if number == 0 and manifest.part is not None and sources and _same_file(sources[-1], source):
                sources[-1] = replace(sources[-1], sha256=sources[-1].sha256 or source.sha256)
            else:
                sources.append(source)
    return tuple(sources)


def _same_file(one: SourceFile, other: SourceFile) -> bool:
    """By name and size: on another machine the folder and the time may differ."""
    return (Path(one.path).name, one.bytes) == (Path(other.path).name, other.bytes)


main = Tool("merge", DESCRIPTION, add_options, merge)


if __name__ == "__main__":
    sys.exit(main())
