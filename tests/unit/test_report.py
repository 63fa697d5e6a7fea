"""`attnres report`: what a page says is what the files say, also of folders that are damaged."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from attnres_train.cli import main
from attnres_train.config.load import load
from attnres_train.depth.layout import DepthLayout
from attnres_train.errors import ExitCode
from attnres_train.model.describe import describe
from attnres_train.model.size import training_flops_per_token
from attnres_train.observe.depth_look import DepthLook
from attnres_train.observe.depth_map import draw_map, over_equal_share, png
from attnres_train.report.charts import Chart, Maps, range_without_spikes
from attnres_train.report.curves import Curve, mean_by_stretch, smoothed, smoothing_span, thinned
from attnres_train.report.depth_charts import by_depth_section, depth_maps, map_section
from attnres_train.report.facts import config_differences, facts_of, facts_tables, flops_per_token, parameters
from attnres_train.report.live import live_chart, live_maps
from attnres_train.report.page import page
from attnres_train.report.run_folder import MOST_LOOKS, read_run, read_runs, short_names
from attnres_train.report.still import still_chart, still_maps
from attnres_train.report.training_charts import (
    MOST_POINTS,
    loss_section,
    memory_section,
    optimization_section,
    shared_span,
    speed_section,
)
from attnres_train.report.write import overview_section, report, sections_of
from attnres_train.setup import FACTS, Setup
from tests.unit.config_files import write
from tests.unit.run_folders import FLOPS_A_TOKEN, TOKENS_A_STEP, look_at, make_run, step_record

BLOCK = DepthLayout(8, "block", 2)
STANDARD = DepthLayout(8, "standard", None)
MANY = DepthLayout(40, "full", 1)
AS_STANDARD = ("--residual.mode=standard", "--residual.block_size=none")


@pytest.fixture
def block(tmp_path: Path) -> Path:
    return make_run(tmp_path / "block", looks=[(10, look_at(BLOCK)), (20, look_at(BLOCK, 2.0))])


@pytest.fixture
def standard(tmp_path: Path) -> Path:
    return make_run(tmp_path / "standard", *AS_STANDARD, looks=[(20, look_at(STANDARD, 3.0))])


class Loaded(HTMLParser):
    """Everything that a browser would fetch, and the ids that there are."""

    def __init__(self, text: str):
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.fetched += [given[name] for name in ("src", "srcset", "data", "poster") if name in given]
        self.fetched += [given["href"]] if tag == "link" else []
        self.links += [given["href"]] if tag == "a" else []
        self.ids += [given["id"]] if "id" in given else []


def series(item: object, label: str) -> tuple[list[float], list[float]]:
    assert isinstance(item, Chart)
    (found,) = [one for one in item.series if one.label == label]
    return found.x.tolist(), found.y.tolist()


def test_a_page_of_two_runs_needs_nothing_beside_it(block: Path, standard: Path, tmp_path: Path) -> None:
    made = report([block, standard], tmp_path / "page")
    text = made.page.read_text(encoding="utf-8")
    page = Loaded(text)
    assert page.fetched == []
    assert "default-src 'none'" in text
    body = text.split("</head>")[1]
    assert body.count('"showSendToCloud": false, "plotlyServerURL": ""') == body.count("Plotly.newPlot(") > 0
    assert "@import" not in text.split("</style>")[0] and "url(" not in text.split("</style>")[0]
    assert [link for link in page.links if link[1:] not in page.ids] == []
    assert {"loss-steps", "loss-tokens", "loss-compute", "bits", "phases-1", "phases-2", "depth-map-1"} <= set(page.ids)
    assert "depth-map-2" not in page.ids, "the standard residual weighs nothing"
    assert sorted(path.stem for path in made.pictures) == sorted(set(page.ids) & {p.stem for p in made.pictures})
    for path in made.pictures:
        assert path.read_bytes().startswith(b"\x89PNG")
    assert made.differences == {
        "residual.mode": {"block": "block", "standard": "standard"},
        "residual.block_size": {"block": 2, "standard": None},
    }
    assert "<td>residual.block_size</td><td>2</td><td>none</td>" in text


def test_numbers_in_figures_are_those_of_the_files(block: Path) -> None:
    (run,) = read_runs([block])
    by_steps, by_tokens, by_compute, bits = loss_section([run]).items
    steps, losses = series(by_steps, "block, training, raw")
    assert steps == list(range(1, 21)) and losses == pytest.approx([8 - step / 10 for step in range(1, 21)])
    assert series(by_steps, "block, validation") == ([10, 20], [5.0, 4.0])
    assert series(by_tokens, "block, validation")[0] == [10 * TOKENS_A_STEP, 20 * TOKENS_A_STEP]
    assert series(by_compute, "block, validation")[0] == pytest.approx([n * TOKENS_A_STEP * 1e6 for n in (10, 20)])
    assert series(bits, "block")[1] == pytest.approx([5 / 3, 4 / 3])
    assert isinstance(by_steps, Chart)
    for drawn, one in zip(live_chart(by_steps).data, by_steps.series, strict=True):
        assert drawn.y.tolist() == one.y.tolist()
    lines = still_chart(by_steps).axes[0].lines
    assert [line.get_ydata().tolist() for line in lines] == [one.y.tolist() for one in by_steps.series]


def test_phases_add_up_to_the_step(block: Path) -> None:
    (chart,) = [item for item in speed_section(read_runs([block])).items if getattr(item, "name", "") == "phases-1"]
    assert isinstance(chart, Chart)
    assert sum(one.y for one in chart.series) == pytest.approx(np.ones(20))
    assert chart.series[-1].label == "other" and chart.series[-1].y == pytest.approx(np.full(20, 0.4))


def test_standard_beside_block_by_depth(block: Path, standard: Path) -> None:
    runs = read_runs([block, standard])
    charts = {item.name: item for item in by_depth_section(runs).items if isinstance(item, Chart)}
    assert [one.label for one in charts["depth-partial-rms"].series] == [
        *("block, step 10", "block, step 20", "standard, step 20")
    ]
    assert series(charts["depth-partial-rms"], "standard, step 20")[1] == [3.0 * (n + 1) for n in range(8)]
    assert series(charts["depth-gradient-rms"], "block, step 20")[1] == [2.0 / (n + 1) for n in range(8)]
    assert {one.colour for one in charts["depth-entropy"].series} == {charts["depth-partial-rms"].series[0].colour}
    assert charts["depth-partial-rms"].series[2].colour != charts["depth-partial-rms"].series[0].colour
    section = map_section(runs)
    (maps,) = section.items
    assert "nothing is weighed: standard" in section.text
    assert (
        isinstance(maps, Maps)
        and maps.steps == [10, 20]
        and maps.columns == ["embedding", "1", "2", "3", "4", "partial"]
    )
    assert maps.rows[0] == ("00-attention", "attention") and maps.rows[-1] == ("head", "head")
    assert maps.cells[0][-1] == pytest.approx([0.2] * 5 + [np.nan], nan_ok=True)
    figure = live_maps(maps)
    assert figure.layout.sliders[0].steps[0].args[0]["customdata"][0][-1][:5] == [0.2] * 5


def test_maps_of_a_deep_model_are_fewer(tmp_path: Path) -> None:
    deep = DepthLayout(120, "full", 1)
    folder = make_run(tmp_path / "deep", looks=[(step, look_at(deep)) for step in range(1, 21)])
    maps = depth_maps(read_run(folder, "deep"), 0)
    assert maps is not None and (maps.steps[0], maps.steps[-1]) == (1, 20)
    assert len(maps.steps) == 200_000 // (121 * 121) and maps.note == "13 of 20 looks."


def test_of_many_sources_a_map_shows_weights_over_an_equal_share(tmp_path: Path) -> None:
    """Else 50 sources are one dark triangle: an equal share of them is a fiftieth."""
    run = read_run(make_run(tmp_path / "many", looks=[(10, look_at(MANY)), (20, look_at(MANY, weight=0.5))]), "many")
    maps = depth_maps(run, 0)
    assert maps is not None and maps.by_share and maps.has_shares
    equal, first = (over_equal_share(cells) for cells in maps.cells)
    assert np.nanmax(np.abs(equal)) < 1e-12, "as many as each reader has"
    assert first[-1, 0] == pytest.approx(np.log2(0.5 * 41)) and first[-1, 1] == pytest.approx(np.log2(0.5 / 40 * 41))
    assert np.isnan(first[0, 5]), "what is not read has no colour"
    figure = live_maps(maps)
    weights, shares = figure.data
    assert (weights.visible, shares.visible) == (False, True)
    assert [button.args[0]["visible"] for button in figure.layout.updatemenus[0].buttons] == [
        [True, False],
        [False, True],
    ]
    moved = figure.layout.sliders[0].steps[1].args
    assert list(moved[1]) == [0, 1] and moved[0]["z"][1][-1][0] == pytest.approx(first[-1, 0], abs=1e-3)
    (image,) = still_maps(maps).axes[1].images
    assert image.get_array()[-1, 0] == pytest.approx(first[-1, 0])
    scales = [draw_map(look_at(layout), "").axes[1].get_ylabel() for layout in (MANY, BLOCK)]  # type: ignore[union-attr]
    assert scales == ["times an equal share", "mean weight"], "so has the picture in TensorBoard"


def test_few_sources_and_weights_that_are_no_shares_are_shown_as_they_are(block: Path) -> None:
    few = depth_maps(read_run(block, "block"), 0)
    assert few is not None and not few.by_share and live_maps(few).data[0].visible
    looks = [(10, look_at(MANY)), (20, look_at(MANY))]
    doubled = [replace(one, weights=tuple(2 * w for w in one.weights or ())) for one in looks[1][1].readers]
    looks[1] = (20, DepthLook(tuple(doubled)))
    none = depth_maps(replace(read_run(block, "block"), looks=looks), 0)
    assert none is not None and not none.by_share and len(live_maps(none).data) == 1
    assert live_maps(none).layout.updatemenus == ()


def test_a_spike_does_not_flatten_the_other_curves(tmp_path: Path) -> None:
    """flutter/devtools#358. What is thinned keeps the spike, and a double-click shows it."""
    folder = make_run(tmp_path / "run", steps=300, valid=[(300, 3.0)])
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(step_record(150, 1e4)) + "\n")
    charts = [item for item in loss_section(read_runs([folder])).items if isinstance(item, Chart)]
    assert max(series(charts[0], "run, training, raw")[1]) == 1e4
    low, high = range_without_spikes(charts[0]) or (0.0, 0.0)
    assert -24 < low < -22 and 7.9 < high < 10, "the loss falls from 7.9 to -22"
    assert live_chart(charts[0]).layout.yaxis.range == (low, high)
    assert still_chart(charts[0]).axes[0].get_ylim() == pytest.approx((low, high))
    usual = [one for one in loss_section(read_runs([make_run(tmp_path / "usual", steps=300)])).items]
    assert [range_without_spikes(one) for one in usual if isinstance(one, Chart)] == [None] * 4
    assert "a double-click shows all" in page("", "", [loss_section(read_runs([folder]))])


