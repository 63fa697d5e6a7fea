"""A sentencepiece model, loaded and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property, partial

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec  # type: ignore[attr-defined]

from attnres_train.errors import Refused, refuse
from attnres_train.tokenizer.cuts import Cuts
from attnres_train.tokenizer.file_kinds import TIKTOKEN_RANKS, TOKENIZER_JSON, what_it_is
from attnres_train.tokenizer.protocol import Encoded, Tokenizer, joined, listed
from attnres_train.tokenizer.words import SPACE_PIECE, WordEncoder

PIECES_OF_TEXT = (
    ModelProto.SentencePiece.NORMAL,
    ModelProto.SentencePiece.USER_DEFINED,
    ModelProto.SentencePiece.UNUSED,  # not given, but joined on the way to longer ones
)


class SentencePieceTokenizer(Tokenizer):
    """Text to ids and back with one model.

    `eod_id` is the model's own end piece, or the control piece named by `eod_piece`; None where there is
    neither. `byte_ids` are the ids of bytes, for what has no piece. `keeps_text` allows for one exception,
    U+2581, which comes back as a space.

    Raises Refused for a file that is no sentencepiece model, saying what it is, and for an `eod_piece` that
    is not a control piece of the model.
    """

    def __init__(self, model: bytes, name: str = "tokenizer", eod_piece: str | None = None):
        self.name = name
        self.fingerprint = hashlib.sha256(model).hexdigest()
        self._processor = SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            if _has_pieces(model):
                what = f"is a sentencepiece model that the library refuses: {str(error).removeprefix('INTERNAL: ')}"
                remedy = "it may be cut or damaged: copy it again, or give it as it was trained"
                raise refuse(name, what, remedy) from None
            raise _not_a_model(name, what_it_is(model)) from None
        self._model = ModelProto.FromString(model)
        self.vocab_size: int = self._processor.vocab_size()
        control_ids = filter(self._processor.is_control, range(self.vocab_size))
        self.special_pieces: tuple[str, ...] = tuple(map(self._processor.id_to_piece, control_ids))
        self.byte_ids: list[int] = list(filter(self._processor.is_byte, range(self.vocab_size)))
        self.eod_id = self._find_eod(eod_piece)
        self.pad_id = _none_if_absent(self._processor.pad_id())
        self.unk_id = _none_if_absent(self._processor.unk_id())
        self.keeps_text = _keeps_text(self._model)

    def encode_many(self, texts: Sequence[str]) -> Encoded:
        """The ids of all `texts`, the same as of each alone: those the library gives.

        Models that keep text and are trained by byte-pair encoding are encoded word by word (`words.py`), with
        memory for a few slices of text. Others are encoded a document at a time, for which the library needs
        33 to 51 bytes a byte of the document (measured).
        """
        if self._encode_words is None:
            return joined(self._processor.encode(text.encode()) for text in texts)
        # What the library does first, here done once for a whole document.
        prefix = " " if self._model.normalizer_spec.add_dummy_prefix else ""
        documents = [(prefix + text).replace(SPACE_PIECE, " ").encode() if text else b"" for text in texts]
        return self._encode_words(documents)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._processor.decode(ids)
        return text

    @cached_property
    def _encode_words(self) -> WordEncoder | None:
        """Encodes UTF-8 that has its prefix already; None for models that must see whole documents.

        Made when first used: whoever only wants the fingerprint need not wait for it.
        """
        if not self.keeps_text or self._model.trainer_spec.model_type != TrainerSpec.BPE:
            return None
        pieces = [piece.piece for piece in self._model.pieces if piece.type in PIECES_OF_TEXT]
        processor = self._processor
        if self._model.normalizer_spec.add_dummy_prefix:
            without_prefix = ModelProto()
            without_prefix.CopyFrom(self._model)
            without_prefix.normalizer_spec.add_dummy_prefix = False
            processor = SentencePieceProcessor(model_proto=without_prefix.SerializeToString())
        cuts = Cuts(piece.replace(SPACE_PIECE, " ") for piece in pieces)
        return WordEncoder(cuts.word_starts, partial(processor.encode, num_threads=1))

    def _find_eod(self, piece: str | None) -> int | None:
        if piece is None:
            return _none_if_absent(self._processor.eos_id())
        if piece not in self.special_pieces:
            what = f"{piece!r} is no control piece of this model; its control pieces: {listed(self.special_pieces)}"
            raise refuse(self.name, what, "name one of them; other pieces can occur in text and so end nothing")
        found: int = self._processor.piece_to_id(piece)
        return found


def _has_pieces(model: bytes) -> bool:
    try:
        return bool(ModelProto.FromString(model).pieces)
    except DecodeError:
        return False


def _none_if_absent(piece_id: int) -> int | None:
    return None if piece_id < 0 else piece_id


def _keeps_text(model: ModelProto) -> bool:
    """Whether decoding restores every text but U+2581: nothing normalised, bytes for what has no piece."""
    normalizer = model.normalizer_spec
    changes = (
        normalizer.precompiled_charsmap
        or normalizer.remove_extra_whitespaces
        or model.denormalizer_spec.precompiled_charsmap
    )
    plain = normalizer.escape_whitespaces and not model.trainer_spec.treat_whitespace_as_suffix
    return bool(model.trainer_spec.byte_fallback and plain and not changes)


def _not_a_model(name: str, what: str) -> Refused:
    remedy = "give a sentencepiece .model file; `python -m data_tools.train_tokenizer` makes one"
    if what == TOKENIZER_JSON:
        remedy = "give it a name that ends in .json, as tokenizer.json: by that it is told"
    elif what == TIKTOKEN_RANKS:
        remedy = "give the tokenizer.json of the same model, which most repositories have beside it"
    return refuse(name, f"is not a sentencepiece model: it is {what}", remedy)
