"""What the parts of a tokenizer.json say about cutting text and about keeping it.

Byte-level tokenizers split text by a pattern before they join bytes. The patterns in wide use (GPT-2's, those of
Llama 3, Qwen, GPT-4o and Mistral) have in common that a match which reached an ASCII letter or digit never takes
in a space or punctuation after it, that one which reached punctuation never takes in a space, and that none looks
back. There, then, the pattern splits whatever else the text holds, and it can be cut. The apostrophe is left out:
"don't" is one match for some.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

_CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
QWEN = LLAMA_3.replace("{1,3}", "")
GPT_4O = "|".join(case + _CONTRACTIONS + "?" for case in _CASES) + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
MISTRAL = "|".join(_CASES) + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
KNOWN_PATTERNS = (GPT_2, LLAMA_3, QWEN, GPT_4O, MISTRAL)

Specification = Mapping[str, Any]
"""The content of a tokenizer.json as the library writes it, or a part of it."""


def can_cut(specification: Specification) -> NDArray[np.bool_] | None:
    """Whether text can be cut between two bytes, for each pair of them; None where nothing is known.

    Text is then normalised, split and encoded in parts as in one: cuts lie between ASCII characters, the second of
    which changes in no way what stands before it.
    """
    added = [token for token in specification["added_tokens"] if not token["special"]]
    if not (_joins_bytes(specification["model"]) and _splits_as_known(specification["pre_tokenizer"])):
        return None
    if {stage["type"] for stage in _stages(specification["normalizer"], "normalizers")} - {"NFC"}:
        return None
    # These ask what stands beside them, so a cut there could make or unmake them.
    if any(token["rstrip"] or token["single_word"] for token in added):
        return None
    table = _cuts_of_the_patterns()
    for token in specification["added_tokens"] if added else []:
        data = np.frombuffer(token["content"].encode(), np.uint8)
        table[data[:-1], data[1:]] = False
    return table


def keeps_text(specification: Specification) -> bool:
    """Whether decoding is known to restore every text: all bytes have a token, and nothing is changed or dropped."""
    model = specification["model"]
    stages = _stages(specification["pre_tokenizer"])
    byte_stages = [stage for stage in stages if stage["type"] == "ByteLevel"]
    return (
        not _stages(specification["normalizer"], "normalizers")
        and (specification["decoder"] or {}).get("type") == "ByteLevel"
        and _joins_bytes(model)
        and set(ByteLevel.alphabet()) <= model["vocab"].keys()
        and len(byte_stages) == 1
        and not byte_stages[0]["add_prefix_space"]
        and all(_drops_nothing(stage) for stage in stages)
        and all(_comes_back(token) for token in specification["added_tokens"] if not token["special"])
    )


def _cuts_of_the_patterns() -> NDArray[np.bool_]:
    table = np.zeros((256, 256), np.bool_)
    words = list((string.ascii_letters + string.digits).encode())
    others = list(string.punctuation.encode())
    followers = [byte for byte in others + list(b" \t\r\n") if byte != ord("'")]
    table[np.ix_(words, followers)] = True
    table[others, ord(" ")] = True
    return table


def _joins_bytes(model: Specification) -> bool:
    return model["type"] == "BPE" and not (model["continuing_subword_prefix"] or model["end_of_word_suffix"])


def _stages(part: Specification | None, name: str = "pretokenizers") -> list[Specification]:
    """The stages of a pre-tokenizer or normalizer; some files have a sequence of none."""
    if part is None:
        return []
    return list(part[name]) if part["type"] == "Sequence" else [part]


def _splits_as_known(pre_tokenizer: Specification | None) -> bool:
    *first, last = _stages(pre_tokenizer) or [{"type": "none"}]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return False
    if last["use_regex"]:
        return all(stage["type"] == "Digits" for stage in first)
    return len(first) == 1 and _is_known_split(first[0])


def _is_known_split(stage: Specification) -> bool:
    return (
        stage["type"] == "Split"
        and stage["pattern"].get("Regex") in KNOWN_PATTERNS
        and stage["behavior"] == "Isolated"
        and not stage["invert"]
    )


def _drops_nothing(stage: Specification) -> bool:
    return stage["type"] in ("ByteLevel", "Digits") or (stage["type"] == "Split" and stage["behavior"] != "Removed")


def _comes_back(token: Specification) -> bool:
    """Whether the decoder, which takes letters beyond ASCII for bytes, gives the token back as it stood."""
    return bool(token["content"].isascii() and not (token["lstrip"] or token["rstrip"]))