def test_named_sets_and_sources_have_curves_of_their_own(tmp_path: Path) -> None:
    runs = []
    for number, names in enumerate((("books", "code/c"), ("books",))):
        folder = make_run(tmp_path / f"run-{number}")
        with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            for step in range(1, 21):
                own = {f"loss/train/{name}": 7.0 - step / 10 for name in names}
                if step % 10 == 0:
                    own |= {f"loss/valid/{name}": 6.0 + number - step / 10 for name in names}
                file.write(json.dumps({"step": step, "tokens": step * TOKENS_A_STEP, **own}) + "\n")
        runs.append(read_run(folder, f"run-{number}"))
    charts = {item.title: item for item in loss_section(runs[:1]).items}
    assert series(charts["Validation loss by name"], "code/c") == ([10, 20], [5.0, 4.0])
    assert series(charts["Training loss by name"], "books, raw")[1][-1] == 5.0
    charts = {item.title: item for item in loss_section(runs).items}
    assert series(charts["Validation loss: books"], "run-1")[1] == [6.0, 5.0]
    assert [one.label for one in charts["Validation loss: code/c"].series] == ["run-0"]  # type: ignore[union-attr]
    table = facts_tables([facts_of(run) for run in runs])[-1]
    assert table.head == ["run", "books", "code/c"]
    assert table.rows == [["run-0", "4.0000", "4.0000"], ["run-1", "5.0000", "–"]]


