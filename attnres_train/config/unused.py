"""The problem of a value that others leave nothing to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnres_train.errors import Problem


@dataclass(frozen=True)
class Unused(Problem):
    """`made_by` are the keys whose values make it so; `instead` is what comes nearest, None for the default."""

    made_by: tuple[str, ...] = ()
    instead: Any = None
