"""What every tokenizer offers, whatever library is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


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
    `keeps_text` says that decoding gives every text back as it was encoded.
    """

    name: str
    fingerprint: str
    vocab_size: int
    eod_id: int | None
    pad_id: int | None
    unk_id: int | None
    keeps_text: bool

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; never the id of a special piece, whatever the text spells."""
        ...

    def encode_many(self, texts: Sequence[str]) -> Encoded:
        """The ids of all `texts`, the same as of each alone, in much less time."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special pieces give nothing.

        Raises ValueError for ids outside the vocabulary.
        """
        ...