def test_facts_and_alarms(tmp_path: Path) -> None:
    collapsed = make_run(tmp_path / "run", looks=[(10, look_at(BLOCK)), (20, look_at(BLOCK, weight=0.995))])
    runs = read_runs([collapsed])
    facts = facts_of(runs[0], shared_span(runs))
    assert (facts.mode, facts.layers, facts.steps, facts.steps_planned) == ("block", 4, 20, 20)
    assert facts.tokens == 20 * TOKENS_A_STEP and facts.model_flops == pytest.approx(20 * TOKENS_A_STEP * FLOPS_A_TOKEN)
    assert facts.training_loss == pytest.approx(8 - 20 / 10) and facts.validation_loss == 4.0
    assert facts.partial_growth == 8.0 and facts.gradient_spread == 8.0
    assert facts.tokens_per_second == 2000.0
    assert facts.alarms == len(runs[0].alarms) > 0
    step, words = runs[0].alarms[0]
    assert step == 20 and "collapsed on the embedding" in words
    assert words in page("", "", [overview_section(runs, [facts], {})])


def test_facts_are_of_the_last_look_and_of_the_usual_step(tmp_path: Path) -> None:
    """Sums that shrink with depth at the end, and one step that waited for something."""
    grown, last = look_at(BLOCK), look_at(BLOCK)
    shrinking = [
        replace(reader, partial_rms=None if reader.partial_rms is None else 16 / reader.partial_rms)
        for reader in last.readers
    ]
    folder = make_run(tmp_path / "run", looks=[(10, grown), (20, DepthLook(tuple(shrinking)))])
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    slow = {**json.loads(lines[0]), "throughput/tokens_per_second": 10.0}
    (folder / "metrics.jsonl").write_text("\n".join([json.dumps(slow), *lines[1:]]) + "\n", encoding="utf-8")
    facts = facts_of(read_run(folder, "run"))
    assert facts.partial_growth == 1 / 8 and facts.gradient_spread == 8.0
    assert facts.tokens_per_second == 2000.0


