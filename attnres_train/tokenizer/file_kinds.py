"""What a file that is no tokenizer seems to be, in words."""

from __future__ import annotations

import json
import re
from typing import Any

STARTS = {
    b"\x1f\x8b": "a gzip archive",
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "a zstandard archive",
    b"\xfd7zXZ": "an xz archive",
    b"BZh": "a bzip2 archive",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Word, Excel or PowerPoint document",
    b"%PDF": "a PDF document",
    b"{\\rtf": "a rich text document",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"GGUF": "a GGUF file of weights",
    b"\x89HDF": "an HDF5 file",
    b"version https://git-lfs": "a Git LFS pointer, not the file it points to (get that with `git lfs pull`)",
    b"<": "HTML or XML (a failed download?)",
}
TOKENIZER_JSON = "a Hugging Face tokenizer.json"
TIKTOKEN_RANKS = "a list of byte sequences and their ranks in tiktoken's format (as Llama 3's tokenizer.model)"
TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
PICKLE_START = re.compile(rb"\x80[\x02-\x05]")


def what_it_is(data: bytes) -> str:
    """What `data` seems to be: a sentence fragment for a refusal."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        return "empty"
    if data.startswith(b"PK\x03\x04"):
        return _kind_of_zip(data)
    if PICKLE_START.match(data):
        return "a Python pickle (weights or an object of torch?)"
    if 2 < int.from_bytes(data[:8], "little") < 1 << 30 and data[8:10] in (b'{"', b"{ "):
        return "a safetensors file of weights"
    if TIKTOKEN_LINE.match(data):
        return TIKTOKEN_RANKS
    start = data.lstrip()
    for magic, what in STARTS.items():
        if start.startswith(magic):
            return what
    if start[:1] in (b"{", b"[") and (found := _kind_of_json(data)):
        return found
    if all(byte >= 32 or byte in b"\t\r\n" for byte in data[:4096]):
        return "plain text"
    return "binary data of another kind, or a model that was cut short"


def looks_like_tokenizer_json(content: Any) -> bool:
    """Whether decoded JSON has the parts of Hugging Face's tokenizer.json."""
    return isinstance(content, dict) and isinstance(content.get("model"), dict) and "added_tokens" in content


def _kind_of_zip(data: bytes) -> str:
    for name, what in (
        (b"word/", "a Word document"),
        (b"xl/", "an Excel document"),
        (b"data.pkl", "a file of torch.save (weights?)"),
        (b".npy", "a NumPy archive"),
    ):
        if name in data[:4096] or name in data[-65536:]:
            return what
    return "a zip archive"


def _kind_of_json(data: bytes) -> str | None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return "something like JSON, but damaged or cut short" if data.lstrip()[:1] == b"{" else None
    if not isinstance(content, dict):
        return f"JSON, but no tokenizer.json: it holds a {type(content).__name__}"
    if looks_like_tokenizer_json(content):
        return TOKENIZER_JSON
    if {"config", "vocab"} <= content.keys():
        return "a tekken.json of Mistral, for which their models have a tokenizer.json too"
    if "tokenizer_class" in content:
        return "a Hugging Face tokenizer_config.json, which holds settings and no vocabulary"
    if content and all(isinstance(value, int) for value in content.values()):
        return "a vocabulary of pieces and their ids (vocab.json), which is only one part of a tokenizer"
    keys = ", ".join(list(content)[:6]) or "(none)"
    return f"JSON, but no tokenizer.json: it holds an object with the keys {keys}"
