"""What torch's safe mode does not load, in words of our own: its advice is to leave the safe mode."""

from __future__ import annotations

import re
from pickle import UnpicklingError

_FOREIGN = re.compile(r"GLOBAL (\S+)")


class NotPlain(Exception):
    """A part of a checkpoint is not what it should be; the message says why, without the library's words."""


def why_not_loaded(error: Exception) -> str:
    """Why `torch.load(..., weights_only=True)` raised `error`; to stand behind the name of the file."""
    if isinstance(error, UnpicklingError):
        found = _FOREIGN.search(str(error))
        return f"names the foreign type {found[1]}, and could run code" if found else "is not plain, and could run code"
    first = (str(error).splitlines() or [""])[0]
    return f"cannot be read: {type(error).__name__}: {first}"
