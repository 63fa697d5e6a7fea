"""What the weights of a checkpoint were made of, where its run did not train them from step 0 on. No torch here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

MANIFEST_FILE = "manifest.json"


class Source(NamedTuple):
    """A checkpoint that weights were taken from."""

    path: str
    step: int
    digest: str
    """SHA-256 of its manifest, which has the checksums of all its files."""
    share: float = 1.0
    """Of it in a mean; shares sum up to 1."""


class Origin(NamedTuple):
    """`weights`: the run began at step 0 with the weights of one source. `merge`: a mean of several."""

    how: Literal["weights", "merge"]
    sources: tuple[Source, ...]

    def __str__(self) -> str:
        named = ", ".join(f"{source.path} (step {source.step})" for source in self.sources)
        return f"began with the weights of {named}" if self.how == "weights" else f"a mean of {named}"


def digest_of(folder: Path) -> str:
    """That of the checkpoint in `folder`. Raises OSError."""
    return hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()


def origin_of(fields: Mapping[str, Any] | None) -> Origin | None:
    """As a manifest has it, in plain JSON. Raises TypeError or ValueError."""
    if fields is None:
        return None
    sources = tuple(Source(**source) for source in fields["sources"])
    if not sources:
        raise ValueError("its weights are made of nothing")
    return Origin(fields["how"], sources)


def plain_origin(origin: Origin | None) -> dict[str, Any] | None:
    """What `origin_of` reads."""
    if origin is None:
        return None
    return {"how": origin.how, "sources": [source._asdict() for source in origin.sources]}
