"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 layer`, `2 layers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
