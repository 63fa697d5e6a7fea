"""The `[data]` section: the corpora, as prefixes of `.bin/.idx` pairs."""

from __future__ import annotations

from attnres_train.section import section


@section
class DataConfig:
    train: str | dict[str, float] | None = None
    """Prefix of a `.bin/.idx` pair, or `{prefix = weight}` for a blend."""
    valid: str | dict[str, float] | None = None
    """The same for validation; None trains without evaluation."""
    isolate_documents: bool = False
    """Attention never reaches another document, in training and evaluation. A document's window then begins with the
    end-of-document token before it, which stands for the beginning; the pairs must have been made with one."""


def blend_weights(source: str | dict[str, float]) -> dict[str, float]:
    """One form for both spellings: `{prefix: weight}`."""
    return {source: 1.0} if isinstance(source, str) else dict(source)
