"""The tokenizer's files of a Hugging Face folder: ids and text as in training, opened by AutoTokenizer.

A tokenizer.json goes in without truncation, padding, dropout and post-processing, which training does not use either.
Of a sentencepiece model that keeps text a tokenizer.json is made (`sentencepiece_json.py`); the model goes in, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnres_train.errors import refuse
from attnres_train.exchange.sentencepiece_json import NotConvertible, tokenizer_json
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.protocol import Tokenizer

_NONE = "The tokenizer is not in the folder: the run's settings name none, or it was left out."


@dataclass(frozen=True)
class TokenizerFiles:
    ends: Mapping[str, int | None]
    """For config.json and generation_config.json."""
    json_files: Mapping[str, Any]
    other_files: Mapping[str, bytes]
    note: str
    """For the model card."""


def without_tokenizer() -> TokenizerFiles:
    return TokenizerFiles({"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}, {}, {}, _NONE)


def tokenizer_files(path: Path, fingerprint: str | None, eod_piece: str | None, window: int) -> TokenizerFiles:
    """Those of the tokenizer at `path`; `window` is how many tokens the model was trained on at once.

    Raises Refused where it is not the one of `fingerprint`, which the run was trained with.
    """
    tokenizer = load_tokenizer(path, eod_piece)
    if fingerprint is not None and tokenizer.fingerprint != fingerprint:
        what = f"has fingerprint {tokenizer.fingerprint}, the run was trained with {fingerprint}"
        raise refuse(str(path), what, "give the tokenizer of the run: --tokenizer PATH")
    content, others, note = path.read_bytes(), {}, "The tokenizer gives the ids of training."
    if path.suffix.lower() == ".json":
        made = _plain(json.loads(content))
    else:
        others = {"tokenizer.model": content}
        try:
            made = tokenizer_json(content)
        except NotConvertible as why:
            note = f"The tokenizer is the sentencepiece model `tokenizer.model` alone: {why}."
            return TokenizerFiles(_ends(tokenizer), {}, others, note)
    return TokenizerFiles(
        _ends(tokenizer),
        {"tokenizer.json": made, "tokenizer_config.json": _config(tokenizer, made, window)},
        others,
        note,
    )


def _ends(tokenizer: Tokenizer) -> dict[str, int | None]:
    return {"bos_token_id": None, "eos_token_id": tokenizer.eod_id, "pad_token_id": tokenizer.pad_id}


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    """As `tokenizer/huggingface.py` uses it."""
    model = {**content["model"], "dropout": None} if "dropout" in content["model"] else content["model"]
    return {**content, "model": model, "truncation": None, "padding": None, "post_processor": None}


def _config(tokenizer: Tokenizer, made: Mapping[str, Any], window: int) -> dict[str, Any]:
    """`split_special_tokens`: text that spells a special piece stays text, as in training."""
    pieces = {token["id"]: token["content"] for token in made["added_tokens"]}
    vocabulary = made["model"]["vocab"]
    by_id = dict(enumerate(piece for piece, _ in vocabulary)) if isinstance(vocabulary, list) else {}
    by_id |= {index: piece for piece, index in vocabulary.items()} if isinstance(vocabulary, dict) else {}
    named = {"eos_token": tokenizer.eod_id, "pad_token": tokenizer.pad_id, "unk_token": tokenizer.unk_id}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": window,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        **{name: pieces.get(index, by_id.get(index)) for name, index in named.items() if index is not None},
    }
