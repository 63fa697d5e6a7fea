"""Text that does not come back from its tokens as it was: found, counted, and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnres_train.tokenizer.words import SPACE_PIECE, groups

if TYPE_CHECKING:
    from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer

BATCH_CHARACTERS = 1 << 20
LINE_BREAK = ord("\n")
MOST_NAMED = 5
LOSSLESS = "give a tokenizer that has tokens for all text and gives it back as it was"
"""The remedy."""


def lost_characters(text: str, decoded: str) -> Counter[str]:
    """The characters of `text` that `decoded` has less often; empty where both are equal."""
    return Counter() if text == decoded else Counter(text) - Counter(decoded)


def loss_in_words(counts: Mapping[str, int], lost: Mapping[str, int] | None = None) -> str | None:
    """What the `counts` of a manifest say of text that does not come back; None where all of it does.

    `lost` counts the characters one by one, where that is known.
    """
    number, unknown = counts.get("lost_characters", 0), counts.get("unknown_tokens", 0)
    altered = counts.get("altered_documents", 0)
    told = []
    if number:
        share = number / max(number, counts.get("characters", 0))
        percent = f"{share:.2%}" if share >= 0.0001 else "less than 0.01%"
        told.append(f"characters that do not come back from the tokens: {number:,} ({percent})")
    if unknown:
        told.append(f"unknown tokens: {unknown:,}")
    most = sorted((lost or {}).items(), key=lambda item: (-item[1], item[0]))[:MOST_NAMED]
    named = ", ".join(f"{character!r} ({count:,})" for character, count in most)
    added = f"documents that come back with characters added or moved: {altered:,}"
    parts = [", ".join(told), named and f"most often {named}", added if altered else ""]
    return "; ".join(filter(None, parts)) or None


@dataclass(frozen=True)
class RoundTrip:
    """Counts over some texts that were encoded and decoded.

    `differing` came back otherwise than they went in, and of those `differing_with_space_sign` hold U+2581, which
    comes back as a space. `byte_tokens` are bytes of characters that have no piece; of line breaks, which are always
    one byte in a model of `training.py`, they are not counted.
    """

    texts: int
    text_bytes: int
    characters: int
    tokens: int
    byte_tokens: int
    unknown_tokens: int
    pieces_used: int
    differing: int
    differing_with_space_sign: int


def check_round_trip(tokenizer: SentencePieceTokenizer, texts: Iterable[str]) -> RoundTrip:
    """Encode and decode `texts`, some at a time."""
    used = np.zeros(tokenizer.vocab_size, np.int64)
    num_texts = text_bytes = characters = differing = with_sign = 0
    for batch in groups(texts, len, BATCH_CHARACTERS):
        encoded = tokenizer.encode_many(batch)
        used += np.bincount(encoded.ids, minlength=len(used))
        ends = np.cumsum(encoded.lengths)
        for text, ids in zip(batch, np.split(encoded.ids, ends[:-1]), strict=True):
            differs = tokenizer.decode(ids.tolist()) != text
            differing += differs
            with_sign += differs and SPACE_PIECE in text
            characters += len(text)
            text_bytes += len(text.encode())
        num_texts += len(batch)
    return RoundTrip(
        texts=num_texts,
        text_bytes=text_bytes,
        characters=characters,
        tokens=int(used.sum()),
        byte_tokens=int(used[[index for byte, index in enumerate(tokenizer.byte_ids) if byte != LINE_BREAK]].sum()),
        unknown_tokens=0 if tokenizer.unk_id is None else int(used[tokenizer.unk_id]),
        pieces_used=int(np.count_nonzero(used)),
        differing=differing,
        differing_with_space_sign=with_sign,
    )