def test_memory_and_what_crosses_are_drawn_in_their_units(block: Path) -> None:
    charts = {chart.name: chart for chart in memory_section([*read_runs([block])]).items if isinstance(chart, Chart)}
    drawn = {name: (chart.y_label, chart.series[0].y.tolist()) for name, chart in charts.items()}
    assert drawn == {
        "memory": ("GiB", [1.5] * 20),
        "wire-forward": ("MiB", [1.0] * 20),
        "wire-backward": ("MiB", [2.0] * 20),
        "kept": ("MiB", [0.5] * 20),
    }


def test_facts_are_those_that_the_run_wrote(tmp_path: Path) -> None:
    config = load(write(tmp_path)).config
    setup = Setup.of(config, vocabulary=320)
    folder = make_run(tmp_path / "run")
    assert (parameters(read_run(folder, "run")), flops_per_token(read_run(folder, "run"))) == (12_345, FLOPS_A_TOKEN)
    (folder / FACTS).write_text(json.dumps(setup.facts), encoding="utf-8")
    padded = config.model.padded_vocabulary(320, 1)
    run = read_run(folder, "run")
    assert parameters(run) == describe(config.model, config.residual, 320, padded).parameters
    flops = training_flops_per_token(config.model, padded, 32)
    assert flops_per_token(run) == flops
    (folder / FACTS).unlink()
    assert flops_per_token(read_run(folder, "run")) == flops, "of the configuration where a run wrote none"
    (folder / FACTS).write_text("[", encoding="utf-8")
    assert "facts.json cannot be read" in read_run(folder, "run").notes


