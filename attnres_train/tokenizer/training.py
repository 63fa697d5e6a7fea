"""Train a sentencepiece model that keeps text as it is.

Nothing is normalised, spaces stay, and what has no piece of its own is spelt in bytes. A line break is always
one piece, the byte 0A, and no piece reaches across one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from attnres_train.errors import Refused, refuse
from attnres_train.tokenizer.sampling import stretches_of

MAX_LINE = 4096
"""Longest stretch of text, in characters, given to the trainer at once; longer lines are cut, not dropped."""
THREADS = 16
"""Fixed, because the sums of the unigram trainer, and so the model, depend on the number."""
UNUSABLE = re.compile("[\n\0\u2585]+")
"""Where text is cut for the trainer: at line breaks, and at the two characters (NUL and the trainer's own
U+2585) for which it would drop the whole line. Both are still encoded, in bytes."""


SMALLEST_VOCABULARY = 3 + 256 + 1
"""The special pieces, the bytes and one character."""
LARGEST_VOCABULARY = 1 << 24
"""Far above any in use; near 2^31 the trainer never ends."""
CROWDED = 1 / 4
"""Share of single characters in a vocabulary from which on a lower coverage is advised."""
COVERAGES = (0.9999, 0.9995, 0.999, 0.995, 0.99, 0.98)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What the trainer is asked for; the defaults keep every character that occurs.

    Raises Refused for a vocabulary size outside of SMALLEST_VOCABULARY to LARGEST_VOCABULARY.
    """

    vocab_size: int
    model_type: Literal["bpe", "unigram"] = "bpe"
    character_coverage: float = 1.0
    split_digits: bool = False

    def __post_init__(self) -> None:
        if not SMALLEST_VOCABULARY <= self.vocab_size <= LARGEST_VOCABULARY:
            what = f"is not from {SMALLEST_VOCABULARY} (special pieces, bytes, a character) to {LARGEST_VOCABULARY:,}"
            raise refuse(f"vocab size {self.vocab_size}", what, "ask for one between, say 32000")


def cut_for_training(text: str) -> Iterator[str]:
    """`text` in stretches of at most MAX_LINE characters, cut at line breaks and then at spaces if it can."""
    for line in filter(None, UNUSABLE.split(text)):
        yield from stretches_of(line, MAX_LINE)


def train_model(texts: Iterable[str], options: TrainingOptions) -> bytes:
    """The bytes of a model trained on all of `texts`, the same for the same texts and options.

    Ids: 0 unknown, 1 end of document, 2 padding, then 256 bytes, then learned pieces; no start piece.

    Raises Refused where the texts are empty, or too small or too varied for the vocabulary size.
    """
    stretches = _Relay(stretch for text in texts for stretch in cut_for_training(text))
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=stretches,
            model_writer=model,
            vocab_size=options.vocab_size,
            model_type=options.model_type,
            character_coverage=options.character_coverage,
            split_digits=options.split_digits,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            byte_fallback=True,
            max_sentence_length=4 * MAX_LINE + 1,
            unk_id=0,
            eos_id=1,
            pad_id=2,
            bos_id=-1,
            num_threads=THREADS,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        if stretches.error is not None:
            raise stretches.error from None
        raise _explain(str(error), options, stretches.count) from error
    return model.getvalue()


def smallest_vocabulary(model: bytes) -> int:
    """The vocabulary size below which the text of `model` could not be trained on: all but the joined pieces."""
    return sum(piece.type != piece.NORMAL or len(piece.piece) == 1 for piece in ModelProto.FromString(model).pieces)


def coverage_advice(model: bytes, texts: Sequence[str]) -> str | None:
    """What to do about a vocabulary that single characters crowd, judged by some of its `texts`; None where none do."""
    pieces = [piece.piece for piece in ModelProto.FromString(model).pieces if piece.type == piece.NORMAL]
    single = sum(len(piece) == 1 for piece in pieces)
    vocabulary = len(pieces) + SMALLEST_VOCABULARY - 1
    if single <= CROWDED * vocabulary or not texts:
        return None
    _, counts = np.unique(np.frombuffer("".join(texts).encode("utf-32-le"), "<u4"), return_counts=True)
    covered = np.sort(counts)[::-1].cumsum() / counts.sum()
    kept = {share: 1 + int(np.searchsorted(covered, share)) for share in COVERAGES}
    # The first that frees half of what they take, or the lowest there is.
    share = next((share for share, count in kept.items() if count <= single / 2), COVERAGES[-1])
    return (
        f"{single:,} of {vocabulary:,} pieces are single characters, {len(pieces) - single:,} are longer; "
        f"--character-coverage {share} would keep about {kept[share]:,} characters and spell the others in bytes, "
        "or ask for more pieces"
    )


class _Relay:
    """Passes on an iterator, and keeps its exception: the trainer would turn that into text."""

    def __init__(self, stretches: Iterator[str]):
        self._stretches = enumerate(stretches, start=1)
        self.count = 0
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            self.count, stretch = next(self._stretches)
        except BaseException as error:
            self.error = None if isinstance(error, StopIteration) else error
            raise
        return stretch


def _explain(message: str, options: TrainingOptions, count: int) -> Refused:
    """The trainer's message, in words that say what to do."""
    key = f"vocab size {options.vocab_size}"
    if count == 0 or "empty()" in message:  # it leaves out carriage returns and what spells its special pieces
        return refuse("training text", "holds no text", "give documents that are not blank")
    if found := re.search(r"set it to a value <= (\d+)", message):
        what = f"the text gives at most {found[1]} pieces"
        return refuse(key, what, f"ask for at most {found[1]}, or give more text")
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        what = f"the bytes, special pieces and characters of the text alone are {found[1]} pieces"
        return refuse(key, what, f"ask for at least {found[1]}, or lower the character coverage (say 0.9995)")
    return refuse("sentencepiece", f"cannot train: {message}", "mend what the message names")
