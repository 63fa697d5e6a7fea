"""All sections as one page of Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.gpu.section import Section


def page(about: Mapping[str, str], never_run: Sequence[str], sections: Sequence[Section]) -> str:
    lines = ["# attnres_train on GPUs", "", "Before this run, these had never run on a GPU:", ""]
    lines += [f"- {line}" for line in never_run]
    lines += ["", *_table([{"": name, "this machine": value} for name, value in about.items()]), ""]
    overview = [{"section": s.title, "": s.verdict, "seconds": s.seconds} for s in sections]
    lines += _table(overview)
    for section in sections:
        lines += ["", f"## {section.title}: {section.verdict}", "", section.said]
        if section.rows:
            lines += ["", *_table(section.rows)]
        if section.notes:
            lines += ["", *(f"    {line}" for line in section.notes)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, ["---"] * len(names), *([_text(row.get(name)) for name in names] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in cells]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float):
        return (
            f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
        )
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")
