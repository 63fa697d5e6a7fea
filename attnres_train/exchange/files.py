"""Which files a checkpoint of DeepSpeed's has: one of the model and, for every data rank, one of the optimizer.

FOLDER/latest                                                the name of the newest tag
FOLDER/TAG/mp_rank_00_model_states.pt                        ZeRO-1 and ZeRO-2
FOLDER/TAG/zero_pp_rank_0_mp_rank_00_model_states.pt         ZeRO-3, one a data rank
FOLDER/TAG/zero_pp_rank_0_mp_rank_00_optim_states.pt         one a data rank, with `bf16_` before it in bf16
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attnres_train.errors import Problem, Refused, refuse

_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_KEY = "checkpoint of DeepSpeed"
_WHOLE = "copy all files of the checkpoint, of every node that wrote some, or name another one with --tag"


@dataclass(frozen=True)
class Files:
    """The files in the folder of one tag; keys are (tensor rank, data rank)."""

    folder: Path
    model: Mapping[int, Path]
    """By tensor rank; of ZeRO-3 the first data rank's, which has every shape."""
    optimizer: Mapping[tuple[int, int], Path]


def find_files(folder: Path, tag: str | None) -> Files:
    """The files of the checkpoint `tag`, None for what `latest` names.

    Raises Refused where there are none, or files of a kind that cannot be imported.
    """
    tagged = _tag_folder(folder, tag)
    names = sorted(path.name for path in tagged.iterdir())
    if problems := list(_unsupported(tagged, names)):
        raise Refused(problems)
    model: dict[int, Path] = {}
    optimizer: dict[tuple[int, int], Path] = {}
    twice: list[Problem] = []
    for name in names:
        if (match := _MODEL.fullmatch(name)) and match[1] in (None, "0"):
            model[int(match[2])] = tagged / name
        elif match := _OPTIMIZER.fullmatch(name):
            place = (int(match[2]), int(match[1]))
            if place in optimizer:
                message = f"is there beside {optimizer[place].name}, of the same rank: two saves in one folder"
                twice.append(Problem(str(tagged / name), message, "remove the files of the older save"))
            optimizer[place] = tagged / name
    if twice:
        raise Refused(twice)
    _refuse_without(tagged, model, optimizer)
    return Files(tagged, model, optimizer)


def missing_and_extra(files: Files, data_ranks: int, tensor_ranks: int) -> Iterator[Problem]:
    """What the ranks that the checkpoint speaks of should have written and did not, or what others did."""
    expected = {(tensor, data) for tensor in range(tensor_ranks) for data in range(data_ranks)}
    counts = f"the checkpoint was written by {data_ranks} data ranks x {tensor_ranks} model-parallel ranks"
    for tensor, data in sorted(expected - files.optimizer.keys()):
        name = f"zero_pp_rank_{data}_mp_rank_{tensor:02d}_optim_states.pt"
        found = f"{len(files.optimizer)} of {len(expected)} optimizer files are there"
        yield Problem(str(files.folder / name), f"is missing: {counts}, {found}", _WHOLE)
    for place in sorted(files.optimizer.keys() - expected):
        message = f"is one too many: {counts}"
        yield Problem(str(files.optimizer[place]), message, "remove what another run has left in the folder")
    for tensor in sorted(set(range(tensor_ranks)) - files.model.keys()):
        message = f"is missing: {counts}"
        yield Problem(str(files.folder / f"*mp_rank_{tensor:02d}_model_states.pt"), message, _WHOLE)


def _tag_folder(folder: Path, tag: str | None) -> Path:
    absolute = folder.absolute()
    if not absolute.is_dir():
        raise refuse(_KEY, f"there is no folder {absolute}", "give the folder that save_checkpoint was given")
    tags = sorted(path.name for path in absolute.iterdir() if path.is_dir())
    known = f"name one with --tag: {', '.join(tags[:8])}" if tags else "give the folder that save_checkpoint was given"
    source = "--tag"
    if tag is None:
        latest = absolute / "latest"
        source = str(latest)
        try:
            tag = latest.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
            inside = any(_MODEL.fullmatch(path.name) for path in absolute.iterdir())
            remedy = f"give {absolute.parent} and --tag {absolute.name}" if inside else known
            raise refuse(source, f"{why}: it says which checkpoint is the newest", remedy) from error
    if not tag:
        raise refuse(source, "names no checkpoint: it is empty", known)
    if not (absolute / tag).is_dir():
        raise refuse(source, f"names {tag!r}, but there is no folder {absolute / tag}", known)
    return absolute / tag


def _unsupported(tagged: Path, names: list[str]) -> Iterator[Problem]:
    pipeline = [name for name in names if name.startswith("layer_") and name.endswith(".pt") and "expert" not in name]
    experts = [name for name in names if name.endswith(".pt") and ("expert_" in name or name.startswith("expp_rank_"))]
    if pipeline:
        message = f"{pipeline[0]} is of DeepSpeed's PipelineModule, whose checkpoints are not supported"
        yield Problem(str(tagged), message, "import a checkpoint of the whole model under ZeRO-1, -2 or -3")
    if experts:
        message = f"{experts[0]} is of a mixture of experts, which there is none of here"
        yield Problem(str(tagged), message, "import a checkpoint of this model")


def _refuse_without(tagged: Path, model: Mapping[int, Path], optimizer: Mapping[tuple[int, int], Path]) -> None:
    if not model and not optimizer:
        raise refuse(str(tagged), "has no *_model_states.pt and no *_optim_states.pt of DeepSpeed's", _WHOLE)
    if not model:
        raise refuse(str(tagged / "*_model_states.pt"), "is missing: it has the shapes and the position", _WHOLE)
    if not optimizer:
        message = "are missing: the run had ZeRO stage 0 or no optimizer, or the files were not copied"
        remedy = "copy them; a run without ZeRO goes on under ZeRO-1 for a step, saves, and is imported then"
        raise refuse(str(tagged / "*_optim_states.pt"), message, remedy)
