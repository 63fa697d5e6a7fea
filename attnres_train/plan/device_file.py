"""A device file: the speeds of one's own machine, as `attnres doctor CONFIG --device-file FILE` measures them.

TOML, or JSON if the name ends so: `name`, `memory_gib`, `devices_per_node` and so on, and the tables `[alone]`,
`[together]` (`Rates`), `[link]` and, where there are several nodes, `[network]` (`Link`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from attnres_train.errors import Problem, Refused, refuse
from attnres_train.plan.devices import devices
from attnres_train.plan.speeds import Link, Machine, Rates, machine_of
from attnres_train.section import section


@section
class DeviceFile:
    """What a device file says."""

    name: str
    precision: Literal["fp32", "bf16"]
    """What was measured."""
    shapes: str
    """Of which model, in words."""
    peak_flops_per_second: float = Field(gt=0)
    """What utilisation is held against; a vendor's peak, or the best product that was measured."""
    memory_gib: float = Field(gt=0)
    devices_per_node: int = Field(ge=1)
    disk_bytes_per_second: float = Field(gt=0)
    asynchronous: bool = False
    """Whether the host runs ahead of the device."""
    alone: Rates
    together: Rates
    link: Link
    network: Link | None = None
    """None takes `link` between nodes, too."""

    def machine(self) -> Machine:
        """The machine as a prediction needs it."""
        same = {name: value for name, value in vars(self).items() if name in Machine.__dataclass_fields__}
        assumptions = f"speeds measured in {self.precision} with the shapes of {self.shapes}"
        return Machine(**same, near=self.link, far=self.network or self.link, measured=True, assumptions=assumptions)


def find_machine(named: str, precision: str, efficiency: float | None = None) -> Machine:
    """The machine that `--device` means: a name in `devices`, or the path of a device file.

    `efficiency` goes with names alone: a file has measured rates.

    Raises Refused for an unknown name (with the nearest), an unreadable or incomplete file, or an efficiency that is no
    share or meets a file.
    """
    if efficiency is not None and not 0 < efficiency <= 1:
        raise refuse("--efficiency", f"{efficiency:g} is no share of a peak", "write more than 0, and 1 at most")
    if (device := devices().get(named.lower())) is not None:
        return machine_of(device, precision, efficiency)
    if Path(named).is_file():
        if efficiency is not None:
            raise refuse("--efficiency", f"{named} has measured rates", "leave --efficiency out, or edit the file")
        read = read_device_file(Path(named))
        machine, other = read.machine(), f"; this run is in {precision}, which they do not tell of"
        return machine if read.precision == precision else replace(machine, assumptions=machine.assumptions + other)
    near = _nearest(named.lower(), devices()) or list(devices())
    what = "is neither a device that is known here nor a file"
    raise refuse("--device", f"{named!r} {what}", f"write {' or '.join(near)}, or the path of a device file")


def read_device_file(path: Path) -> DeviceFile:
    """Read and check `path`. Raises Refused with everything that is wrong in it."""
    try:
        text = path.read_text(encoding="utf-8")
        values: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise refuse(str(path), f"cannot be read as a device file: {error}", _REMEDY) from error
    if not isinstance(values, dict):
        raise refuse(str(path), f"holds a {type(values).__name__}, not a table of names and values", _REMEDY)
    problems = list(_endless(path, values))
    for name, kind in _TABLES.items():
        if isinstance(table := values.get(name), dict):
            values[name] = _build(path, kind, table, f"{name}.", problems)
        elif table is not None:
            problems.append(Problem(f"{path}: {name}", f"{table!r} is no table", f"write [{name}] and its keys below"))
            values[name] = None
    read = _build(path, DeviceFile, values, "", problems)
    if read is None or problems:
        raise Refused(problems)
    return read


def device_file_text(values: DeviceFile) -> str:
    """`values` as the TOML that `read_device_file` reads."""
    plain: dict[str, Any] = TypeAdapter(DeviceFile).dump_python(values)
    tables = {name: table for name, table in plain.items() if isinstance(table, dict)}
    lines = [f"{name} = {_toml(value)}" for name, value in plain.items() if name not in tables and value is not None]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


T = TypeVar("T")
_TABLES: dict[str, type[Rates] | type[Link]] = {"alone": Rates, "together": Rates, "link": Link, "network": Link}
_REMEDY = "`attnres doctor CONFIG --device-file FILE` writes one"


def _endless(path: Path, values: dict[str, Any], place: str = "") -> Iterator[Problem]:
    """Infinities and what is no number: TOML and Python's JSON have words for them, and no machine such speeds."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _endless(path, value, f"{place}{name}.")
        elif isinstance(value, float) and not isfinite(value):
            yield Problem(f"{path}: {place}{name}", f"{value} is no finite number", _REMEDY)


def _nearest(word: str, known: Iterable[str]) -> list[str]:
    return get_close_matches(word, list(known), n=3, cutoff=0.4)


def _toml(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def _build(path: Path, kind: type[T], values: dict[str, Any], place: str, problems: list[Problem]) -> T | None:
    """A `kind` of `values`, or None with what is wrong added to `problems`; of tables that are wrong it is silent."""
    try:
        return kind(**values)
    except ValidationError as error:
        spoilt = [name for name in _TABLES if name in values and values[name] is None]
        found = [each for each in error.errors() if each["loc"][0] not in spoilt]
        problems += [_problem(path, kind, each, place) for each in found]
        return None


def _problem(path: Path, kind: type, found: Any, place: str) -> Problem:
    where = place + ".".join(str(part) for part in found["loc"])
    if found["type"] == "unexpected_keyword_argument":
        near = _nearest(str(found["loc"][-1]), [field.name for field in fields(kind)])
        remedy = f"write {' or '.join(near)}, or remove it" if near else "remove it"
        return Problem(f"{path}: {where}", "unknown key", remedy)
    return Problem(f"{path}: {where}", str(found["msg"]), _REMEDY)
