"""Which files are read: files, folders, patterns and lists of these, checked before any work begins."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape, glob, has_magic
from pathlib import Path

from attnres_train.errors import Problem, Refused, refuse

KINDS = (".jsonl", ".txt", ".parquet")
COMPRESSIONS = ("", ".gz", ".zst", ".bz2", ".xz")
OTHER_NAMES = {".ndjson": ".jsonl", ".json": ".jsonl"}
"""Read as what they stand for where they are named outright or by a pattern: in a folder of data they are mostly
descriptions of it, and the lists that preprocessing writes beside it."""
KNOWN_ENDINGS = tuple(kind + compression for kind in (*KINDS, *OTHER_NAMES) for compression in COMPRESSIONS)
PRIVATE = ("_", ".")
"""How names begin that are left out of folders and patterns, though not where they are named outright."""
LIST_SIGN = "@"
"""`@FILE` stands for the inputs that FILE names, one a line."""


@dataclass(frozen=True)
class Inputs:
    """The files to read, in order; what is found in folders and by patterns and not read; and comments of lists."""

    files: tuple[Path, ...]
    ignored: tuple[Path, ...]
    comments: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Size on disk, compressed where the files are."""
        return sum(path.stat().st_size for path in self.files)

    def report(self) -> dict[str, list[str]]:
        """For a report: what was named or found and is not read."""
        return {"ignored_files": [str(path) for path in self.ignored], "comments_of_lists": list(self.comments)}


def kind_of(path: Path) -> str:
    """Which of KINDS the name says the file is of.

    Raises ValueError for an ending that is not known.
    """
    ending = ending_of(path)
    return OTHER_NAMES.get(ending, ending)


def ending_of(path: Path) -> str:
    """The ending that says so, without that of a compression.

    Raises ValueError for one that is not known.
    """
    name = path.name.removesuffix(compression_of(path))
    for ending in (*KINDS, *OTHER_NAMES):
        if name.endswith(ending):
            return ending
    raise ValueError(f"{path} is of no known kind")


def compression_of(path: Path) -> str:
    """Which of COMPRESSIONS the name says; "" for none."""
    return path.suffix if path.suffix in COMPRESSIONS else ""


def find_inputs(arguments: Sequence[str]) -> Inputs:
    """The files that `arguments` name: in the order given, those of a folder or pattern sorted by path.

    Raises Refused, for all arguments at once, where one names no file, a file of unknown kind, one that may
    not be read, or a file a second time.
    """
    files: list[Path] = []
    ignored: list[Path] = []
    comments: list[str] = []
    problems: list[Problem] = []
    for argument in _with_lists(arguments, comments, problems):
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
    return Inputs(tuple(files), tuple(ignored), tuple(comments))


def _with_lists(arguments: Sequence[str], comments: list[str], problems: list[Problem]) -> Iterator[str]:
    """The arguments, for a list what it names; a file that is really called @name or # name is meant itself."""
    for argument in arguments:
        if not argument.startswith(LIST_SIGN) or os.path.lexists(argument):
            yield argument
            continue
        path = Path(argument.removeprefix(LIST_SIGN))
        if not path.is_file():
            problems.append(Problem(argument, f"there is no list {path}", "correct the path after @"))
            continue
        try:
            lines = path.read_bytes().decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            problems.append(Problem(argument, f"the list is not UTF-8: byte {error.start}", "convert it"))
            continue
        named = 0
        for number, line in enumerate(map(str.strip, lines), start=1):
            if line.startswith("#") and not os.path.lexists(line):
                comments.append(f"{path}:{number}: {line}")
            elif line:
                named += 1
                yield line
        if not named:
            problems.append(Problem(argument, "the list names no input", "write one file, folder or pattern a line"))


def _expand(argument: str) -> tuple[list[Path], list[Path]]:
    """The files that `argument` names, and those that it passes over."""
    path = Path(argument)
    if not argument:
        raise refuse("INPUT", "is empty: a variable that is not set?", "name a file, a folder or a pattern")
    if path.is_dir():
        wanted, others = _in_folder(path)
        if not wanted:
            what = "is a folder without files of a known kind, besides those whose names begin with _ or ."
            others_read = f"those of {' and '.join(OTHER_NAMES)} are read where they are named outright"
            raise refuse(argument, what, f"known endings: {', '.join(KNOWN_ENDINGS)}; {others_read}")
        return wanted, others
    if os.path.lexists(path):
        return [path], []
    if not has_magic(argument):
        raise refuse(argument, "does not exist", "correct the path")
    return _of_pattern(path)


