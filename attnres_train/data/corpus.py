"""Pairs cut into samples, and training data: samples of a blend of pairs, shuffled.

A sample of sequence length T is T + 1 tokens of the pair's documents taken as one stream; sample i begins at
token i T. Inputs are the first T tokens, labels the last T, so each token but the very first is a label once.

Where documents are isolated, the end-of-document token belongs to both its neighbours: as a label it ends its
document, as an input it begins the next one, which sees nothing before it. README.md draws it and says why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attnres_train.data.blend import Blend
from attnres_train.data.drawn import drawn_digest
from attnres_train.data.files import sha256_of_file
from attnres_train.data.manifest import Manifest, open_pair
from attnres_train.data.order import SampleOrder, derive_key
from attnres_train.data.paths import bin_path, idx_path, sidecar_path
from attnres_train.errors import Problem, Refused, refuse


class Sample(NamedTuple):
    """One sample; `sample_id` is `source:eEPOCH:index`, for example `0:e2:117`; tokens are [T + 1].

    `segments` [T] has the number of each input's document, counted from the start of the sample; None where documents
    are not isolated.
    """

    sample_id: str
    tokens: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int32] | None = None
    source: int = 0
    """Its number in the blend."""


@dataclass(frozen=True)
class Cut:
    """How pairs are opened and cut into samples of `sequence_length` T."""

    sequence_length: int
    vocabulary_size: int
    tokenizer_fingerprint: str | None = None
    """None where only the size of the vocabulary is known."""
    isolate_documents: bool = False
    read_all: bool = False
    """Whether all tokens are held against the manifest, not the index alone."""


class Corpus:
    """One pair, cut into samples.

    Raises Refused where the pair is damaged, shorter than one sample, or made with another tokenizer than that of
    `cut`; where its index, or with `read_all` its tokens, are not those that its manifest describes; and where
    `isolate_documents` asks for documents that the pair does not mark.
    """

    def __init__(self, prefix: str | Path, cut: Cut):
        self.prefix = str(prefix)
        self.cut = cut
        self.reader, self.manifest = open_pair(prefix)
        if self.manifest is not None:
            _check_contents(idx_path(prefix), self.index_sha256, self.manifest.idx_sha256)
            _check_tokenizer(self.prefix, self.manifest, cut.vocabulary_size, cut.tokenizer_fingerprint)
        self._all_sha256 = sha256_of_file(bin_path(prefix)) if cut.read_all else ""
        if self.manifest is not None and cut.read_all:
            _check_contents(bin_path(prefix), self._all_sha256, self.manifest.bin_sha256)
        self._separator = _require_eod(self.prefix, self.manifest) if cut.isolate_documents else None
        self.num_samples = max(0, self.reader.num_tokens - 1) // cut.sequence_length
        if self.num_samples < 1:
            raise refuse(
                self.prefix,
                f"holds {self.reader.num_tokens} tokens; one sample needs {cut.sequence_length + 1} "
                f"(sequence length {cut.sequence_length} + 1)",
                "use a larger corpus or a shorter training.sequence_length",
            )

    def sample(self, index: int) -> npt.NDArray[np.int64]:
        """The tokens [T + 1] of sample `index`.

        Raises Refused for an id outside the vocabulary, which only a pair without a manifest or with damaged
        bytes can hold.
        """
        if not 0 <= index < self.num_samples:
            raise IndexError(f"sample {index} of {self.num_samples}")
        length = self.cut.sequence_length
        tokens = self.reader.window(index * length, length + 1)
        lowest, highest = int(tokens.min()), int(tokens.max())
        if lowest < 0 or highest >= self.cut.vocabulary_size:
            wrong = lowest if lowest < 0 else highest
            raise refuse(
                f"{self.prefix}: sample {index}",
                f"holds id {wrong}, outside the vocabulary of {self.cut.vocabulary_size}",
                "use the tokenizer that the pair was made with, or copy the pair again",
            )
        return tokens

    def segments(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int32] | None:
        """The number of the document of each input of a sample, [T]; None unless documents are isolated.

        An end-of-document token counts to the document after it: as an input it says that one begins.
        """
        if self._separator is None:
            return None
        return np.cumsum(tokens[:-1] == self._separator, dtype=np.int32)

    @property
    def fingerprint(self) -> str:
        """What the pair holds: the checksum of its tokens, or its size where there is no manifest."""
        held = f"{self.reader.num_documents}:{self.reader.num_tokens}:{self.reader.type.name}"
        return f"{held}:{self.manifest.bin_sha256 if self.manifest else 'unknown'}"

    @cached_property
    def index_sha256(self) -> str:
        return sha256_of_file(idx_path(self.prefix))

    def bytes_mark(self, draw: int) -> str:
        """What the files hold, whatever a manifest says: `DRAW:INDEX:BLOCKS:ALL`, checksums of the whole index, of
        the blocks of tokens that `draw` chooses, and of all tokens (empty unless all were read)."""
        blocks = drawn_digest(bin_path(self.prefix), draw)
        return f"{draw}:{self.index_sha256}:{blocks}:{self._all_sha256}"


def _check_contents(path: Path, found: str, described: str) -> None:
    if found != described:
        what = f"has SHA-256 {found[:12]}, the manifest beside it describes {described[:12]}: another file, or damage"
        raise refuse(str(path), what, "copy the three files of the pair from one place, or make the pair again")


def _check_tokenizer(prefix: str, manifest: Manifest, vocabulary_size: int, fingerprint: str | None) -> None:
    key = str(sidecar_path(prefix))
    remedy = "set tokenizer.model to the model the pair was made with, or make the pair again with this one"
    problems = []
    if fingerprint is not None and fingerprint != manifest.tokenizer_fingerprint:
        stored = f"made with tokenizer {manifest.tokenizer_fingerprint} ({manifest.vocabulary_size} pieces)"
        problems.append(Problem(key, f"{stored}, this run has {fingerprint} ({vocabulary_size} pieces)", remedy))
    if manifest.largest_id is not None and manifest.largest_id >= vocabulary_size:
        what = f"the largest id {manifest.largest_id} is not below the vocabulary size {vocabulary_size}"
        problems.append(Problem(key, what, remedy))
    if problems:
        raise Refused(problems)


def _require_eod(prefix: str, manifest: Manifest | None) -> int:
    """The token that ends every document; text never becomes it, so where it stands a document ends."""
    if manifest is not None and manifest.eod_id is not None:
        return manifest.eod_id
    why = "has no manifest that names one" if manifest is None else "was made without one (--no-eod)"
    raise refuse(
        prefix,
        f"data.isolate_documents needs an end-of-document token, and the pair {why}",
        "make the pair with `python -m data_tools.preprocess`, or set data.isolate_documents = false",
    )


def open_all(weights: Mapping[str, float], cut: Cut) -> dict[int, Corpus]:
    """The corpora of weight above 0, by their number in `weights`; all problems are refused at once."""
    corpora: dict[int, Corpus] = {}
    problems: list[Problem] = []
    for number, (prefix, weight) in enumerate(weights.items()):
        if weight == 0:
            continue
        try:
            corpora[number] = Corpus(prefix, cut)
        except Refused as refused:
            problems.extend(refused.problems)
    if problems:
        raise Refused(problems)
    return corpora


@dataclass(frozen=True)
class SourceSummary:
    """One source of a run: what it holds, and what the run, or the rest of it, takes from it.

    `samples` and `tokens` are None for a source of weight 0, which is not opened.
    """

    prefix: str
    weight: float
    """Its share of the draws, as asked for."""
    samples: int | None
    tokens: int | None
    note: str
    """What there is to say of it besides."""
    before: int
    """Draws from it before these; 0 at the start of a run."""
    draws: int

    @property
    def epochs(self) -> float:
        """How far through it these draws end."""
        return (self.before + self.draws) / self.samples if self.samples else 0.0

    def __str__(self) -> str:
        """One line for the start of a run."""
        if self.samples is None:
            return f"{self.prefix}: weight 0, unused"
        still, begin = (" more", f"{self.before / self.samples:.2f} to ") if self.before else ("", "")
        drawn = f"draws {self.draws:,}{still}, epochs {begin}{self.epochs:.2f}"
        return f"{self.prefix}: {self.tokens:,} tokens, {self.samples:,} samples; {drawn}{self.note}"


class TrainingData:
    """The endless, shuffled blend of a run's corpora; what is at a position depends on the position alone.

    `weights` maps prefixes to weights, which need not sum to 1; the sources are numbered in its order. Each
    source goes into its own next epoch when it is used up. Weight 0 leaves a source out, unopened.

    Raises Refused as `Blend` and `Corpus` do, for all corpora at once.
    """

    def __init__(self, weights: Mapping[str, float], cut: Cut, seed: int):
        self.weights = dict(weights)
        self.cut = cut
        self.seed = seed
        self.blend = Blend(self.weights)
        self.corpora = open_all(self.weights, cut)
        # A key of its own for every source, or corpora of equal size would be shuffled alike.
        self._orders = {
            number: SampleOrder(corpus.num_samples, derive_key(seed, number)) for number, corpus in self.corpora.items()
        }

    def sample(self, position: int) -> Sample:
        """The sample at one position."""
        return self.samples(np.array([position]))[0]

    def samples(self, positions: npt.NDArray[np.integer]) -> list[Sample]:
        """The samples at `positions`, counted from the start of the run."""
        sources, ordinals = self.blend.locate(positions)
        epochs, indices = np.empty_like(ordinals), np.empty_like(ordinals)
        for number in np.unique(sources).tolist():
            here = sources == number
            epochs[here], indices[here] = self._orders[number].locate(ordinals[here])
        places = zip(sources.tolist(), epochs.tolist(), indices.tolist(), strict=True)
        return [cut_sample(f"{s}:e{epoch}:{i}", self.corpora[s], s, i) for s, epoch, i in places]

    def summary(self, total_samples: int, drawn: int = 0) -> list[SourceSummary]:
        """What `total_samples` draws from the start of the run take from each source, but for the first `drawn`."""
        total_weight = sum(map(Fraction, self.weights.values()))  # exact: a sum of floats may overflow
        sources = zip(self.weights.items(), self.blend.draws(drawn), self.blend.draws(total_samples), strict=True)
        return [
            _summarized(prefix, float(Fraction(weight) / total_weight), self.corpora.get(number), before, after)
            for number, ((prefix, weight), before, after) in enumerate(sources)
        ]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all that the order depends on: equal on ranks that see the same samples."""
        parts = [f"{self.seed} {self.cut.sequence_length} {self.blend.counts}"]
        parts += [f"{number} {corpus.fingerprint}" for number, corpus in self.corpora.items()]
        return digest_of(parts)


def cut_sample(name: str, corpus: Corpus, source: int, index: int) -> Sample:
    """Sample `index` of `corpus`, which has the number `source` in its blend."""
    tokens = corpus.sample(index)
    return Sample(name, tokens, corpus.segments(tokens), source)


def _summarized(prefix: str, share: float, corpus: Corpus | None, before: int, after: int) -> SourceSummary:
    if corpus is None:
        return SourceSummary(prefix, share, None, None, "", before, after - before)
    note = "" if corpus.manifest else "; no manifest: made with which tokenizer is not known"
    return SourceSummary(prefix, share, corpus.num_samples, corpus.reader.num_tokens, note, before, after - before)


def digest_of(parts: list[str]) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
