"""The report of runs: read, put into sections, written as a page and PNGs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnres_train.errors import refuse
from attnres_train.observe.depth_map import png
from attnres_train.observe.settings_history import read_history, rows
from attnres_train.report.charts import COLOURS, Chart, Section, Table
from attnres_train.report.depth_charts import by_depth_section, map_section
from attnres_train.report.facts import Facts, config_differences, differences_table, facts_of, facts_tables
from attnres_train.report.page import page
from attnres_train.report.run_folder import RunFiles, read_runs
from attnres_train.report.still import still_chart, still_maps
from attnres_train.report.training_charts import (
    loss_section,
    memory_section,
    optimization_section,
    shared_span,
    speed_section,
)

PAGE = "index.html"
_MOST_IN_TITLE = 3


@dataclass(frozen=True)
class WrittenReport:
    """What was written and what it says."""

    page: Path
    pictures: Sequence[Path]
    runs: Sequence[RunFiles]
    facts: Sequence[Facts]
    differences: Mapping[str, Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        return {
            "page": str(self.page),
            "pictures": [str(path) for path in self.pictures],
            "runs": [_run_json(run, facts) for run, facts in zip(self.runs, self.facts, strict=True)],
            "differences": self.differences,
        }


def _run_json(run: RunFiles, facts: Facts) -> dict[str, Any]:
    alarms = [{"step": step, "words": words} for step, words in run.alarms]
    return asdict(facts) | {"alarms": alarms, "notes": list(run.notes)}


def report(folders: Sequence[Path], output: Path) -> WrittenReport:
    """Write `index.html` and the PNGs of its figures to `output`.

    Raises Refused with every folder that is no run, and where `output` cannot be written.
    """
    runs = read_runs(folders)
    span = shared_span(runs)
    facts = [facts_of(run, span) for run in runs]
    found = config_differences({run.label: run.config for run in runs if run.config is not None})
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    introduction = f"Made {made} from the files in {', '.join(str(run.folder) for run in runs)}."
    title = ", ".join(run.label for run in runs) if len(runs) <= _MOST_IN_TITLE else f"{len(runs)} runs"
    path, pictures = write_sections(output, title, introduction, sections_of(runs, facts, found))
    return WrittenReport(path, pictures, runs, facts, found)


def sections_of(
    runs: Sequence[RunFiles], facts: Sequence[Facts], found: Mapping[str, Mapping[str, Any]]
) -> list[Section]:
    """All that have something to show. `found`: what differs between the configurations."""
    made = (loss_section, optimization_section, speed_section, memory_section, map_section, by_depth_section)
    sections = [overview_section(runs, facts, found), *(section_of(runs) for section_of in made)]
    return [section for section in sections if section.items]


def overview_section(
    runs: Sequence[RunFiles], facts: Sequence[Facts], found: Mapping[str, Mapping[str, Any]]
) -> Section:
    tables = facts_tables(facts, shared_span(runs))
    alarms = [[run.label, f"{step:,}", words] for run in runs for step, words in run.alarms]
    notes = [[run.label, words] for run in runs for words in run.notes]
    used = [[run.label, *row] for run in runs for row in rows(read_history(run.folder))]
    told = (
        Table(["run", "step", "depth alarm"], alarms, numbers=[1]),
        Table(["run", "damaged or absent in its folder"], notes),
        Table(["run", "steps", "settings"], used),
    )
    tables += [table for table in told if table.rows]
    configured = [run.label for run in runs if run.config is not None]
    if len(configured) > 1 and found:
        note = "What differs between the configurations, run folders left out:"
        tables.append(differences_table(found, configured, note))
    text = f"Colours repeat after {len(COLOURS)} runs. " if len(runs) > len(COLOURS) else ""
    same = "The configurations do not differ." if len(configured) > 1 and not found else ""
    return Section("Runs", text + same, tables)


def write_sections(output: Path, title: str, introduction: str, sections: Sequence[Section]) -> tuple[Path, list[Path]]:
    """The page of `sections` and a PNG of each figure in `output`.

    Raises Refused where that cannot be written.
    """
    pictures = []
    try:
        output.mkdir(parents=True, exist_ok=True)
        for item in (item for section in sections for item in section.items):
            if not isinstance(item, Table):
                pictures.append(output / f"{item.name}.png")
                figure = still_chart(item) if isinstance(item, Chart) else still_maps(item)
                pictures[-1].write_bytes(png(figure, dpi=100))
        path = output / PAGE
        path.write_text(page(title, introduction, sections), encoding="utf-8")
    except OSError as error:
        remedy = "choose another folder with --output"
        raise refuse(str(output), f"{output.absolute()} cannot be written: {error.strerror}", remedy) from error
    return path, pictures
