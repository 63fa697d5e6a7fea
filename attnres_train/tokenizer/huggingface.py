"""Hugging Face's tokenizer.json, loaded and checked."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any

from tokenizers import Regex
from tokenizers import Tokenizer as Library
from tokenizers.pre_tokenizers import Sequence as Stages
from tokenizers.pre_tokenizers import Split

from attnres_train.errors import refuse
from attnres_train.tokenizer.byte_level import can_cut, keeps_text
from attnres_train.tokenizer.cuts import starts_by_bytes
from attnres_train.tokenizer.file_kinds import looks_like_tokenizer_json, what_it_is
from attnres_train.tokenizer.protocol import Encoded, Tokenizer, joined, listed
from attnres_train.tokenizer.words import WordEncoder

MOST_WRONG = 5
"""Ids named in a refusal."""


class HuggingFaceTokenizer(Tokenizer):
    """Text to ids and back with one tokenizer.json, without its truncation, padding, dropout and post-processing.

    Special tokens are never made of text that spells them. Added tokens that the file does not call special are
    words of the tokenizer, and text that spells them becomes them.

    `eod_id` is the id of the special token that `eod_piece` names; None where none is named, since the file
    does not say which of its special tokens ends a document. `pad_id` is that of its padding, if it has one.
    `keeps_text` is true for byte-level tokenizers that change nothing; of others it is not known.

    Raises Refused for a file that is no tokenizer.json, for one whose ids the library does not keep, and for an
    `eod_piece` that is no special token.
    """

    def __init__(self, content: bytes, name: str = "tokenizer.json", eod_piece: str | None = None):
        self.name = name
        self.fingerprint = hashlib.sha256(content).hexdigest()
        stated = _stated(content, name)
        # The library's threads would multiply with the processes that encode, and would not survive a fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._library = _load(content, name)
        _require_stated_ids(stated, self._library, name)
        self.pad_id = (self._library.padding or {}).get("pad_id")
        self._library.no_padding()
        # As the library writes it the file has every key, also those that stood for their defaults.
        specification = json.loads(self._library.to_str())
        self._can_cut, self.keeps_text = can_cut(specification), keeps_text(specification)
        model, vocabulary = specification["model"], self._library.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocabulary.values())
        self.unk_id = model["unk_id"] if "unk_id" in model else vocabulary.get(model.get("unk_token"))
        added = self._library.get_added_tokens_decoder()
        special = {added[index].content: index for index in sorted(added) if added[index].special}
        self.special_pieces = tuple(special)
        self._not_in_text = set(special.values()) - {self.unk_id}
        self.eod_id = None if eod_piece is None else self._find_eod(special, eod_piece)

    def encode_many(self, texts: Sequence[str]) -> Encoded:
        """The ids of all `texts`, the same as of each alone.

        Byte-level tokenizers that split text as is usual are encoded word by word (`words.py`), with memory for a
        few slices of text. Others are encoded a document at a time, for which the library needs some 120 bytes a
        byte of the document, of odd text up to 200 (measured).
        """
        documents = [text.encode() for text in texts]
        if self._encode_words is None:
            return joined(self._encode_each([text])[0] for text in texts)
        return self._encode_words(documents)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._library.decode(ids, skip_special_tokens=True)
        return text

    @cached_property
    def _encode_words(self) -> WordEncoder | None:
        if self._can_cut is None:
            return None
        word_starts = partial(starts_by_bytes, self._can_cut)
        return WordEncoder(word_starts, lambda words: self._encode_each([word.decode() for word in words]))

    def _encode_each(self, texts: list[str]) -> list[list[int]]:
        each = self._ids_of(self._library, texts)
        for number, ids in enumerate(each):
            if not self._not_in_text.isdisjoint(ids):
                each[number] = self._encode_divided(texts[number])
        return each

    def _ids_of(self, library: Library, texts: list[str]) -> list[list[int]]:
        try:
            return [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
        except Exception as error:  # the library has no narrower type
            remedy = "give a tokenizer that has a token for every text, such as a byte-level one"
            raise refuse(self.name, f"cannot encode a text: {error}", remedy) from None

    def _encode_divided(self, text: str) -> list[int]:
        """The ids of a text that spells special tokens, by a vocabulary that has them among its words."""
        (ids,) = self._ids_of(self._library_that_divides, [text])
        if found := self._not_in_text.intersection(ids):
            pieces = listed([str(self._library.id_to_token(index)) for index in found])
            what = f"gives special tokens for text that spells them: {pieces}"
            raise refuse(self.name, what, "use another tokenizer, or take these out of the text")
        return ids

    @cached_property
    def _library_that_divides(self) -> Library:
        """The tokenizer, but one that splits what spells a special token after its first character."""
        rests = [f"(?<={re.escape(piece[0])}){re.escape(piece[1:])}" for piece in self.special_pieces if piece[1:]]
        library = Library.from_str(self._library.to_str())
        library.encode_special_tokens = True
        stages = [stage for stage in [library.pre_tokenizer] if stage is not None]
        library.pre_tokenizer = Stages([*stages, Split(Regex("|".join(rests)), "isolated")])
        return library

    def _find_eod(self, special: dict[str, int], piece: str) -> int:
        if piece not in special:
            what = f"{piece!r} is no special token of this tokenizer; its special tokens: {listed(tuple(special))}"
            raise refuse(self.name, what, "name one of them; other tokens can occur in text and so end nothing")
        if special[piece] == self.unk_id and not self.keeps_text:
            remedy = "name another special token"
            raise refuse(self.name, f"{piece!r} also stands for what is unknown in text", remedy)
        return special[piece]


def _load(content: bytes, name: str) -> Library:
    try:
        library = Library.from_str(content.decode("utf-8"))
    except Exception as error:  # the library has no narrower type
        remedy = "give the tokenizer.json of a model whose tokenizer the library `tokenizers` can load"
        raise refuse(name, f"is a tokenizer.json that `tokenizers` does not take: {error}", remedy) from None
    if library.get_vocab_size() == 0:
        raise refuse(name, "has no vocabulary", "give the tokenizer.json of a trained tokenizer")
    library.no_truncation()
    library.encode_special_tokens = True
    if hasattr(library.model, "dropout"):
        library.model.dropout = None
    return library


def _stated(content: bytes, name: str) -> dict[str, Any]:
    """What the file says. Raises Refused where it is no tokenizer.json."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not looks_like_tokenizer_json(found):
        remedy = "give the file tokenizer.json of a model, or a sentencepiece model under a name that ends in .model"
        raise refuse(name, f"is not a Hugging Face tokenizer.json: it is {what_it_is(content)}", remedy)
    return dict(found)


def _require_stated_ids(stated: dict[str, Any], library: Library, name: str) -> None:
    """Refuse a file that states other ids than the library gives, as it numbers added tokens by itself.

    After a hole in the vocabulary, or listed in another order, they would get the ids of others.
    """
    if wrong := list(islice(_wrong_ids(stated, library), MOST_WRONG)):
        remedy = "list the added tokens in the order of their ids, the first after the last one of the vocabulary"
        raise refuse(name, f"states ids that the library `tokenizers` does not keep: {'; '.join(wrong)}", remedy)


def _wrong_ids(stated: dict[str, Any], library: Library) -> Iterator[str]:
    tokens = [(token["content"], token["id"]) for token in stated["added_tokens"]]
    if padding := stated.get("padding"):
        tokens.append((padding["pad_token"], padding["pad_id"]))
    for token, index in tokens:
        found = library.token_to_id(token)
        if found not in (index, None):
            yield f"{token!r} has id {index} in the file and {found} in the library"
    owners = defaultdict(list)
    for token, index in library.get_vocab(with_added_tokens=True).items():
        owners[index].append(token)
    for index, held in owners.items():
        if len(held) > 1:
            yield f"id {index} is that of " + " and of ".join(map(repr, sorted(held)))
