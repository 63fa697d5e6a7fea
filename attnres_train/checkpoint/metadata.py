"""Reading the metadata of a torch distributed checkpoint without running what is in it.

torch 2.13's `FileSystemReader.read_metadata` unpickles the file `.metadata`, which can run any code. A checkpoint's
metadata are plain descriptions, so a reader that knows their few types and refuses all others loses nothing.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

METADATA_FILE = ".metadata"
_DESCRIPTIONS = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size", "float32", "contiguous_format", "strided", "device"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath", "PurePosixPath", "Path"},
}
_ALSO_CALLED = {"pathlib._local": "pathlib"}
"""Where Python 3.13, and no other, says that a path's type is: what it saved is read by all."""


class ForeignType(pickle.UnpicklingError):
    """A type that no checkpoint of ours contains."""


class DescriptionUnpickler(pickle.Unpickler):
    """Knows the types that describe a checkpoint. Raises ForeignType for any other, before it is made."""

    def find_class(self, module: str, name: str) -> Any:
        known = _ALSO_CALLED.get(module, module)
        if name not in _DESCRIPTIONS.get(known, ()):
            raise ForeignType(f"the foreign type {module}.{name}")
        return super().find_class(known, name)


def read_metadata(folder: Path, files: Collection[str] | None = None) -> Metadata:
    """Raises OSError, or UnpicklingError for what is no metadata, has foreign types or leads beyond `files`, which are
    all in the folder where None."""
    data = (folder / METADATA_FILE).read_bytes()
    with _types_unchanged():
        metadata = DescriptionUnpickler(io.BytesIO(data)).load()
    if not isinstance(metadata, Metadata):
        raise ForeignType(f"a {type(metadata).__name__} in the place of the metadata")
    known = {path.name for path in folder.iterdir()} if files is None else files
    for name in {part.relative_path for part in (metadata.storage_data or {}).values()}:
        if name not in known:
            raise ForeignType(f"a part in {name!r}, which is no file of the checkpoint")
    return metadata


@contextmanager
def _types_unchanged() -> Iterator[None]:
    """Pickle's BUILD sets attributes of whatever it is given, of a type too: undo that, and raise ForeignType."""
    types = [_found(module, name) for module, names in _DESCRIPTIONS.items() for name in names]
    before = [(one, dict(vars(one))) for one in types if isinstance(one, type)]
    try:
        yield
    finally:
        changed = [one for one, attributes in before if _restored(one, attributes)]
    if changed:
        raise ForeignType(f"instructions to change {changed[0].__module__}.{changed[0].__qualname__}")


def _found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _restored(one: type, attributes: dict[str, Any]) -> bool:
    """Give `one` its `attributes` back; whether anything was different."""
    now = dict(vars(one))
    different = [name for name in now.keys() | attributes.keys() if now.get(name) is not attributes.get(name)]
    for name in different:
        if name in attributes:
            setattr(one, name, attributes[name])
        else:
            delattr(one, name)
    return bool(different)
