"""EleutherAI's lm-eval on an export: its figures, nothing fetched.

The export is made in a temporary folder and taken away again. Tasks are names of the harness, whose data must be in
the caches of this machine then, or YAML files of one's own.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.manifest import read_manifest
from attnres_train.checkpoint.newest import checkpoint_of
from attnres_train.errors import refuse

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE", "TRANSFORMERS_OFFLINE")
_TASK_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class TaskAsk:
    """Which tasks, and how they are run."""

    path: Path
    tasks: tuple[str, ...]
    batch: int
    limit: int | None
    """At most so many documents of each task."""
    shots: int | None
    """None leaves it to the task."""
    dtype: str
    device: str | None
    tokenizer: Path | None
    eod_piece: str | None


def run_tasks(ask: TaskAsk) -> dict[str, Any]:
    """What the harness found, by task. Raises Refused where it is not installed, or a task cannot be run."""
    if importlib.util.find_spec("lm_eval") is None:
        raise refuse("--tasks", "lm-eval is not installed here", 'pip install "lm-eval[hf]"')
    checkpoint = checkpoint_of(ask.path)
    manifest = read_manifest(checkpoint)
    with tempfile.TemporaryDirectory(prefix="attnres-tasks-") as place:
        folder = Path(place) / "model"
        go_offline(os.environ, Path(place))
        _export(ask, checkpoint, folder)
        results = _harness(ask, folder)
    return {"checkpoint": str(checkpoint), "step": manifest.step, "tasks": results}


def go_offline(environment: MutableMapping[str, str], place: Path) -> None:
    """Before the harness is imported: nothing is fetched, and the export's code is copied to `place` alone."""
    environment.update(dict.fromkeys(_OFFLINE, "1"))
    environment["HF_MODULES_CACHE"] = str(place / "modules")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")


def _export(ask: TaskAsk, checkpoint: Path, folder: Path) -> None:
    from attnres_train.exchange.hf_export import export
    from attnres_train.exchange.hf_tokenizer import tokenizer_files

    manifest = read_manifest(checkpoint)
    named = manifest.settings.get("tokenizer.model")
    path = ask.tokenizer or (None if named is None else Path(named))
    if path is None or not path.is_file():
        what = f"there is no file {path}" if path else "the run's settings name none"
        raise refuse("tokenizer.model", what, "say where the run's tokenizer lies: --tokenizer PATH")
    window = int(manifest.settings.get("training.sequence_length", 0))
    tokenizer = tokenizer_files(path, manifest.fingerprints.get("tokenizer"), ask.eod_piece, window)
    if "tokenizer.json" not in tokenizer.json_files:
        raise refuse(str(path), tokenizer.note, "the harness needs a tokenizer.json; evaluate with --data instead")
    shard_bytes = 4096 * 2**20
    export(checkpoint, folder, dtype=ask.dtype, shard_bytes=shard_bytes, tokenizer=tokenizer, losses={})


def _harness(ask: TaskAsk, folder: Path) -> dict[str, Any]:
    import lm_eval
    import torch
    from lm_eval.tasks import TaskManager

    files = [Path(task) for task in ask.tasks if task.endswith(_TASK_FILES)]
    if absent := [str(path) for path in files if not path.is_file()]:
        raise refuse("--tasks", f"there is no file {absent[0]}", "correct the path")
    manager = TaskManager()
    unknown = [task for task in ask.tasks if not task.endswith(_TASK_FILES) and not manager.match_tasks([task])]
    if unknown:
        what = f"the harness has no task {unknown[0]!r}"
        raise refuse("--tasks", what, "`lm_eval ls tasks` lists them; a file of one's own ends in .yaml")
    device = ask.device or ("cuda" if torch.cuda.is_available() else "cpu")
    names = {"fp32": "float32", "bf16": "bfloat16"}
    try:
        found = lm_eval.simple_evaluate(
            model="hf",
            model_args={"pretrained": str(folder), "trust_remote_code": True, "dtype": names[ask.dtype]},
            tasks=[str(Path(task).resolve()) if task.endswith(_TASK_FILES) else task for task in ask.tasks],
            task_manager=manager,
            num_fewshot=ask.shots,
            batch_size=ask.batch,
            limit=ask.limit,
            device=device,
            log_samples=False,
            bootstrap_iters=0,
        )
    except (FileNotFoundError, ConnectionError) as error:
        what = f"a task's data are not on this machine, and nothing is fetched: {error}"
        raise refuse(
            "--tasks", what, "put them into the caches of `datasets` first, or name files of your own"
        ) from error
    return {name: _numbers(values) for name, values in (found or {"results": {}})["results"].items()}


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    """`{"acc": 0.5, ...}` of `{"acc,none": 0.5, "alias": ...}`; another filter's name stays."""
    return {
        name.removesuffix(",none"): value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def tasks_in_words(found: dict[str, Any]) -> str:
    """The answer for people."""
    lines = [f"{found['checkpoint']}: step {found['step']:,}, lm-eval"]
    for name, values in found["tasks"].items():
        lines.append(f"  {name}: " + ", ".join(f"{metric} {value:.6g}" for metric, value in values.items()))
    return "\n".join(lines)


def task_names(texts: Sequence[str]) -> tuple[str, ...]:
    """`--tasks a,b c` names three."""
    return tuple(name for text in texts for name in text.split(",") if name)
