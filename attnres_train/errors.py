"""The one exception for what a user must mend, and the exit codes every entry point shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of the commands, of every rank and of the launch scripts."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    STOPPED_ON_SIGNAL = 3


@dataclass(frozen=True)
class Problem:
    """One thing that must be mended before the work can start.

    `key` is the dotted setting, file or `file:line` the problem is about; `message` states the facts
    with their numbers; `remedy` says what to do.
    """

    key: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}\n    -> {self.remedy}"


@dataclass(frozen=True)
class Unused(Problem):
    """Of a value that others leave nothing to do: a file's gives way where the command line made it so.

    `made_by` are the keys whose values make it so; `instead` is what comes nearest, None for the default.
    """

    made_by: tuple[str, ...] = ()
    instead: Any = None


class Refused(Exception):
    """The request cannot be met as it stands; nothing was started, nothing half-written is left behind."""

    def __init__(self, problems: Problem | Sequence[Problem]):
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[Refused], tuple[tuple[Problem, ...]]]:
        """Between processes it travels as its problems, not as its text."""
        return type(self), (self.problems,)


def refuse(key: str, message: str, remedy: str) -> Refused:
    """A `Refused` about one problem, to be raised by the caller."""
    return Refused(Problem(key, message, remedy))


def problems_as_json(problems: Sequence[Problem]) -> list[dict[str, str]]:
    """As `--json` tells them."""
    return [{"key": p.key, "message": p.message, "remedy": p.remedy} for p in problems]
