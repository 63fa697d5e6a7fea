"""Which files are read: files, folders, patterns and lists of these, checked before any work begins."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

from attnres_train.errors import Problem, Refused, refuse

KINDS = (".jsonl", ".txt", ".parquet")
COMPRESSIONS = ("", ".gz", ".zst", ".bz2", ".xz")
KNOWN_ENDINGS = tuple(kind + compression for kind in KINDS for compression in COMPRESSIONS)
LIST_SIGN = "@"
"""`@FILE` stands for the inputs that FILE names, one a line."""


@dataclass(frozen=True)
class Inputs:
    """The files to read, in order, and what lies in given folders and is not read."""

    files: tuple[Path, ...]
    ignored: tuple[Path, ...]

    @property
    def total_bytes(self) -> int:
        """Size on disk, compressed where the files are."""
        return sum(path.stat().st_size for path in self.files)


def kind_of(path: Path) -> str:
    """Which of KINDS the name says the file is of.

    Raises ValueError for an ending that is not known.
    """
    name = path.name.removesuffix(compression_of(path))
    for kind in KINDS:
        if name.endswith(kind):
            return kind
    raise ValueError(f"{path} is of no known kind")


def compression_of(path: Path) -> str:
    """Which of COMPRESSIONS the name says; "" for none."""
    return path.suffix if path.suffix in COMPRESSIONS else ""


def is_known(path: Path) -> bool:
    """Whether the reader knows the ending of the file's name."""
    return path.name.endswith(KNOWN_ENDINGS)


def find_inputs(arguments: Sequence[str]) -> Inputs:
    """The files that `arguments` name: in the order given, those of a folder or pattern sorted by path.

    Raises Refused, for all arguments at once, where one names no file, a file of unknown kind, one that may
    not be read, or a file a second time.
    """
    files: list[Path] = []
    ignored: list[Path] = []
    problems: list[Problem] = []
    for argument in _with_lists(arguments, problems):
        try:
            found, other = _expand(argument)
        except Refused as refused:
            problems.extend(refused.problems)
            continue
        files.extend(found)
        ignored.extend(other)
    problems.extend(_wrong(files))
    if problems:
        raise Refused(problems)
    return Inputs(tuple(files), tuple(ignored))


def _with_lists(arguments: Sequence[str], problems: list[Problem]) -> Iterator[str]:
    for argument in arguments:
        # A file that is really called @name is meant itself.
        if not argument.startswith(LIST_SIGN) or Path(argument).exists():
            yield argument
            continue
        path = Path(argument.removeprefix(LIST_SIGN))
        if not path.is_file():
            problems.append(Problem(argument, f"there is no list {path}", "correct the path after @"))
            continue
        try:
            lines = [line.strip() for line in path.read_bytes().decode("utf-8-sig").split("\n")]
        except UnicodeDecodeError as error:
            problems.append(Problem(argument, f"the list is not UTF-8: byte {error.start}", "convert it"))
            continue
        named = [line for line in lines if line and not line.startswith("#")]
        if not named:
            problems.append(Problem(argument, "the list names no input", "write one file, folder or pattern a line"))
        yield from named


def _expand(argument: str) -> tuple[list[Path], list[Path]]:
    path = Path(argument)
    if path.is_dir():
        below = sorted(_files_below(path, set()))
        known = [found for found in below if _is_wanted(found, path)]
        if not known:
            endings = ", ".join(KNOWN_ENDINGS)
            raise refuse(argument, "is a folder without files of a known kind", f"known endings: {endings}")
        return known, [found for found in below if not _is_wanted(found, path)]
    if path.exists():
        return [path], []
    if has_magic(argument):
        matches = [Path(match) for match in sorted(glob(argument, recursive=True)) if not Path(match).is_dir()]
        if not matches:
            raise refuse(argument, "the pattern matches no file", "correct the pattern or the working directory")
        return matches, []
    raise refuse(argument, "does not exist", "correct the path")


def _files_below(folder: Path, seen: set[str]) -> Iterator[Path]:
    """All files in `folder` and its folders, those behind links too, each folder once.

    Raises Refused for a folder that may not be read.
    """
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise refuse(str(folder), f"cannot be read: {error.strerror}", "change its permissions") from None
    for entry in entries:
        if entry.is_dir():
            yield from _files_below(entry, seen)
        else:
            yield entry


def _is_wanted(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return is_known(path) and not hidden


def _wrong(files: Sequence[Path]) -> Iterator[Problem]:
    seen: set[str] = set()
    for path in files:
        if (name := os.fsencode(path).decode(errors="backslashreplace")) != str(path):
            yield Problem(name, "its name is not UTF-8, so no report or manifest can hold it", "rename it")
        elif not is_known(path):
            endings = ", ".join(KNOWN_ENDINGS)
            yield Problem(str(path), "is of an unknown kind, told by the end of its name", f"known endings: {endings}")
        elif not path.exists():
            yield Problem(str(path), "is a link to nothing", "mend the link, or leave it out")
        elif not path.is_file():
            yield Problem(str(path), "is no plain file", "give a file that can be read more than once")
        elif not os.access(path, os.R_OK):
            yield Problem(str(path), "may not be read by this user", "change its permissions, or leave it out")
        real = os.path.realpath(path)
        if real in seen:
            yield Problem(name, "is given twice", "name each file once")
        seen.add(real)
