"""Hostfiles: one `host slots=N` a line, as DeepSpeed reads them, and stricter, so that no line is misread.

    # comments and blank lines are skipped
    node-a slots=8
    node-b slots=8    # so is what follows a `#`

Refused, with file, line and text: a host twice (case does not matter), no slots or 0, a misspelt `slots`, spaces
round `=` (DeepSpeed does not read them), `user@host` (ranks connect to the name too; the user belongs in
~/.ssh/config), further words, a file without hosts. A file that was asked for and is not there is never taken for
"this machine alone".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from attnres_train.errors import Problem, Refused

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+")
LINE = "write `host slots=N`, such as `node-a slots=8`"


class Host(NamedTuple):
    """A line of a hostfile: `slots` ranks run on `name`."""

    name: str
    slots: int


def read_hostfile(path: str | Path) -> list[Host]:
    """The hosts of the file at `path`, in its order, which is the order of the node ranks.

    Raises Refused with every problem.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        what = f"hostfile {Path(path).absolute()} cannot be read: {error.strerror}"
        remedy = "correct the path, or leave --hostfile out to use this machine alone"
        raise Refused(Problem(str(path), what, remedy)) from error
    except UnicodeDecodeError as error:
        what = f"hostfile is not text: byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise Refused(Problem(str(path), what, LINE)) from error
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, path: str) -> list[Host]:
    """The hosts in `text`; `path` is what problems are reported for.

    Raises Refused with every problem.
    """
    hosts: list[Host] = []
    problems: list[Problem] = []
    lines: dict[str, int] = {}
    for number, line in _meaningful(text):
        found = _host(line)
        if isinstance(found, Host) and (first := lines.setdefault(found.name.lower(), number)) != number:
            found = (f"{found.name} is on line {first} already", "give each host one line, with all of its slots")
        if isinstance(found, Host):
            hosts.append(found)
        else:
            message, remedy = found
            problems.append(Problem(f"{path}:{number}", f"{message}: {line!r}", remedy))
    if not hosts and not problems:
        problems.append(Problem(f"{path}:{len(text.splitlines())}", "the hostfile names no host", LINE))
    if problems:
        raise Refused(problems)
    return hosts


def _meaningful(text: str) -> Iterator[tuple[int, str]]:
    """Numbers and text of the lines that say something. Only line feeds end lines, with or without a CR."""
    for number, line in enumerate(text.split("\n"), start=1):
        bare = re.sub(r"(^|\s)#.*", "", line.rstrip("\r")).strip()
        if bare:
            yield number, bare


def _host(line: str) -> Host | tuple[str, str]:
    """The host of `line`, or what is wrong with it and what to do."""
    name, *rest = line.split()
    if "@" in name:
        return "a user before the host", "write the host alone, and the user into ~/.ssh/config (Host, User)"
    if not HOST.fullmatch(name):
        return f"{name!r} is not a host name", LINE
    if not rest:
        return f"how many slots has {name}?", LINE
    if re.fullmatch(r"\S+\s*=\s*\S+", " ".join(rest)) and len(rest) > 1:
        return "spaces round `=`, which DeepSpeed does not read", LINE
    key, equals, value = rest[0].partition("=")
    if key != "slots" or not equals:
        return f"{rest[0]!r} is not `slots=N`", LINE
    if not re.fullmatch(r"[0-9]+", value):
        return f"{value!r} is not a number of slots", LINE
    if int(value) == 0:
        return f"{name} has 0 slots", "take the line out, or give it at least 1"
    if len(rest) > 1:
        return f"more than a host and its slots: {' '.join(rest[1:])!r}", LINE
    return Host(name, int(value))
