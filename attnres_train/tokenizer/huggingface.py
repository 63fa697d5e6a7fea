"""Hugging Face's tokenizer.json, loaded and checked."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Library

from attnres_train.errors import Refused, refuse
from attnres_train.tokenizer.file_kinds import looks_like_tokenizer_json, what_it_is
from attnres_train.tokenizer.protocol import Encoded


class HuggingFaceTokenizer:
    """Text to ids and back with one tokenizer.json, of which truncation, padding and post-processing are left out.

    `eod_id` is the id of the special token that `eod_piece` names; None where none is named, since the file
    does not say which of its special tokens ends a document. `pad_id` is that of its padding, if it has one.

    Raises Refused for a file that is no tokenizer.json, and for an `eod_piece` that is no special token.
    """

    def __init__(self, content: bytes, name: str = "tokenizer.json", eod_piece: str | None = None):
        self.name = name
        self.fingerprint = hashlib.sha256(content).hexdigest()
        specification = _parse(content, name)
        # The library's threads would multiply with the processes that encode, and do not survive a fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            self._library = Library.from_str(content.decode("utf-8"))
        except Exception as error:  # the library has no narrower type
            remedy = "give the tokenizer.json of a model whose tokenizer the library `tokenizers` can load"
            raise refuse(name, f"is JSON that `tokenizers` does not take: {error}", remedy) from None
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        self.vocab_size = 1 + max(self._library.get_vocab(with_added_tokens=True).values(), default=-1)
        self._special = {
            token.content: index
            for index, token in sorted(self._library.get_added_tokens_decoder().items())
            if token.special
        }
        self.eod_id = None if eod_piece is None else self._find_eod(eod_piece)
        self.pad_id = (specification.get("padding") or {}).get("pad_id")
        unknown = specification["model"].get("unk_token")
        self.unk_id = None if unknown is None else self._library.token_to_id(unknown)
        self.keeps_text = False

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; never the id of a special token, whatever the text spells."""
        ids: list[int] = self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def encode_many(self, texts: Sequence[str]) -> Encoded:
        """The ids of all `texts`, the same as of each alone."""
        each = [encoding.ids for encoding in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]
        lengths = np.fromiter(map(len, each), np.int64, len(each))
        return Encoded(np.fromiter(chain.from_iterable(each), np.int32, int(lengths.sum())), lengths)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens give nothing.

        Raises ValueError for ids outside the vocabulary.
        """
        ids = list(ids)
        if any(not 0 <= i < self.vocab_size for i in ids):
            raise ValueError(f"ids outside [0, {self.vocab_size}): {[i for i in ids if not 0 <= i < self.vocab_size]}")
        text: str = self._library.decode(ids, skip_special_tokens=True)
        return text

    def _find_eod(self, piece: str) -> int:
        if piece not in self._special:
            known = ", ".join(self._special) or "none"
            what = f"{piece!r} is no special token of this tokenizer; its special tokens: {known}"
            raise refuse(self.name, what, "name one of them; other tokens can occur in text and so end nothing")
        return self._special[piece]


def _parse(content: bytes, name: str) -> dict[str, Any]:
    try:
        specification = json.loads(content)
    except (ValueError, RecursionError):
        raise _not_a_tokenizer(name, what_it_is(content)) from None
    if not looks_like_tokenizer_json(specification):
        raise _not_a_tokenizer(name, what_it_is(content))
    found: dict[str, Any] = specification
    return found


def _not_a_tokenizer(name: str, what: str) -> Refused:
    remedy = "give the file tokenizer.json of a model, or a sentencepiece model under a name that ends in .model"
    return refuse(name, f"is not a Hugging Face tokenizer.json: it is {what}", remedy)
