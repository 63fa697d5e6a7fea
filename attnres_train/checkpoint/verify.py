"""Whether the files of a checkpoint are those that were written. No torch here, and nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from attnres_train.checkpoint.checksum import record_of
from attnres_train.checkpoint.manifest import FILE_NAME, Manifest


def damages(
    folder: Path, manifest: Manifest, names: Iterable[str] | None = None, *, sizes_only: bool = False
) -> list[str]:
    """What is wrong with the files `names` of the checkpoint in `folder` (None: all), one line each."""
    return [
        text
        for name in (manifest.files if names is None else names)
        if (text := _damage(folder / name, manifest, name, sizes_only)) is not None
    ]


def share_of(manifest: Manifest, rank: int, ranks: int) -> list[str]:
    """The files that `rank` of `ranks` should look at, so that together they see each once, in even bytes."""
    shares: list[list[str]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for name, record in sorted(manifest.files.items(), key=lambda entry: -entry[1].bytes):
        lightest = loads.index(min(loads))
        shares[lightest].append(name)
        loads[lightest] += record.bytes
    return shares[rank]


def strangers(folder: Path, manifest: Manifest) -> list[str]:
    """Files that are in the folder and not in the manifest."""
    known = {*manifest.files, FILE_NAME}
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in found if name not in known)


def _damage(path: Path, manifest: Manifest, name: str, sizes_only: bool) -> str | None:
    expected = manifest.files[name]
    try:
        size = path.stat().st_size
        if size != expected.bytes:
            return f"{name} has {size} bytes, the manifest says {expected.bytes}"
        found = expected if sizes_only else record_of(path)
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    if found != expected:
        return f"{name} has checksum {found.crc32}, the manifest says {expected.crc32}"
    return None
