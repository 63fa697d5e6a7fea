"""Text that does not come back from its tokens as it was: counted, and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

MOST_NAMED = 5
LOSSLESS = "give a tokenizer that has tokens for all text and gives it back as it was"
"""The remedy."""


def lost_characters(text: str, decoded: str) -> Counter[str]:
    """The characters of `text` that `decoded` has less often; empty where both are equal."""
    return Counter() if text == decoded else Counter(text) - Counter(decoded)


def loss_in_words(counts: Mapping[str, int], lost: Mapping[str, int] | None = None) -> str | None:
    """What the `counts` of a manifest say of text that does not come back; None where all of it does.

    `lost` counts the characters one by one, where that is known.
    """
    number, unknown = counts.get("lost_characters", 0), counts.get("unknown_tokens", 0)
    altered = counts.get("altered_documents", 0)
    told = []
    if number:
        share = number / max(number, counts.get("characters", 0))
        percent = f"{share:.2%}" if share >= 0.0001 else "less than 0.01%"
        told.append(f"characters that do not come back from the tokens: {number:,} ({percent})")
    if unknown:
        told.append(f"unknown tokens: {unknown:,}")
    most = sorted((lost or {}).items(), key=lambda item: (-item[1], item[0]))[:MOST_NAMED]
    named = ", ".join(f"{character!r} ({count:,})" for character, count in most)
    added = f"documents that come back with characters added or moved: {altered:,}"
    parts = [", ".join(told), named and f"most often {named}", added if altered else ""]
    return "; ".join(filter(None, parts)) or None
