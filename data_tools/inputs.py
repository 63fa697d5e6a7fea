"""Which files are read: files, folders and patterns, checked before any work begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path

from attnres_train.data.files import sha256_of_file
from attnres_train.data.manifest import SourceFile
from attnres_train.errors import Problem, Refused, refuse

TEXT_KINDS = (".jsonl", ".txt")
COMPRESSIONS = ("", ".gz", ".xz", ".bz2")
KNOWN_ENDINGS = tuple(kind + compression for kind in TEXT_KINDS for compression in COMPRESSIONS)


@dataclass(frozen=True)
class Inputs:
    """The files to read, in order, and the files in given folders that are of no known kind."""

    files: tuple[Path, ...]
    ignored: tuple[Path, ...]

    @property
    def total_bytes(self) -> int:
        """Size on disk, compressed where the files are."""
        return sum(path.stat().st_size for path in self.files)


def is_known(path: Path) -> bool:
    """Whether the reader knows the ending of the file's name."""
    return path.name.endswith(KNOWN_ENDINGS)


def find_inputs(arguments: Sequence[str]) -> Inputs:
    """The files that `arguments` name: in the order given, those of a folder or pattern sorted by path.

    Raises Refused, for all arguments at once, where one names no file, a file of unknown kind, an empty file,
    or a file a second time.
    """
    files: list[Path] = []
    ignored: list[Path] = []
    problems: list[Problem] = []
    for argument in arguments:
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


def _expand(argument: str) -> tuple[list[Path], list[Path]]:
    path = Path(argument)
    if path.is_dir():
        below = [found for found in sorted(path.rglob("*")) if found.is_file()]
        visible = [found for found in below if not found.name.startswith(".")]
        known = [found for found in visible if is_known(found)]
        if not known:
            endings = ", ".join(KNOWN_ENDINGS)
            raise refuse(argument, "is a folder without files of a known kind", f"known endings: {endings}")
        return known, [found for found in visible if not is_known(found)]
    if path.exists():
        return [path], []
    if has_magic(argument):
        matches = [Path(match) for match in sorted(glob(argument, recursive=True)) if Path(match).is_file()]
        if not matches:
            raise refuse(argument, "the pattern matches no file", "correct the pattern or the working directory")
        return matches, []
    raise refuse(argument, "does not exist", "correct the path")


def _wrong(files: Sequence[Path]) -> Iterator[Problem]:
    seen: set[Path] = set()
    for path in files:
        if not is_known(path):
            endings = ", ".join(KNOWN_ENDINGS)
            yield Problem(str(path), "is of an unknown kind, told by the end of its name", f"known endings: {endings}")
        elif path.stat().st_size == 0:
            yield Problem(str(path), "is empty (0 bytes)", "leave it out, or make it again")
        if path.resolve() in seen:
            yield Problem(str(path), "is given twice", "name each file once")
        seen.add(path.resolve())


def describe_sources(files: Sequence[Path]) -> tuple[SourceFile, ...]:
    """Size, time and checksum of each file, for the manifest."""
    return tuple(
        SourceFile(
            path=str(path),
            bytes=path.stat().st_size,
            modified_ns=path.stat().st_mtime_ns,
            sha256=sha256_of_file(path),
        )
        for path in files
    )


def same_sources(files: Sequence[Path], sources: Sequence[SourceFile]) -> bool:
    """Whether `files` hold what `sources` describe, whatever their names: by size and time, or checksum."""
    if len(files) != len(sources):
        return False
    return all(_same_source(path, source) for path, source in zip(files, sources, strict=True))


def _same_source(path: Path, source: SourceFile) -> bool:
    status = path.stat()
    if status.st_size != source.bytes:
        return False
    return status.st_mtime_ns == source.modified_ns or sha256_of_file(path) == source.sha256
