"""Names of the files of a corpus, which a check asks for without numpy."""

from __future__ import annotations

from pathlib import Path


def bin_path(prefix: str | Path) -> Path:
    """The token file of the pair `prefix`."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """The index of the pair `prefix`."""
    return Path(f"{prefix}.idx")


def sidecar_path(prefix: str | Path) -> Path:
    """The manifest of the pair `prefix`."""
    return Path(f"{prefix}.json")


def list_path(prefix: str | Path, content: str) -> Path:
    """A list beside the pair `prefix`: `metadata` of its documents, or the records that were `skipped`."""
    return Path(f"{prefix}.{content}.ndjson")
