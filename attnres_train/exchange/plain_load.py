"""Files of `torch.save` whose loading runs no code: containers, numbers, texts and tensors.

Beside these DeepSpeed 0.19.8 pickles three inert classes of its own, for which classes of ours stand in here. A file
that names anything else is refused; `tests/distributed/test_import_deepspeed.py` fails when DeepSpeed writes more.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from attnres_train.checkpoint.plain import why_not_loaded
from attnres_train.errors import Problem, Refused, refuse


class FragmentAddress:
    """Where the part of a parameter lies; not read, see partitions.py."""


class LossScale:
    """Of fp16, but written for every dtype; not read."""


class ZeroStage(int):
    """1, 2 or 3, or whatever else the file says."""


STAND_INS: Mapping[str, Callable[..., Any]] = {
    "deepspeed.utils.tensor_fragment.fragment_address": FragmentAddress,
    "deepspeed.runtime.fp16.loss_scaler.LossScaler": LossScale,
    "deepspeed.runtime.zero.config.ZeroStageEnum": ZeroStage,
}
"""The classes of DeepSpeed's that a file may name."""

DAMAGED = "copy the checkpoint again, or name an older one with --tag"


def load_plain(path: Path) -> dict[str, Any]:
    """The dictionary in the file at `path`; its tensors are mapped from the file, read only when they are used.

    Raises Refused where the file is missing, damaged, holds something else or names a type that is not plain.
    """
    if damage := _damage(path):
        raise Refused(Problem(str(path), damage, DAMAGED))
    try:
        with torch.serialization.safe_globals([(stand_in, name) for name, stand_in in STAND_INS.items()]):
            loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # damaged bytes can say anything
        again = (
            "save it again without what is no number, text, tensor, list or dict: see the client_state of your script"
        )
        remedy = again if isinstance(error, UnpicklingError) else DAMAGED
        raise refuse(str(path), why_not_loaded(error), remedy) from error
    if not isinstance(loaded, dict):
        raise refuse(str(path), f"holds a {type(loaded).__name__}, no dictionary", "give a checkpoint of DeepSpeed's")
    return loaded


def _damage(path: Path) -> str | None:
    """What is wrong with the bytes: torch.save writes a zip file with a checksum of every record.

    torch itself looks at none of them when it maps a file, and loads a flipped bit without a word.
    """
    try:
        if path.stat().st_size == 0:
            return "has no bytes"
        with zipfile.ZipFile(path) as records:
            wrong = records.testzip()
    except FileNotFoundError:
        return "is missing"
    except zipfile.BadZipFile as error:
        return f"is cut short or no file of torch.save: {error}"
    except (OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        return f"cannot be read: {error}"
    return None if wrong is None else f"is damaged: the checksum of its record {wrong} is not that of its contents"
