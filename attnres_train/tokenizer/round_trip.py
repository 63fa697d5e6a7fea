"""What a tokenizer does to real text: whether it comes back, and in how many tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer
from attnres_train.tokenizer.words import SPACE_PIECE, groups

BATCH_CHARACTERS = 1 << 20
LINE_BREAK = ord("\n")


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