def test_damaged_and_absent_files_are_told(block: Path, tmp_path: Path) -> None:
    with open(block / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 21, "tokens": 5, "loss/tr\n[]\n\nnull\n{"step": 22, "loss/train": NaN, "tokens": null}\n')
    (block / "config.toml").write_text("[model\n", encoding="utf-8")
    with open(block / "depth.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 30, "readers": 3}\n{"step": 40, "rea')
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.toml").write_bytes(b"\xff\xfe")
    made = report([block, bare], tmp_path / "page")
    notes = made.runs[0].notes
    assert any(note.startswith("config.toml cannot be read: ") for note in notes)
    assert "metrics.jsonl: 3 lines cut or damaged, passed over" in notes
    assert "depth.jsonl: 2 lines cut or damaged, passed over" in notes
    assert "loss/train: 1 value not finite, left out of its curve" in notes
    assert made.facts[0].validation_loss == 4.0 and made.facts[1].steps is None
    text = made.page.read_text(encoding="utf-8")
    assert "3 lines cut or damaged" in text and "metrics.jsonl cannot be read: No such file" in text


def test_a_run_that_diverged_has_no_last_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "run", valid=[(10, 5.0), (20, np.nan)])
    lines = [step_record(step, np.nan if step > 18 else 8.0) for step in range(1, 21)]
    for line in lines:
        line["throughput/tokens_per_second"] = float(line["step"])
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    assert main(["report", str(folder), "--json"]) == ExitCode.DONE
    said = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["runs"][0]
    assert [said[name] for name in ("training_loss", "validation_loss", "bits_per_byte")] == ["NaN"] * 3
    assert said["tokens_per_second"] == 10.5, "the median of an even number"
    assert "not finite" in (folder / "report/index.html").read_text(encoding="utf-8").split("</head>")[1]


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("config.toml", '[model]\nnum_layers = "four"\n', "config.toml: model.num_layers: "),
        ("config.toml", "model = 3\n", "config.toml: model is no key of this version"),
        ("config.toml", "", "more keys are wrong or missing"),
        ("metrics.jsonl", f'{{"step": {10**400}, "loss/train": 1.0}}\n', "1 line cut or damaged"),
        ("metrics.jsonl", f'{{"step": 1, "loss/train": {10**400}}}\n', "1 value not finite"),
        ("depth.jsonl", f"{1000 * '['}\n", "1 line cut or damaged"),
    ],
)
def test_any_damage_is_told_and_stops_nothing(block: Path, name: str, text: str, note: str) -> None:
    (block / name).write_text(text, encoding="utf-8")
    runs = read_runs([block])
    assert any(note in words for words in runs[0].notes), runs[0].notes
    assert sections_of(runs, [facts_of(runs[0])], {})[0].title == "Runs"


def test_dollars_in_a_name_are_no_formula(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "_a$\\foo$", looks=[(10, look_at(BLOCK))]), "_a$\\foo$")
    maps = depth_maps(run, 0)
    assert maps is not None
    for figure in (still_chart(loss_section([run]).items[0]), still_maps(maps)):
        png(figure)  # a formula that is none raises here
    (legend,) = still_chart(loss_section([run]).items[0]).legends
    assert [text.get_text() for text in legend.get_texts()] == [
        rf" _a\$\foo\$, {what}" for what in ("training", "validation")
    ]


def test_what_is_no_run_is_refused_all_at_once(block: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    wrong = [str(tmp_path / name) for name in ("empty", "file", "absent")]
    assert main(["report", str(block), str(block), *wrong, "--json"]) == ExitCode.REFUSED
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem["key"] for problem in problems] == [*wrong, str(block)]
    assert not (tmp_path / "page").exists()
    assert main(["report", str(block), "--output", str(tmp_path / "file" / "page")]) == ExitCode.REFUSED


def test_the_command_says_what_it_wrote(block: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(block), "--json"]) == ExitCode.DONE
    said = json.loads(capsys.readouterr().out)
    assert Path(said["page"]) == block / "report" / "index.html" and Path(said["page"]).is_file()
    assert said["runs"][0]["run"] == "block" and said["runs"][0]["validation_loss"] == 4.0


def test_a_page_escapes_what_names_hold(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "<script>alert(1)<", looks=[(1, look_at(BLOCK))])
    runs = read_runs([folder])
    overview = overview_section(runs, [facts_of(run) for run in runs], {})
    text = page(runs[0].label, "", [overview, *map(lambda make: make(runs), (loss_section, map_section))])
    body = text.split("</head>")[1]
    assert "alert(1)" in body and "<script>alert" not in body
    assert body.count("<script") == body.count("</script") == body.count('class="figure"'), "nor in a figure's data"


