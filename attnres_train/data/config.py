"""The `[data]` section: the corpora, as prefixes of `.bin/.idx` pairs."""

from __future__ import annotations

from pathlib import PurePath
from typing import Literal

from attnres_train.section import section

Weights = dict[str, float]
"""Prefix -> weight."""


@section
class DataConfig:
    train: str | dict[str, float] | None = None
    """Prefix of a `.bin/.idx` pair, or `{prefix = weight}` for a blend."""
    valid: str | dict[str, float] | dict[str, str | dict[str, float]] | None = None
    """The same for validation; None trains without evaluation. A table whose values are prefixes or blends, not
    numbers, names several sets: `{web = "corpora/web", books = {"corpora/books" = 1}}`. Each has its curve,
    `loss/valid/NAME`; `loss/valid` is the mean over the tokens of all of them."""
    verify: Literal["drawn", "all"] = "drawn"
    """What is read of the corpora before the first step, to find one that was exchanged under its name: the index and
    some hundred blocks of tokens, drawn once for the run and kept in its checkpoints; or `all`, on every rank. Both
    are held against the pair's manifest as far as they go, and against the checkpoint."""
    isolate_documents: bool = False
    """Attention never reaches another document, in training and evaluation. A document's window then begins with the
    end-of-document token before it, which stands for the beginning; the pairs must have been made with one."""


def validation_sets(valid: str | dict[str, float] | dict[str, str | dict[str, float]] | None) -> dict[str, Weights]:
    """The blends to validate on, by name; a set that is the only one has the empty name.

    What a table means is in its values: numbers are weights of one blend, anything else is a set of that name.
    """
    if valid is None:
        return {}
    if isinstance(valid, dict) and any(not isinstance(value, float) for value in valid.values()):
        return {name: blend_weights(value) for name, value in valid.items() if not isinstance(value, float)}
    return {"": blend_weights(valid)}  # type: ignore[arg-type]


def source_names(source: str | dict[str, float] | None) -> dict[int, str]:
    """Short names for the sources of a blend, by their number in it; none where there are not two of weight above 0.

    What all prefixes begin or end with is left out: `en` and `de` of `corpora/en/train` and `corpora/de/train`.
    """
    weights = {} if source is None else blend_weights(source)
    drawn = {number: prefix for number, (prefix, weight) in enumerate(weights.items()) if weight}
    if len(drawn) < 2:
        return {}
    parts = [PurePath(prefix).parts for prefix in drawn.values()]
    while min(map(len, parts)) > 1 and len({part[0] for part in parts}) == 1:
        parts = [part[1:] for part in parts]
    while min(map(len, parts)) > 1 and len({part[-1] for part in parts}) == 1:
        parts = [part[:-1] for part in parts]
    names = ["/".join(part) for part in parts]
    return dict(zip(drawn, names if len(set(names)) == len(names) else drawn.values(), strict=True))


def blend_weights(source: str | Weights) -> Weights:
    """One form for both spellings: `{prefix: weight}`."""
    return {source: 1.0} if isinstance(source, str) else dict(source)
