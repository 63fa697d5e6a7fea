"""The `[tokenizer]` section."""

from __future__ import annotations

from pydantic import Field

from attnres_train.section import section


@section
class TokenizerConfig:
    model: str | None = None
    """Path of the sentencepiece model, or of the tokenizer.json, that the corpora were made with."""
    vocab_size: int | None = Field(default=None, ge=1)
    """Vocabulary size, where only a plan is wanted and no tokenizer exists yet."""