def _of_pattern(path: Path) -> tuple[list[Path], list[Path]]:
    relative = path.relative_to(path.anchor)
    named = [part for part in relative.parts if part[:1] in PRIVATE]
    wanted: set[Path] = set()
    others: set[Path] = set()
    for match in _matching(Path(path.anchor), relative.parts):
        if _is_private(match, named):
            others.update(_files_below(match, set()) if match.is_dir() else (match,))
        elif not match.is_dir():
            wanted.add(match)
        elif "**" not in relative.parts:  # else what is in it is matched too
            known, left = _in_folder(match)
            wanted.update(known)
            others.update(left)
    if not wanted:
        signs = "; [abc] stands for one of a, b and c: write [[] for [ itself" if "[" in str(path) else ""
        what = f"the pattern matches no file{signs}"
        raise refuse(str(path), what, "correct the pattern or the working directory")
    return sorted(wanted), sorted(others)


def _in_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of a known kind below `folder`, and those that are left out."""
    below = sorted(_files_below(folder, set()))
    known = [path for path in below if path.name.endswith(KNOWN_ENDINGS) and ending_of(path) not in OTHER_NAMES]
    wanted = [path for path in known if not _is_private(path.relative_to(folder))]
    return wanted, sorted(set(below) - set(wanted))


def _matching(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """What the `parts` of a pattern match in `folder`; a part that is there as it stands is no pattern."""
    if not parts:
        yield folder
        return
    here, rest = parts[0], parts[1:]
    if not has_magic(here) or os.path.lexists(folder / here):
        if os.path.lexists(folder / here):
            yield from _matching(folder / here, rest)
        return
    if here == "**" and rest:  # none of them
        yield from _matching(folder, rest)
    # Folders alone where more parts follow.
    for name in glob(f"{here}/" if rest else here, root_dir=folder, recursive=True):
        yield from _matching(folder / name, rest)


def _is_private(path: Path, named: Sequence[str] = ()) -> bool:
    """Whether writers keep `path` for themselves: files not done yet, logs, marks.

    A part that begins with _ or . says so, except for a partition (`_day=3`) and what one of `named` names.
    """
    private = [part for part in path.parts if part[:1] in PRIVATE and part != ".." and "=" not in part]
    return any(not any(fnmatchcase(part, name) for name in (*named, *map(escape, named))) for part in private)


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


def _wrong_name(path: Path, name: str) -> Problem:
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return Problem(name, "its name is not UTF-8, so no report or manifest can hold it", "rename it")
    what = f"its name is UTF-8, but the locale says that names are {sys.getfilesystemencoding()}"
    return Problem(name, what, "set LC_ALL=C.UTF-8, or PYTHONUTF8=1")


def _wrong(files: Sequence[Path]) -> Iterator[Problem]:
    seen: set[str] = set()
    for path in files:
        if (name := os.fsencode(path).decode(errors="backslashreplace")) != str(path):
            yield _wrong_name(path, name)
        elif not path.name.endswith(KNOWN_ENDINGS):
            endings = ", ".join(KNOWN_ENDINGS)
            yield Problem(str(path), "is of an unknown kind, told by the end of its name", f"known endings: {endings}")
        elif not path.exists():
            is_annex = "annex/objects" in os.readlink(path) if path.is_symlink() else False
            remedy = "get the file with `git annex get`" if is_annex else "mend the link, or leave it out"
            yield Problem(str(path), "is a link to nothing", remedy)
        elif not path.is_file():
            yield Problem(str(path), "is no plain file", "give a file that can be read more than once")
        elif not os.access(path, os.R_OK):
            yield Problem(str(path), "may not be read by this user", "change its permissions, or leave it out")
        real = os.path.realpath(path)
        if real in seen:
            yield Problem(name, "is given twice", "name each file once")
        seen.add(real)
