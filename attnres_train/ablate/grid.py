"""A grid file as runs: cases, times the settings of `[vary]`, times seeds."""

from __future__ import annotations

import itertools
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, StrictInt, StrictStr, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from attnres_train.config.keys import Key, all_keys, flattened
from attnres_train.config.names import unknown_key
from attnres_train.config.show import toml_value
from attnres_train.errors import Problem, Refused

GRID_HELP = """\
  base = "configs/quickstart.toml"    the configuration that all runs share; paths are relative to the working directory
  folder = "runs/ablation"            run folders, logs and the report go there
  reference = "standard"              the case that the others are compared with
  seeds = [1, 2, 3]                   training.seed; intervals are over these
  ranks = 2                           of every run (default 1)
  parallel_runs = 1                   how many run at once, which then share the machine (default 1)
  launcher = "launch/torchrun.sh"     the command before CONFIG --ranks N (this is the default)

  [override]                          any keys, for all runs
  training.steps = 400

  [vary]                              any keys with lists; every combination is a setting, in which cases are compared
  model.num_layers = [4, 8]

  [[case]]                            a name and any keys: what belongs together stands together
  name = "standard"
  residual.mode = "standard"

  [[case]]
  name = "block"
  residual.mode = "block"
  residual.block_size = 4
  where.model.num_layers = [8]        only in settings with these values (without it, in all)
"""
_OWNED = {"training.run_folder": "folder", "training.seed": "seeds", "checkpoint.resume": "(every run resumes)"}
PER_RUN = ("training.run_folder", "checkpoint.resume")
"""Keys that say where a run is, not what it is."""


