"""The files of a Hugging Face folder: its configuration, and in which file each tensor lies. None of them is run.

Only safetensors are read: pickles can run code when they are loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from attnres_train.errors import Problem, Refused, refuse

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_AGAIN = "copy the folder again, all of its files"
_POINTER = b"version https://git-lfs"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_DTYPES = ("F32", "F16", "BF16")
_DERIVED = ".rotary_emb.inv_freq"
"""A buffer that old files have and that follows from the configuration."""


@dataclass(frozen=True)
class Stored:
    """One tensor: its file, its dtype in safetensors' word, its shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Folder:
    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    """By name; read from the heads of the files alone."""

    def read(self, name: str) -> Tensor:
        """The tensor as it is stored, mapped from its file. Raises Refused where it cannot be read."""
        with _readable(self.tensors[name].file), safe_open(self.tensors[name].file, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor


def looks_like_one(path: Path) -> bool:
    """Whether somebody who names `path` means such a folder."""
    return (path / CONFIG).exists() or any(path.glob("*.safetensors*"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object whose keys are all different. Raises Refused."""
    try:
        content = path.read_bytes()
        if content.startswith(_POINTER):
            raise _pointer(path)
        found = json.loads(content, object_pairs_hook=_once)
    except OSError as error:
        why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise refuse(str(path), why, _AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise refuse(str(path), f"is no JSON: {error}", _AGAIN) from error
    if not isinstance(found, dict):
        raise refuse(str(path), f"holds a {type(found).__name__}, not an object", _AGAIN)
    return found


def open_folder(path: Path) -> Folder:
    """What is in the folder. Raises Refused with everything that is wrong with its files."""
    if not path.is_dir():
        remedy = "a model of a hub is downloaded first (`hf download NAME --local-dir FOLDER`); then give its folder"
        raise refuse(str(path), f"there is no folder {path.absolute()}", remedy)
    config = read_json(path / CONFIG)
    wanted = _wanted(path)
    problems: list[Problem] = []
    tensors: dict[str, Stored] = {}
    for file in sorted(set(wanted.values()) if isinstance(wanted, dict) else wanted):
        try:
            held = _head(file)
        except Refused as refusal:
            problems += refusal.problems
            continue
        for name, stored in held.items():
            if name in tensors:
                what = f"{name} is in {tensors[name].file.name} as well"
                problems.append(Problem(str(file), what, "leave the files of one save alone in the folder"))
            tensors[name] = stored
        if isinstance(wanted, dict):
            problems += _unlike_the_index(file, held, wanted)
    if problems:
        raise Refused(problems)
    return Folder(path, config, {name: stored for name, stored in tensors.items() if not name.endswith(_DERIVED)})


def _wanted(path: Path) -> dict[str, Path] | Sequence[Path]:
    """The file of every tensor, as the index says, or the one file there is."""
    single, index = path / _SINGLE, path / _INDEX
    if single.exists() and index.exists():
        raise refuse(str(index), f"is there beside {single.name}: two saves in one folder", "remove the older one")
    if index.exists():
        return _indexed(index)
    if single.exists():
        return [single]
    names = sorted(file.name for file in path.iterdir())
    if pickles := [name for name in names if name.endswith(_PICKLES)]:
        what = f"the weights are in {pickles[0]}, a pickle, which can run code when it is loaded"
        remedy = "open it once with transformers where you trust it, and save it: save_pretrained writes safetensors"
        raise refuse(str(path / pickles[0]), what, remedy)
    others = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    what = f"is missing, and so is {_INDEX}" + (f"; {others[0]} is there" if others else "")
    remedy = f"{_AGAIN}; transformers reads other formats and writes this one (save_pretrained)"
    raise refuse(str(single), what, remedy)


def _indexed(index: Path) -> dict[str, Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise refuse(str(index), "has no weight_map, which says where each tensor lies", _AGAIN)
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            what = f"{name} is said to lie in {file!r}, which is no file of safetensors beside it"
            raise refuse(str(index), what, _AGAIN)
    missing = sorted({file for file in weight_map.values() if not (index.parent / file).exists()})
    if missing:
        rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise refuse(str(index.parent / missing[0]), f"is missing{rest}: {index.name} names it", _AGAIN)
    return {name: index.parent / file for name, file in weight_map.items()}


def _unlike_the_index(file: Path, held: Mapping[str, Stored], wanted: Mapping[str, Path]) -> list[Problem]:
    said = {name for name, where in wanted.items() if where == file}
    absent, extra = sorted(said - held.keys()), sorted(held.keys() - said)
    problems = [Problem(str(file), f"has no {name}, which {_INDEX} says it has", _AGAIN) for name in absent[:1]]
    return problems + [Problem(str(file), f"has {name}, of which {_INDEX} knows nothing", _AGAIN) for name in extra[:1]]


def _head(path: Path) -> dict[str, Stored]:
    """The tensors of one file. Raises Refused; safetensors holds the head against the size of the file."""
    with _readable(path):
        with open(path, "rb") as raw:
            if raw.read(len(_POINTER)) == _POINTER:
                raise _pointer(path)
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            found = {name: Stored(path, s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
    for name, stored in found.items():
        if stored.dtype not in _DTYPES and not name.endswith(_DERIVED):
            what = f"{name} is stored as {stored.dtype}: known are {', '.join(_DTYPES)}"
            raise refuse(str(path), what, "import the model as it was before it was quantized")
    return found


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Inside it what a file lacks is Refused, by its name."""
    try:
        yield
    except SafetensorError as error:
        raise refuse(str(path), f"is damaged or no file of safetensors: {error}", _AGAIN) from error
    except OSError as error:
        raise refuse(str(path), f"cannot be read: {error.strerror or error}", _AGAIN) from error


def _pointer(path: Path) -> Refused:
    return refuse(str(path), "is a pointer of Git LFS, not the file", "fetch the files: git lfs pull")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found
