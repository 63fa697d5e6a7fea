"""`attnres inspect`: what a run folder or a checkpoint holds, read from its small files alone."""

from __future__ import annotations

import argparse
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnres_train.checkpoint.folder import checkpoints_folder, named_steps, problems_at_a_glance, readable
from attnres_train.checkpoint.manifest import FILE_NAME, plain_fields, read_manifest
from attnres_train.cli.command import Answer, Command
from attnres_train.config.load import load_checked
from attnres_train.depth.describe import backend_in_words
from attnres_train.errors import refuse
from attnres_train.observe.record_lines import parse_record
from attnres_train.observe.settings_history import read_history
from attnres_train.parallel.device import device_type
from attnres_train.paths import path_argument
from attnres_train.plan.page import page_table, table
from attnres_train.words import counted

_EPILOG = """\
Reads config.toml, the end of metrics.jsonl and the manifests of checkpoints; no weights.

  attnres inspect runs/quickstart
  attnres inspect configs/quickstart.toml                which depth backend runs on this machine
  attnres inspect runs/quickstart/checkpoints/step-00000100 --json
"""
_LAST_STEPS = 3
_SHOWN_TAGS = ("loss/train", "loss/valid", "optim/lr", "optim/grad_norm", "throughput/tokens_per_second")
_GIB = 2**30


def inspect(path: Path) -> dict[str, Any]:
    """What stands at `path`, as plain JSON values: `kind` is `checkpoint` or `run`.

    Raises Refused for anything else, an unpublished checkpoint included, with the absolute path.
    """
    with readable(path):
        return _inspected(path, path.absolute())


def _inspected(path: Path, absolute: Path) -> dict[str, Any]:
    if Path(f"{absolute}.idx").exists():
        raise refuse(str(path), "is a pair of tokens, no run", f"`python -m data_tools.inspect {path}` shows it")
    if not absolute.exists():
        raise refuse(str(path), f"there is no {absolute}", "give a run folder, or RUN/checkpoints/step-XXXXXXXX")
    if not absolute.is_dir():
        raise refuse(str(path), f"{absolute} is a file", "give the folder of a run or of a checkpoint")
    if (absolute / FILE_NAME).exists():
        return {"kind": "checkpoint", "path": str(absolute), **_checkpoint(absolute)}
    if any((absolute / name).exists() for name in ("config.toml", "metrics.jsonl", "checkpoints")):
        return {"kind": "run", "path": str(absolute), **_run(absolute)}
    if absolute.name.lstrip(".").startswith("step-"):
        message = f"{absolute} was never published: it has no {FILE_NAME}, so its save was cut short"
        raise refuse(str(path), message, "use another checkpoint of the run")
    neither = f"neither a run (config.toml, metrics.jsonl, checkpoints/) nor a checkpoint ({FILE_NAME})"
    message = f"{absolute} is {neither}"
    raise refuse(str(path), message, "give a run folder, or RUN/checkpoints/step-XXXXXXXX")


def inspect_text(found: dict[str, Any]) -> str:
    """`inspect`'s result as a page of plain text."""
    return _checkpoint_text(found) if found["kind"] == "checkpoint" else _run_text(found)


