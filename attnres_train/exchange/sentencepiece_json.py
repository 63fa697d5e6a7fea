"""A sentencepiece model that keeps text, said in the words of Hugging Face's tokenizer.json.

Sentencepiece joins the two neighbours whose piece has the best score; `tokenizers` has a list of joins, the best first.
So every way to make each piece of two becomes a join, in the order of the scores.
"""

from __future__ import annotations

from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec  # type: ignore[attr-defined]

from attnres_train.tokenizer.words import SPACE_PIECE

_NORMAL, _CONTROL, _UNKNOWN = ModelProto.SentencePiece.NORMAL, ModelProto.SentencePiece.CONTROL, 2
_BYTE = ModelProto.SentencePiece.BYTE


class NotConvertible(Exception):
    """Why a model cannot be said so, for the model card."""


def tokenizer_json(content: bytes) -> dict[str, Any]:
    """Raises NotConvertible for a model that changes text or has pieces of other kinds."""
    model = ModelProto.FromString(content)
    normal = model.normalizer_spec
    changes = normal.precompiled_charsmap or normal.remove_extra_whitespaces or not normal.escape_whitespaces
    if changes or model.denormalizer_spec.precompiled_charsmap or model.trainer_spec.treat_whitespace_as_suffix:
        raise NotConvertible("it changes text before it encodes it")
    if {piece.type for piece in model.pieces} - {_NORMAL, _CONTROL, _UNKNOWN, _BYTE}:
        raise NotConvertible("it has pieces that are defined by hand")
    if not model.trainer_spec.byte_fallback:
        raise NotConvertible("it has no bytes for what has no piece")
    prefix = normal.add_dummy_prefix
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_PIECE}
    back = {"type": "Replace", "pattern": {"String": SPACE_PIECE}, "content": " "}
    first = [{"type": "Prepend", "prepend": SPACE_PIECE}] if prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    special = [(index, piece) for index, piece in enumerate(model.pieces) if piece.type in (_CONTROL, _UNKNOWN)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(index, piece.piece) for index, piece in special],
        "normalizer": {"type": "Sequence", "normalizers": [*first, spaces]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(model) if model.trainer_spec.model_type == TrainerSpec.BPE else _unigram(model),
    }


def _added(index: int, piece: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": piece, **flags}


def _unknown(model: ModelProto) -> str:
    return str(model.trainer_spec.unk_piece)


def _bpe(model: ModelProto) -> dict[str, Any]:
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == _NORMAL}
    joins = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            # A character joins with others whether it is in the vocabulary or not; longer parts have been joined.
            if all(len(part) == 1 or part in scores for part in (left, right)):
                joins.append((-score, left, right))
    vocabulary = {piece.piece: index for index, piece in enumerate(model.pieces)}
    lacking = [join for join in joins if join[1] not in vocabulary or join[2] not in vocabulary]
    if lacking:
        raise NotConvertible(f"its piece {''.join(lacking[0][1:])!r} is made of characters that are no pieces")
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": _unknown(model),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": [[left, right] for _, left, right in sorted(joins, key=lambda join: join[0])],
    }


def _unigram(model: ModelProto) -> dict[str, Any]:
    unknown = next(index for index, piece in enumerate(model.pieces) if piece.type == _UNKNOWN)
    vocabulary = [[piece.piece, piece.score] for piece in model.pieces]
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": True}
