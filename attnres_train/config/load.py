"""A run's configuration from its file and the command line, with where every value came from.

    file -> values with lines -> overrides -> types and ranges -> rules between keys -> Loaded

Nothing stops at the first fault: `Refused` carries every problem that can be told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnres_train.checkpoint.rules import resume_problems
from attnres_train.config.build import build
from attnres_train.config.check import check, check_files
from attnres_train.config.give_way import COMMAND_LINE, DEFAULT, Settled, give_way
from attnres_train.config.keys import Key, all_keys
from attnres_train.config.locate import Fault, LocatedToml, read_located
from attnres_train.config.names import sift
from attnres_train.config.overrides import parse_overrides
from attnres_train.config.resolve import run_folder
from attnres_train.config.run_config import RunConfig
from attnres_train.data.rules import training_problems
from attnres_train.errors import Problem, Refused

Purpose = Literal["plan", "check", "train"]
"""`plan`: only the configuration file need exist. `check`: files that it names must, too. `train`: and it
must name data."""


@dataclass(frozen=True)
class Loaded:
    """A configuration and the origin of every dotted key: `default`, `FILE:LINE` or `command line`; `notes` tell each
    value of the file that gave way to the command line, in words."""

    path: Path
    config: RunConfig
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parsed:
    """What one reading found. `config` is there as soon as every value could be read, problems or not."""

    config: RunConfig | None
    origins: Mapping[str, str]
    problems: tuple[Problem, ...]
    meant: frozenset[str]
    """Keys that unknown names were likely meant for; what is said of these is an echo."""
    hidden: Mapping[str, Any] = field(default_factory=dict)
    """Values of the file that the command line replaced."""

    def settled(self, world_size: int | None) -> Settled:
        """What is configured once the file has given way; `config` must be there."""
        assert self.config is not None
        return give_way(self.config, self.origins, self.hidden, all_keys(), lambda config: check(config, world_size))


def load(path: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read `path` and the command-line `overrides`; rules between keys are `load_checked`'s.

    Raises Refused with every problem.
    """
    reading = read(path, overrides)
    if reading.problems or reading.config is None:
        raise Refused(reading.problems)
    settled = reading.settled(None)
    return Loaded(Path(path), settled.config, settled.origins, settled.notes)


def load_checked(
    path: str | Path, overrides: Sequence[str] = (), world_size: int | None = None, purpose: Purpose = "train"
) -> Loaded:
    """Read `path` and `overrides`, and hold them against every rule for `world_size` ranks.

    `world_size` None stands for one replica of the model.

    Raises Refused with every problem.
    """
    reading = read(path, overrides)
    problems = list(reading.problems)
    if reading.config is None:
        raise Refused(problems)
    settled = reading.settled(world_size)
    found = check(settled.config, world_size)
    found += check_files(settled.config, path) if purpose != "plan" else []
    found += training_problems(settled.config) if purpose == "train" else []
    if purpose == "check" and not found:
        found += resume_problems(settled.config, run_folder(settled.config, path))
    problems += [_placed(problem, settled.origins) for problem in found if problem.key not in reading.meant]
    if problems:
        raise Refused(problems)
    return Loaded(Path(path), settled.config, settled.origins, settled.notes)


def read(path: str | Path, overrides: Sequence[str] = ()) -> Parsed:
    """Read `path` and `overrides` as far as they can be read."""
    keys = all_keys()
    flags = parse_overrides(overrides, keys)
    text = _file_text(Path(path))
    if isinstance(text, Problem):
        return Parsed(None, {}, (text, *flags.problems), frozenset())
    document = read_located(text)
    place = _placer(path, document)
    sifted = sift(document.data, keys, place)
    values = sifted.values | dict(flags.values)
    origins = {dotted: place(dotted) if dotted in sifted.values else DEFAULT for dotted in keys}
    origins |= dict.fromkeys(flags.values, COMMAND_LINE)
    config, wrong, missing = build(values, keys, origins.__getitem__, flags.written)

    lost = {fault.key for fault in document.faults if fault.key}
    problems = [_fault_problem(fault, path, keys) for fault in document.faults] + sifted.problems
    problems += [*wrong, *flags.problems]
    problems += [_missing(keys[dotted], path) for dotted in missing if dotted not in sifted.meant | lost]
    if any(fault.hides_value for fault in document.faults):
        config = None
    hidden = {dotted: value for dotted, value in sifted.values.items() if dotted in flags.values}
    return Parsed(config, origins, tuple(problems), frozenset(sifted.meant), hidden)


def _file_text(path: Path) -> str | Problem:
    """The text of the file at `path`, or why there is none."""
    absolute = path.absolute()
    if absolute.is_dir():
        return Problem(str(path), f"{absolute} is a folder", "name the TOML file in it")
    try:
        raw = absolute.read_bytes()
    except FileNotFoundError:
        return Problem(str(path), f"there is no file {absolute}", "check the path; configs/ has examples")
    except OSError as error:
        return Problem(str(path), f"{absolute} cannot be read: {error.strerror}", "make it readable")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        byte = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
        return Problem(f"{path}:{line}", f"not UTF-8: {byte}", "save the file as UTF-8")
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        return Problem(str(path), f"{absolute} sets nothing", "start from configs/quickstart.toml")
    return text


def _placer(path: str | Path, document: LocatedToml) -> Callable[[str], str]:
    def place(dotted: str) -> str:
        line = document.line_of(tuple(dotted.split(".")))
        return f"{path}:{line}" if line else str(path)

    return place


def _fault_problem(fault: Fault, path: str | Path, keys: Mapping[str, Key]) -> Problem:
    key = keys.get(fault.key or "")
    remedy = f"write {key.takes}" if key and fault.hides_value else fault.remedy
    where = f"{path}:{fault.line}"
    return Problem(fault.key or where, f"{fault.message} ({where})", remedy)


def _missing(key: Key, path: str | Path) -> Problem:
    return Problem(key.dotted, f"required, and not set in {path}", f"write {key.takes} under [{key.section}]")


def _placed(problem: Problem, origins: Mapping[str, str]) -> Problem:
    """The problem of a rule with the place of the value it is about."""
    origin = origins.get(problem.key, DEFAULT)
    message = problem.message if origin == DEFAULT else f"{problem.message} ({origin})"
    return Problem(problem.key, message, problem.remedy)
