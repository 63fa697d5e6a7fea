"""Small sentencepiece models of many kinds, and text that is difficult for them."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

from hypothesis import strategies as st
from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

TEXTS = [
    "a banana and an  ananas,\tand   bands\n    aabb  baab\n",
    "an\u00e9 \u03a9 nan dab 10 101 1001 (and) band-and. <b>bad</b> [REF] to be to be\n\n\n",
    "\u4e2d\u6587\u548c\u4e2d\u6587\u3002\u4e2d\u56fd\u4eba\u548c\u56fd\u4eba\uff0c\u4eba\u4eba\u4e2d\u548c\n",
] * 40
LOSSLESS: dict[str, Any] = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
    "allow_whitespace_only_pieces": True,
    "byte_fallback": True,
}
KINDS: dict[str, dict[str, Any]] = {
    "as train_tokenizer makes them": LOSSLESS,
    "with a space before the text, as Llama 2 and Mistral": LOSSLESS | {"add_dummy_prefix": True},
    "with symbols that are never divided, as Gemma": LOSSLESS
    | {"user_defined_symbols": ["\n\n", "\n\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "<b>", "</b>", "[REF]", "\t"]},
    "with pieces across spaces": LOSSLESS | {"split_by_whitespace": False},
    "digits apart, scripts together": LOSSLESS | {"split_digits": True, "split_by_unicode_script": False},
    "with every other long piece unused": LOSSLESS,
    "with few characters": LOSSLESS | {"character_coverage": 0.98, "vocab_size": 300},
    "without byte pieces": LOSSLESS | {"byte_fallback": False},
    "the library's defaults": {"model_type": "bpe"},
    "extra spaces removed": LOSSLESS | {"remove_extra_whitespaces": True},
    "unigram": LOSSLESS | {"model_type": "unigram"},
}
KEEPING = list(KINDS)[:7]
"""Kinds that keep text and are encoded word by word."""


def bare_model(**options: Any) -> bytes:
    """A model with the library's own defaults, but for `options`."""
    model = io.BytesIO()
    defaults: dict[str, Any] = {
        "sentence_iterator": iter(TEXTS),
        "model_writer": model,
        "vocab_size": 360,
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    SentencePieceTrainer.train(**defaults | options)
    return model.getvalue()


@cache
def model_of_kind(kind: str) -> bytes:
    model = bare_model(**{"model_type": "bpe", "max_sentence_length": 1 << 16} | KINDS[kind])
    return _with_unused_pieces(model) if "unused" in kind else model


def _with_unused_pieces(model: bytes) -> bytes:
    specification = ModelProto.FromString(model)
    long = [piece for piece in specification.pieces if len(piece.piece) > 1 and piece.type == piece.NORMAL]
    for piece in long[::2]:
        piece.type = piece.UNUSED
    found: bytes = specification.SerializeToString()
    return found


SNIPPETS = [
    *("banana", " and", "an", "to be", " be to", "<b>", "</b>", "[REF]", "REF", "\n", "\n\n", "\n\n\n", "\r\n", "\t\t"),
    *(" ", "  ", "   ", "\u2581", "\u2581\u2581", "\u2581a", "1001", "10,1", "(and)", ". ", "\0", "\u00a0", "\u2585"),
    *("\u4e2d\u6587", "\u548c", "\u4eba\u4eba", "\u3002", "\uff0c", "\u56fd", "\u03a9", "e\u0301", "\u00e9", "\ufeff"),
    *(
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u0627\u0644\u0639",
        "\u202e",
        "\ufb01",
        "\ufffd",
        "\ufffe",
        "</s>",
    ),
]
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
DIFFICULT_TEXT = st.lists(
    st.sampled_from(SNIPPETS) | st.text(alphabet="abdn \n10,<>/", max_size=6) | ANY_TEXT.map(lambda text: text[:3]),
    max_size=25,
).map("".join)