@pytest.mark.slow
def test_a_hundred_thousand_steps_in_seconds(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "long", looks=[(step, look_at(BLOCK)) for step in range(100)])
    spike = 77_777
    template = json.dumps(step_record(0, 0.0))
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(100_000):
            loss = 99.0 if step == spike else 3.0
            line = template.replace('"step": 0, "tokens": 0', f'"step": {step}, "tokens": {step * TOKENS_A_STEP}')
            file.write(line.replace('"loss/train": 0.0', f'"loss/train": {loss}') + "\n")
    began = time.process_time()
    report([make_run(tmp_path / "short")], tmp_path / "short page")
    with open(folder / "metrics.jsonl", encoding="utf-8") as file:
        assert sum(json.loads(line)["step"] == spike for line in file) == 1
    short = time.process_time() - began
    made = report([folder], tmp_path / "page")
    # A ratio, for machines differ: it was 1.6 to 2.6 when this was written.
    ratio = (time.process_time() - began - short) / short
    assert ratio < 5, "against a page of a few steps, and reading every line once as JSON"
    assert made.page.stat().st_size < 12 * 2**20
    run = made.runs[0]
    assert run.looks_taken == 100 and len(run.looks) <= MOST_LOOKS
    assert run.looks[0][0] == 0 and run.looks[-1][0] == 99
    section = loss_section([run])
    x, y = series(section.items[0], "long, training, raw")
    assert len(x) <= MOST_POINTS and y[x.index(spike)] == 99.0, "a peak is not thinned away"
    assert "Of 100,000 logged steps" in section.text and "the 511,995 tokens around it" in section.text


def logged(loss: Callable[[float], float], steps: int, every: int, *, mean: bool, tokens: int = 10) -> Curve:
    """A run logged every so many steps, as older records have it, or each with the mean of what went before."""
    points = []
    for step in range(every, steps + 1, every):
        own = [loss(one) for one in range(step - every + 1, step + 1)]
        span = float(every * tokens) if mean else np.nan
        points.append((float(step), float(step * tokens), float(np.mean(own)) if mean else own[-1], span))
    return Curve.of(points)


def test_runs_logged_every_step_and_every_fifth_are_smoothed_alike() -> None:
    """By as many tokens, wherever the records lie (tensorflow/tensorboard#1518): else one of the same two runs wins."""

    def loss(step: float) -> float:
        return 3 + 5 * math.exp(-step / 300)

    curves = [logged(loss, 1000, every, mean=mean) for every, mean in ((1, False), (5, False), (5, True), (20, True))]
    span = smoothing_span(curves)
    assert span == 5 * 20 * 10, "five records of the most sparsely logged run"
    for curve in curves:
        found = smoothed(curve, span, 500)
        assert found.steps[-1] == 1000
        truth = np.array([loss(step) for step in found.steps])
        assert np.abs(found.values - truth).max() < 0.04, "100 steps of the curve fall by up to 1.4"
        assert found.values[-1] == pytest.approx(loss(1000), abs=5e-3)
    assert smoothing_span(curves[:1]) == 1000 * 10 / 50 and smoothing_span([]) is None


def test_a_smoothed_curve_takes_noise_away_and_does_not_lag() -> None:
    noise = np.random.default_rng(1).normal(scale=0.3, size=1001)
    runs = [
        logged(lambda step: 8 - step / 200 + noise[int(step)], 1000, every, mean=mean)
        for every, mean in ((1, False), (5, True))
    ]
    span = smoothing_span(runs)
    assert span == 250
    one, other = (smoothed(curve, span, 10_000) for curve in runs)
    truth = 8 - one.steps / 200
    assert abs(float(np.mean(one.values - truth))) < 0.02, "the mean of the last 25 would be 0.06 above"
    assert float(np.std(one.values - truth)) < 0.3 / 3
    both = np.isin(one.steps, other.steps)
    assert np.abs(one.values[both] - other.values).max() < 0.2 and one.values[-1] == pytest.approx(
        other.values[-1], abs=0.05
    )


@pytest.mark.parametrize("every", [1, 5])
def test_means_of_a_straight_line_are_smoothed_to_the_line_itself(every: int) -> None:
    """Each record stands at the middle of the steps that it is the mean of, the first one too."""
    curve = logged(lambda step: 7 - step / 50, 200, every, mean=True)
    found = smoothed(curve, smoothing_span([curve]) or 0.0, 1000)
    assert found.values == pytest.approx(7 - found.steps / 50, abs=1e-9)
    assert len(found) == 200 // every and found.spans.tolist() == [10.0 * every] * len(found)


def test_smoothing_survives_what_is_damaged() -> None:
    points = [
        (float(n), 10.0 * n, 1e300 if n == 50 else float("nan") if n == 30 else 1.0, np.nan) for n in range(1, 101)
    ]
    points[69] = (70.0, np.nan, 1.0, np.nan)
    found = smoothed(Curve.of(points), 50.0, 1000)
    assert len(found) == 99 and np.isfinite(found.values).all() and found.values[-1] == 1.0
    assert len(smoothed(Curve.of([(1.0, np.nan, 1.0, np.nan)]), 50.0, 10)) == 0
    assert smoothing_span([Curve.of([(float(n), np.nan, 1.0, np.nan) for n in range(30)])]) is None


