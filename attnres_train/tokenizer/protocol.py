"""What every tokenizer offers, whatever library is behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

MOST_NAMED = 20
"""Special pieces named in a refusal; some tokenizers have hundreds."""


class Encoded(NamedTuple):
    """The ids of some documents one after the other, nothing between them, and the number of ids of each.

    `cut_words` counts the words that were too long to be encoded in one piece; the ids around such a cut may
    differ from those the library gives for the whole word, the text does not.
    """

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]
    cut_words: int = 0


class Tokenizer(Protocol):
    """Text to ids and back. `load_tokenizer` makes one of a file.

    `fingerprint` is the SHA-256 of the file. `vocab_size` is above every id. `eod_id` ends a document, and is
    given for no text; it, `pad_id` and `unk_id` are None where the model has none or none was named.
    `special_pieces` are the names that can be given for the first. `keeps_text` says that decoding gives every
    text back as it was encoded.
    """

    name: str
    fingerprint: str
    vocab_size: int
    eod_id: int | None
    pad_id: int | None
    unk_id: int | None
    special_pieces: tuple[str, ...]
    keeps_text: bool

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; never the id of a special piece, whatever the text spells."""
        ids: list[int] = self.encode_many([text]).ids.tolist()
        return ids

    def encode_many(self, texts: Sequence[str]) -> Encoded:
        """The ids of all `texts`, the same as of each alone, in much less time.

        The first call makes ready what encoding needs, also one without texts: whoever forks makes that first.

        Raises UnicodeEncodeError for a text with a lone surrogate, which is no character.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special pieces give nothing.

        Raises ValueError for ids outside the vocabulary.
        """
        if outside := [index for index in ids if not 0 <= index < self.vocab_size]:
            raise ValueError(f"ids outside [0, {self.vocab_size}): {outside[:10]}")
        return self._decode(list(ids))

    def _decode(self, ids: list[int]) -> str:
        """The text of `ids` of the vocabulary."""
        ...


def joined(documents: Iterable[Sequence[int]]) -> Encoded:
    """The ids of documents that were encoded one by one."""
    each = [np.array(ids, np.int32) for ids in documents]
    return Encoded(np.concatenate([np.zeros(0, np.int32), *each]), np.array([len(ids) for ids in each], np.int64))


def listed(pieces: Sequence[str]) -> str:
    """The names of `pieces` for a message, of many the first."""
    names = ", ".join(pieces[:MOST_NAMED]) or "none"
    return names if len(pieces) <= MOST_NAMED else f"{names} and {len(pieces) - MOST_NAMED} more"
