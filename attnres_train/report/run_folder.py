"""A run folder as plain values, from its small files alone: its configuration, facts, metrics and looks at the depth.

What is damaged or absent is told in `notes`; only a folder that is no run is refused.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnres_train.config.build import build
from attnres_train.config.keys import all_keys, flattened
from attnres_train.errors import Problem, Refused
from attnres_train.observe.depth_alarms import DepthAlarms
from attnres_train.observe.depth_look import DepthLook
from attnres_train.observe.record_lines import LOSS_TOKENS, parse_record
from attnres_train.report.curves import Curve, Point
from attnres_train.setup import FACTS
from attnres_train.words import counted

MOST_PROBLEMS = 5
"""Of a configuration that are told."""
MOST_LOOKS = 32
"""Of more looks at the depth evenly chosen ones are kept, the first and the last among them."""


@dataclass(frozen=True)
class RunFiles:
    """One run. `config` has values by dotted key, and is None where there is none that can be read."""

    label: str
    folder: Path
    config: Mapping[str, Any] | None
    facts: Mapping[str, Any]
    """`Setup.facts` as the run wrote them; none of a run of an older version."""
    curves: Mapping[str, Curve]
    """By tag; those of the depth are left to `looks`."""
    looks: Sequence[tuple[int, DepthLook]]
    """Step and look, oldest first."""
    looks_taken: int
    alarms: Sequence[tuple[int, str]]
    """Step and words of what in the depth deserved a warning, from every look."""
    notes: Sequence[str]
    """What of the folder is damaged or absent."""

    def curve(self, tag: str) -> Curve | None:
        return self.curves.get(tag)

    def parts(self, tag: str) -> dict[str, Curve]:
        """Curves of `TAG/NAME` by name: the same of one validation set or of one source."""
        return {one.removeprefix(f"{tag}/"): curve for one, curve in self.curves.items() if one.startswith(f"{tag}/")}


def read_runs(folders: Sequence[Path]) -> list[RunFiles]:
    """Every run, under names that tell them apart.

    Raises Refused with every folder that is no run.
    """
    problems = [problem for folder in folders for problem in _no_run(folder)]
    absolute = [folder.resolve() for folder in folders]
    repeated = {str(path) for path in absolute if absolute.count(path) > 1}
    problems += [Problem(path, "named twice", "name every run once") for path in sorted(repeated)]
    if problems:
        raise Refused(problems)
    labels = short_names([path.parts for path in absolute])
    return [read_run(folder, label) for folder, label in zip(absolute, labels, strict=True)]


def read_run(folder: Path, label: str) -> RunFiles:
    """What the files of `folder` say."""
    config, config_notes = _config(folder / "config.toml")
    facts, facts_notes = _facts(folder / FACTS)
    curves, metric_notes = _curves(folder / "metrics.jsonl")
    depth = _depth(folder / "depth.jsonl")
    notes = [*config_notes, *facts_notes, *metric_notes, *depth.notes]
    return RunFiles(label, folder, config, facts, curves, depth.looks, depth.taken, depth.alarms, notes)


def short_names(paths: Sequence[Sequence[str]]) -> list[str]:
    """The last parts of each path, as many as tell all of them apart."""
    parts = 1
    while True:
        names = ["/".join(path[-parts:]) for path in paths]
        if len(set(names)) == len(names) or parts > max(map(len, paths)):
            return names
        parts += 1


def _no_run(folder: Path) -> Iterator[Problem]:
    remedy = "give the folder of a run, such as runs/quickstart"
    absolute = folder.absolute()
    if not absolute.exists():
        yield Problem(str(folder), f"there is no {absolute}", remedy)
    elif not absolute.is_dir():
        yield Problem(str(folder), f"{absolute} is a file", remedy)
    elif not any((absolute / name).exists() for name in ("config.toml", "metrics.jsonl")):
        yield Problem(str(folder), f"{absolute} is no run: it has neither config.toml nor metrics.jsonl", remedy)


def _config(path: Path) -> tuple[Mapping[str, Any] | None, list[str]]:
    keys = all_keys()
    try:
        values = flattened(tomllib.loads(path.read_text(encoding="utf-8")), keys)
    except OSError as error:
        return None, [f"{path.name} cannot be read: {error.strerror}"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return None, [f"{path.name} cannot be read: {error}"]
    _, wrong, missing = build({key: value for key, value in values.items() if key in keys}, keys, str)
    problems = [f"{key} is no key of this version" for key in values if key not in keys]
    problems += [f"{problem.key}: {problem.message}" for problem in wrong] + [f"{key} is missing" for key in missing]
    if len(problems) > MOST_PROBLEMS:
        problems[MOST_PROBLEMS - 1 :] = [f"{len(problems) - MOST_PROBLEMS + 1} more keys are wrong or missing"]
    left_out = {problem.key for problem in wrong}
    sound = {key: value for key, value in values.items() if key not in left_out}
    return sound, [f"{path.name}: {words}" for words in problems]


def _facts(path: Path) -> tuple[Mapping[str, Any], list[str]]:
    if not path.exists():
        return {}, []
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError):
        facts = None
    return (facts, []) if isinstance(facts, dict) else ({}, [f"{path.name} cannot be read"])


@dataclass
class _Lines:
    """The objects of a file of JSON lines; lines that are none are counted, for a kill or a full disk may cut one."""

    path: Path
    unreadable: int = 0
    notes: list[str] = field(default_factory=list)

    def records(self, skipped: bytes | None = None) -> Iterator[dict[str, Any]]:
        """With a whole number as `step`. Whole lines that hold `skipped` are passed over unread."""
        try:
            with open(self.path, "rb") as file:
                for line in file:
                    if skipped is not None and skipped in line and line.endswith(b"}\n"):
                        continue
                    record = parse_record(line)
                    if record is not None:
                        yield record
                    elif line.strip():
                        self.unreadable += 1
        except OSError as error:
            self.notes.append(f"{self.path.name} cannot be read: {error.strerror}")

    def told(self) -> list[str]:
        cut = [f"{self.path.name}: {counted(self.unreadable, 'line')} cut or damaged, passed over"]
        return [*self.notes, *(cut if self.unreadable else [])]


def _curves(path: Path) -> tuple[dict[str, Curve], list[str]]:
    lines = _Lines(path)
    points: dict[str, list[Point]] = {}
    for record in lines.records(skipped=b'"depth/'):
        step, tokens, means_over = float(record["step"]), _number(record.get("tokens")), record.get(LOSS_TOKENS)
        for tag, value in record.items():  # millions of values: nothing is made or asked twice
            if type(value) is not float:
                if not isinstance(value, int | float):
                    continue
                value = _number(value)
            if (rows := points.get(tag)) is None:
                if "/" not in tag:
                    continue
                rows = points[tag] = []
            rows.append((step, tokens, value, _number(means_over) if tag.startswith("loss/train") else math.nan))
    curves = {tag: Curve.of(rows) for tag, rows in points.items()}
    notes = lines.told()
    for tag, curve in curves.items():
        if wrong := int(np.count_nonzero(~np.isfinite(curve.values))):
            notes.append(f"{tag}: {counted(wrong, 'value')} not finite, left out of its curve")
    if not curves and not notes:
        notes.append(f"{path.name}: no step logged yet")
    return curves, notes


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # JSON has whole numbers of any length
        return math.inf


@dataclass
class _Depth:
    looks: list[tuple[int, DepthLook]] = field(default_factory=list)
    taken: int = 0
    alarms: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _depth(path: Path) -> _Depth:
    """Alarms of every look; of the looks themselves a bounded number, chosen while they are read."""
    if not path.exists():
        return _Depth(notes=[f"no {path.name}: the depth was never looked at (observe.depth_interval)"])
    lines, found, alarms = _Lines(path), _Depth(), DepthAlarms()
    every, last = 1, None
    for record in lines.records():
        look = DepthLook(())
        with suppress(ValueError):
            look = DepthLook.of_record(record)
        if not look.readers:
            lines.unreadable += 1
            continue
        step = int(record["step"])
        found.alarms += [(step, words) for words in alarms.new(look)]
        last = (step, look)
        if found.taken % every == 0:
            found.looks.append(last)
        if len(found.looks) >= MOST_LOOKS:
            found.looks, every = found.looks[::2], 2 * every
        found.taken += 1
    if last is not None and found.looks[-1] is not last:
        found.looks.append(last)
    found.notes = lines.told()
    return found