def test_curves() -> None:
    points = [(2, 20, 5.0), (1, 10, 1.0), (3, 30, np.nan), (4, 40, 2.0), (2, 20, 3.0)]
    curve = Curve.of([(*point, np.nan) for point in points])
    assert curve.steps.tolist() == [1, 2, 3, 4] and curve.values[1] == 3.0, "the later line of a step holds"
    assert curve.last == 2.0 and np.isnan(Curve.of([(1, 1, 1.0, 1), (2, 2, np.nan, 1)]).last or 0.0)
    noise = np.random.default_rng(1).normal(size=10_000)
    long = Curve(np.arange(10_000.0), np.arange(10_000.0), noise, np.full(10_000, np.nan))
    thin = thinned(long, 100)
    assert len(thin) <= 100 and thin.values.max() == noise.max() and thin.values.min() == noise.min()
    assert (thin.steps[0], thin.steps[-1]) == (0, 9_999) and (np.diff(thin.steps) > 0).all()
    holed = np.where(np.arange(10_000) % 7 == 3, np.nan, noise)
    thin = thinned(replace(long, values=holed), 100)
    assert (np.nanmax(thin.values), np.nanmin(thin.values)) == (np.nanmax(holed), np.nanmin(holed))
    stretches = mean_by_stretch(Curve.of([(float(n), 10.0 * n, float(n), 10.0) for n in range(1, 13)]), 4)
    assert stretches.values.tolist() == [2, 5, 8, 11]
    assert (stretches.steps.tolist(), stretches.tokens.tolist()) == ([3, 6, 9, 12], [30, 60, 90, 120])


def test_names_and_differences() -> None:
    assert short_names([("r", "a", "x"), ("r", "b", "x")]) == ["a/x", "b/x"]
    configs = {"one": {"a.b": True, "a.c": 1, "training.run_folder": "x"}, "two": {"a.b": 1, "a.c": 1, "a.d": [2]}}
    assert config_differences(configs) == {"a.b": {"one": True, "two": 1}, "a.d": {"one": None, "two": [2]}}


def test_facts_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    run = read_run(tmp_path, "x")
    assert facts_of(run).steps is None and "metrics.jsonl: no step logged yet" in run.notes


def test_of_many_runs_each_has_one_entry_in_a_legend_that_needs_no_bar(tmp_path: Path) -> None:
    looks = [(10, look_at(BLOCK)), (20, look_at(BLOCK, 2.0))]
    runs = read_runs([make_run(tmp_path / f"{i}-{60 * 'long'}", looks=looks) for i in range(3)])
    for chart in (loss_section(runs).items[0], by_depth_section(runs).items[0]):
        assert isinstance(chart, Chart)
        drawn = live_chart(chart)
        assert [trace.legendgroup for trace in drawn.data if trace.showlegend] == [run.label for run in runs]
        assert {trace.legendgroup for trace in drawn.data} == {run.label for run in runs}, "a click hides a whole run"
        assert drawn.layout.height - live_chart(loss_section(runs[:1]).items[0]).layout.height >= 22  # type: ignore[arg-type]
    drawn = live_maps(depth_maps(runs[0], 0))  # type: ignore[arg-type]
    lines = drawn.layout.title.text.split("<br>")
    assert max(map(len, lines)) <= 64 and "".join(lines).endswith("long") and drawn.layout.margin.t > 22 + 20
    assert len(overview_section(runs, [facts_of(run) for run in runs], {}).items) == 2


def test_a_level_line_shows_its_size(tmp_path: Path) -> None:
    """Left alone, plotly draws a rate of 0.001 from -1 to 1."""
    section = optimization_section(read_runs([make_run(tmp_path / "run")]))
    rate, norm, _ = (item for item in section.items if isinstance(item, Chart))
    assert live_chart(rate).layout.yaxis.rangemode == "tozero" and still_chart(rate).axes[0].get_ylim()[0] == 0.0
    assert live_chart(norm).layout.yaxis.rangemode is None, "of a logarithm there is no zero"
