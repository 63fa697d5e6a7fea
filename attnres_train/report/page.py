"""Sections as one self-contained HTML file: plotly's script is inside, and nothing is loaded from anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape

from attnres_train.report.charts import Chart, Maps, Section, Table, range_without_spikes
from attnres_train.report.live import live_chart, live_maps

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 0 12px 40px; color: #222; }
h1 { font-size: 22px; margin: 14px 0 4px; } h2 { font-size: 18px; margin: 26px 0 4px; }
nav { position: sticky; top: 0; z-index: 5; background: #fff; padding: 6px 0; border-bottom: 1px solid #ccc; }
nav a { margin-right: 14px; color: #0b4f8a; text-decoration: none; } nav a:hover { text-decoration: underline; }
section { scroll-margin-top: 34px; }
p { margin: 2px 0 8px; max-width: 110ch; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(520px, 100%), 1fr)); gap: 8px; }
.figure { border: 1px solid #e3e3e3; border-radius: 4px; min-width: 0; }
.figure p { margin: 0 8px 4px; font-size: 12px; color: #555; }
summary { cursor: pointer; padding: 3px 0; }
.scroll { overflow-x: auto; margin-bottom: 10px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 2px 10px 2px 4px; border-bottom: 1px solid #e3e3e3; text-align: left; vertical-align: top; }
th { background: #f5f5f5; font-weight: 600; } td.number, th.number { text-align: right; }
td.number { white-space: nowrap; }
td:first-child { min-width: 22ch; overflow-wrap: anywhere; }
"""
_ALLOWED = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_PLOTLY_OPTIONS = '{"responsive": true, "displaylogo": false, "showSendToCloud": false, "plotlyServerURL": ""}'
"""Without plotly's button that sends a figure and its data to a public service."""


def page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """The whole file. Texts are plain and are escaped here; sections without items and text are left out."""
    from plotly.offline import get_plotlyjs

    shown = [section for section in sections if section.items or section.text]
    links = "".join(f'<a href="#{escape(section.anchor)}">{escape(section.title)}</a>' for section in shown)
    body = "\n".join(part for section in shown for part in _section(section))
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Whatever a browser would like to fetch beside the file, it must not.
            f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            f"<script>{get_plotlyjs()}</script></head><body>",
            f"<h1>{escape(title)}</h1><p>{escape(introduction)}</p><nav>{links}</nav>",
            body,
            "</body></html>\n",
        ]
    )


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{escape(section.anchor)}"><h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>'
    tables = [item for item in section.items if isinstance(item, Table)]
    yield from (_table(table) for table in tables if not table.folded)
    figures = [_figure(item) for item in section.items if not isinstance(item, Table)]
    if figures:
        yield f'<div class="figures">{"".join(figures)}</div>'
    yield from (_table(table) for table in tables if table.folded)
    yield "</section>"


def _figure(item: Chart | Maps) -> str:
    figure = live_chart(item) if isinstance(item, Chart) else live_maps(item)
    data = figure.to_json()  # has no `<` that could end a script element: plotly writes it as \u003c
    name = json.dumps(item.name)
    draw = f"{{const f = {data}; Plotly.newPlot({name}, f.data, f.layout, {_PLOTLY_OPTIONS});}}"
    words = item.note
    if isinstance(item, Chart) and range_without_spikes(item) is not None:
        words = f"{words} Some raw values lie outside; a double-click shows all.".strip()
    note = f"<p>{escape(words)}</p>" if words else ""
    return f'<div class="figure"><div id="{escape(item.name)}"></div>{note}<script>{draw}</script></div>'


def _table(table: Table) -> str:
    numbers = set(table.numbers)

    def row(cells: Sequence[str], tag: str) -> str:
        marks = [' class="number"' if column in numbers else "" for column in range(len(cells))]
        inner = "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))
        return f"<tr>{inner}</tr>"

    lines = "".join(row(cells, "td") for cells in table.rows)
    grid = f'<div class="scroll"><table>{row(table.head, "th")}{lines}</table></div>'
    if table.folded:
        return f"<details><summary>{escape(table.note)}</summary>{grid}</details>"
    return (f"<p>{escape(table.note)}</p>" if table.note else "") + grid
