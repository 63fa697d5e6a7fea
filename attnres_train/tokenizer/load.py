"""A tokenizer of a file, told by its name: `.json` is Hugging Face's tokenizer.json, all else sentencepiece."""

from __future__ import annotations

from pathlib import Path

from attnres_train.errors import refuse
from attnres_train.tokenizer.file_kinds import what_it_is
from attnres_train.tokenizer.protocol import Tokenizer

LARGEST_FILE = 1 << 30
"""Bytes; far above any tokenizer, and below what would fill the memory when weights are named by mistake."""


def load_tokenizer(path: str | Path, eod_piece: str | None = None) -> Tokenizer:
    """The tokenizer of the file at `path`; `eod_piece` names the special piece that ends documents.

    Raises Refused for a file that is missing or no tokenizer of the kind its name says, telling what it is,
    and for an `eod_piece` that is no special piece of it.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        remedy = "give the path of a sentencepiece model or a tokenizer.json, or make a model with "
        raise refuse(str(path), what, remedy + "`python -m data_tools.train_tokenizer`")
    if path.stat().st_size > LARGEST_FILE:
        with open(path, "rb") as file:
            what = f"is no tokenizer: it has {path.stat().st_size:,} bytes and is {what_it_is(file.read(1 << 16))}"
        raise refuse(str(path), what, "give the path of a sentencepiece model or a tokenizer.json")
    content = path.read_bytes()
    # Only the library that is needed is imported.
    if path.suffix.lower() == ".json":
        from attnres_train.tokenizer.huggingface import HuggingFaceTokenizer

        return HuggingFaceTokenizer(content, str(path), eod_piece)
    from attnres_train.tokenizer.sentencepiece import SentencePieceTokenizer

    return SentencePieceTokenizer(content, str(path), eod_piece)


def load_tokenizer_of(path: str | None, fingerprint: str | None) -> Tokenizer | None:
    """The tokenizer at `path`, if one is named, for a pair that was made with the tokenizer of `fingerprint`, if known.

    Raises Refused for another one, and as `load_tokenizer` does.
    """
    tokenizer = load_tokenizer(path) if path else None
    if tokenizer and fingerprint and tokenizer.fingerprint != fingerprint:
        what = f"has fingerprint {tokenizer.fingerprint}, the pair was made with {fingerprint}"
        raise refuse(str(path), what, "give the tokenizer that the pair was made with")
    return tokenizer