@checked_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class _File:
    base: StrictStr
    folder: StrictStr
    reference: StrictStr
    seeds: list[StrictInt] = Field(min_length=1)
    ranks: StrictInt = Field(default=1, ge=1)
    parallel_runs: StrictInt = Field(default=1, ge=1)
    launcher: StrictStr = "launch/torchrun.sh"
    override: dict[str, Any] = Field(default_factory=dict)
    vary: dict[str, Any] = Field(default_factory=dict)
    case: list[dict[str, Any]] = Field(min_length=1)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a grid. `values` are what it sets over the base, by dotted key."""

    name: str
    case: str
    setting: str
    """What `[vary]` gives it, in words; empty without `[vary]`."""
    seed: int
    folder: Path
    values: Mapping[str, Any]

    @property
    def overrides(self) -> list[str]:
        """As flags of the command line."""
        return [f"--{key}={toml_value(value)}" for key, value in self.values.items()]


@dataclass(frozen=True)
class RunGrid:
    path: Path
    base: Path
    folder: Path
    reference: str
    cases: Sequence[str]
    settings: Sequence[str]
    ranks: int
    parallel_runs: int
    launcher: Path
    runs: Sequence[PlannedRun]


@dataclass(frozen=True)
class _Case:
    name: str
    values: Mapping[str, Any]
    where: Mapping[str, Any]


def logs_folder(grid: RunGrid) -> Path:
    """Where what every run says is kept."""
    return grid.folder / "logs"


def read_grid(path: Path) -> RunGrid:
    """The grid in the TOML file at `path`; its runs are not checked yet.

    Raises Refused with every problem of the file.
    """
    file = _read(path)
    keys = all_keys()
    problems: list[Problem] = []
    vary, shared = flattened(file.vary, keys), flattened(file.override, keys)
    problems += [*_lists(vary, path, "vary"), *_wrong_keys(vary, keys, path), *_wrong_keys(shared, keys, path)]
    problems += _set_twice(shared, vary, path, "[override] and [vary]")
    cases = [_case(entry, keys, path, number, problems) for number, entry in enumerate(file.case, start=1)]
    for case in cases:
        problems += _wrong_keys(case.values, keys, path)
        problems += _set_twice(case.values, vary, path, f"{case.name} and [vary]")
        problems += [*_lists(case.where, path, f"{case.name}: where"), *_wrong_where(case, vary, path)]
    names = [case.name for case in cases]
    if file.reference not in names:
        message = f'"{file.reference}" is no case of {path}'
        problems.append(Problem("reference", message, f"write one of {', '.join(names)}"))
    for what, values in (("case", Counter[Any](names)), ("seeds", Counter(file.seeds))):
        twice = [value for value, count in values.items() if count > 1]
        problems += [Problem(what, f"{value!r} is there twice ({path})", "write it once") for value in twice]
    launcher = _launcher(file.launcher)
    if launcher is None:
        message = f"no {Path(file.launcher).absolute()} that can be executed, nor one beside the package"
        problems.append(Problem("launcher", message, "name a script that is called as SCRIPT CONFIG --ranks N"))
    if problems or launcher is None:
        raise Refused(problems)
    folder = Path(file.folder).absolute()
    settings = list(_settings(vary))
    runs = tuple(_runs(cases, settings, file.seeds, shared, folder))
    if not runs:
        raise Refused(Problem("case", f"no case is left in any setting ({path})", "widen `where`"))
    folders = [run.folder for run in runs]
    if shared_folders := [str(one) for one in dict.fromkeys(folders) if folders.count(one) > 1]:
        message = f"several runs would have the folder {', '.join(shared_folders)} ({path})"
        raise Refused(Problem("case", message, "names and values must differ in more than their punctuation"))
    return RunGrid(
        path=path,
        base=Path(file.base),
        folder=folder,
        reference=file.reference,
        cases=names,
        settings=[words for words, _ in settings],
        ranks=file.ranks,
        parallel_runs=file.parallel_runs,
        launcher=launcher,
        runs=runs,
    )


def _read(path: Path) -> _File:
    remedy = "`attnres ablate -h` shows what a grid file looks like"
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(Problem(str(path), f"{path.absolute()} cannot be read: {error.strerror}", remedy)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(Problem(str(path), f"no TOML: {error}", remedy)) from None
    try:
        return TypeAdapter(_File).validate_python(tables)
    except ValidationError as error:
        told = [(".".join(map(str, found["loc"])), found["msg"]) for found in error.errors(include_url=False)]
        raise Refused([Problem(key or str(path), f"{what} ({path})", remedy) for key, what in told]) from None


def _case(entry: Mapping[str, Any], keys: Mapping[str, Key], path: Path, number: int, problems: list[Problem]) -> _Case:
    name, where = entry.get("name"), entry.get("where", {})
    if not isinstance(name, str) or not name or not all(c.isalnum() or c in "-_." for c in name):
        message = f"the name of case {number} is {name!r} ({path})"
        problems.append(Problem("case.name", message, "write a text of letters, digits, - _ and .; it names folders"))
        name = f"case {number}"
    if not isinstance(where, Mapping):
        problems.append(Problem("case.where", f"no table ({path})", "write where.SECTION.KEY = [VALUES]"))
        where = {}
    values = {key: value for key, value in entry.items() if key not in ("name", "where")}
    return _Case(name, flattened(values, keys), flattened(where, keys))


def _wrong_keys(values: Mapping[str, Any], keys: Mapping[str, Key], path: Path) -> Iterator[Problem]:
    for key in values:
        if key in _OWNED:
            yield Problem(key, f"set by the grid itself ({path})", f"remove it; use {_OWNED[key]}")
        elif key not in keys:
            yield unknown_key(key, str(path), keys)


def _lists(values: Mapping[str, Any], path: Path, where: str) -> Iterator[Problem]:
    for key, value in values.items():
        if not isinstance(value, list) or not value:
            yield Problem(key, f"{value!r} in {where} is no list of values ({path})", f"write {key} = [...]")
        elif any(one in value[:position] for position, one in enumerate(value)):
            yield Problem(key, f"{value!r} in {where} has a value twice ({path})", "write it once")


def _set_twice(ones: Mapping[str, Any], others: Mapping[str, Any], path: Path, where: str) -> list[Problem]:
    return [Problem(key, f"set by {where} ({path})", "keep one of the two") for key in ones if key in others]


def _wrong_where(case: _Case, vary: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    for key, values in case.where.items():
        if not isinstance(values, list) or not isinstance(vary.get(key, []), list):
            continue  # told as no list
        absent = [value for value in values if value not in vary.get(key, [])]
        if key not in vary or absent:
            what = f"{absent} are not among its values" if key in vary else "it is not in [vary]"
            yield Problem(key, f"case {case.name} is limited by it, but {what} ({path})", "correct `where` or `[vary]`")


def _launcher(name: str) -> Path | None:
    """As named from the working directory, else from the folder that holds the package."""
    here, beside = Path(name).absolute(), Path(__file__).resolve().parents[2] / name
    return next((path for path in (here, beside) if path.is_file() and os.access(path, os.X_OK)), None)


def _settings(vary: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every combination in words and as values; one without any where nothing varies."""
    for values in itertools.product(*vary.values()):
        chosen = dict(zip(vary, values, strict=True))
        yield ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in chosen.items()), chosen


def _runs(
    cases: Sequence[_Case],
    settings: Sequence[tuple[str, Mapping[str, Any]]],
    seeds: Sequence[int],
    shared: Mapping[str, Any],
    folder: Path,
) -> Iterator[PlannedRun]:
    """Seeds outermost, so that whatever is done first can be compared."""
    for seed, (words, chosen), case in itertools.product(seeds, settings, cases):
        if all(chosen[key] in values for key, values in case.where.items()):
            parts = [case.name, *(f"{key.rpartition('.')[2]}-{value}" for key, value in chosen.items()), f"seed-{seed}"]
            name = "_".join("".join(c if c.isalnum() or c in "-_." else "-" for c in part) for part in parts)
            run = folder / name
            own = {"training.run_folder": str(run), "training.seed": seed, "checkpoint.resume": "auto"}
            yield PlannedRun(name, case.name, words, seed, run, {**shared, **case.values, **chosen, **own})