def _checkpoint(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    plain = plain_fields(manifest)
    return {
        "step": manifest.step,
        "samples": manifest.samples,
        "tokens": manifest.tokens,
        "created": manifest.created,
        "parameters": sum(math.prod(tensor.shape) for tensor in manifest.tensors.values()),
        "tensors": plain["tensors"],
        "weight_decay": manifest.settings.get("optimizer.weight_decay"),
        "files": plain["files"],
        "bytes": manifest.bytes,
        "problems": problems_at_a_glance(folder),
        "grid": plain["grid"],
        "layers_per_stage": manifest.layers_per_stage,
        "versions": manifest.versions,
        "fingerprints": manifest.fingerprints,
        "origin": plain["origin"],
        "weights": None if manifest.origin is None else str(manifest.origin),
    }


def _run(folder: Path) -> dict[str, Any]:
    checkpoints = checkpoints_folder(folder)
    published = named_steps(checkpoints)
    others = sorted(p.name for p in checkpoints.iterdir() if p.is_dir()) if checkpoints.is_dir() else []
    config, config_problem = _config(folder / "config.toml")
    metrics, unreadable = _last_metrics(folder / "metrics.jsonl")
    return {
        "config": config,
        "config_problem": config_problem,
        "settings": [
            {"first": used.first, "last": used.last, "changed": used.changed, "in_words": [used.steps, str(used)]}
            for used in read_history(folder)
        ],
        "last_steps": metrics,
        "unreadable_metric_lines": unreadable,
        "checkpoints": [_listed(step, path) for step, path in published.items()],
        "unpublished": [name for name in others if name not in {path.name for path in published.values()}],
    }


def _config(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The resolved configuration; or None and why, where a file is there that cannot be read."""
    if not path.is_file():
        return None, None
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")), None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return None, f"{path}: {error}"


def _last_metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The last few steps of `metrics.jsonl`, and the number of lines that are no record: a kill may cut one.

    A step is all that is recorded of it: beside its loss a validation, a checkpoint, a look at the depth, in lines of
    their own. Steps with none of the shown numbers count only where there are no others.
    """
    if not path.is_file():
        return [], 0
    steps: dict[int, dict[str, Any]] = {}
    unreadable = 0
    for line in path.read_bytes().splitlines():
        if record := parse_record(line):
            steps.setdefault(record["step"], {}).update(record)
        else:
            unreadable += 1
    shown = {step: record for step, record in steps.items() if any(tag in record for tag in _SHOWN_TAGS)}
    last = sorted((shown or steps).items(), key=lambda item: item[0])[-_LAST_STEPS:]
    return [record for _, record in last], unreadable


def _listed(step: int, path: Path) -> dict[str, Any]:
    """One line of the list of checkpoints; a damaged one is listed with its problem."""
    problems = problems_at_a_glance(path)
    if problems:
        return {"step": step, "name": path.name, "problem": problems[0]}
    manifest = read_manifest(path)
    facts = {"tokens": manifest.tokens, "created": manifest.created, "bytes": manifest.bytes}
    return {"step": step, "name": path.name, "problem": None, **facts}


def _checkpoint_text(found: dict[str, Any]) -> str:
    grid = " * ".join(f"{axis} {degree}" for axis, degree in found["grid"].items())
    seen = f"{counted(found['samples'], 'sample')}, {counted(found['tokens'], 'token')}"
    facts = [
        ("position", f"step {found['step']:,}, {seen}"),
        ("created", found["created"]),
        ("parameters", f"{found['parameters']:,} in {counted(len(found['tensors']), 'tensor')}"),
        ("on disk", f"{found['bytes'] / _GIB:.3g} GiB in {counted(len(found['files']), 'file')}"),
        ("saved by", f"{grid}; layers a stage {found['layers_per_stage']}"),
        *([("weights", found["weights"])] if found["weights"] else []),
        ("versions", ", ".join(f"{name} {version}" for name, version in found["versions"].items())),
        *_decay_facts(found["tensors"], found["weight_decay"]),
        *((f"{name} is", mark) for name, mark in found["fingerprints"].items()),
    ]
    facts += [("damaged", problem) for problem in found["problems"]]
    return "\n".join([f"checkpoint {found['path']}", "", *page_table(facts)])


def _decay_facts(tensors: dict[str, dict[str, Any]], rate: float | None) -> list[tuple[str, str]]:
    """Which parameters decay, as their modules stated when the checkpoint was made; layers are not told apart."""
    facts = []
    for decays, title in ((True, f"decay {rate:g}" if rate is not None else "decay"), (False, "no decay")):
        mine = {name: math.prod(tensor["shape"]) for name, tensor in tensors.items() if tensor.get("decays") is decays}
        kinds = sorted({re.sub(r"^layers\.\d+\.", "", name) for name in mine})
        if mine:
            facts.append((title, f"{counted(sum(mine.values()), 'parameter')}: {', '.join(kinds)}"))
    return facts


def _run_text(found: dict[str, Any]) -> str:
    lines = [f"run {found['path']}", ""]
    if found["config_problem"]:
        lines += [f"  config.toml cannot be read: {found['config_problem']}", ""]
    elif found["config"] is None:
        lines += ["  no config.toml", ""]
    if len(found["settings"]) > 1:
        used = [("steps", "settings"), *(tuple(used["in_words"]) for used in found["settings"])]
        lines += [*table(used, indent=2), ""]
    lines += _metrics_lines(found["last_steps"], found["unreadable_metric_lines"])
    rows = [("checkpoint", "tokens", "GiB", "created")]
    for entry in found["checkpoints"]:
        if entry["problem"]:
            rows.append((entry["name"], "", "", f"damaged: {entry['problem']}"))
        else:
            rows.append((entry["name"], f"{entry['tokens']:,}", f"{entry['bytes'] / _GIB:.3g}", entry["created"]))
    lines += table(rows, indent=2, right=(1, 2)) if len(rows) > 1 else ["  no checkpoint yet"]
    lines += [f"  not published: {name}" for name in found["unpublished"]]
    return "\n".join(lines)


def _metrics_lines(records: list[dict[str, Any]], unreadable: int) -> list[str]:
    if not records:
        return ["  no step logged yet", ""]
    tags = [tag for tag in _SHOWN_TAGS if any(tag in record for record in records)]
    rows = [("step", "tokens", *tags)]
    for record in records:
        values = [_shown(record.get(tag)) for tag in tags]
        rows.append((str(record.get("step", "")), str(record.get("tokens", "")), *values))
    lines = table(rows, indent=2, right=range(len(rows[0])))
    return [*lines, *([f"  ({counted(unreadable, 'line')} not readable)"] if unreadable else []), ""]


def _shown(value: Any) -> str:
    try:
        return f"{value:.4g}" if isinstance(value, int | float) else ""
    except OverflowError:  # JSON has whole numbers of any length
        return "inf"


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN|CHECKPOINT|CONFIG.toml", type=path_argument)


def _answer(options: argparse.Namespace, overrides: Sequence[str]) -> Answer:
    if options.path.suffix == ".toml":
        return _configuration(options.path)
    found = inspect(options.path)
    return Answer(found, inspect_text(found))


def _configuration(path: Path) -> Answer:
    """What only the machine it runs on can say of a configuration: which implementations it will use."""
    config = load_checked(path, [], None, "plan").config
    backend = backend_in_words(config.residual, device_type(config.parallel.device), config.training.precision)
    found = {"kind": "configuration", "path": str(path.absolute()), "depth_backend": backend}
    return Answer(found, f"configuration {found['path']}\n\n  depth backend here: {backend}")


COMMAND = Command(
    name="inspect",
    help="show what a run folder or a checkpoint holds, or which depth backend a configuration uses here",
    answer=_answer,
    options=_options,
    epilog=_EPILOG,
)
