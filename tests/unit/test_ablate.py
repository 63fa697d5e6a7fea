"""`attnres ablate`: the grid file, what is done, the runs in turn, and tables of hand-made run folders."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attnres_train.ablate.grid import RunGrid, read_grid
from attnres_train.ablate.results import results_of
from attnres_train.ablate.runner import Runner
from attnres_train.ablate.state import CheckedRun, check_all
from attnres_train.ablate.write import ablation_sections, markdown, results_json
from attnres_train.cli import main
from attnres_train.config.load import load
from attnres_train.config.show import resolved_toml
from attnres_train.depth.layout import DepthLayout
from attnres_train.errors import ExitCode, Refused
from attnres_train.model.size import depth_flops_per_token
from attnres_train.observe.claim import claim_run_folder
from attnres_train.observe.depth_look import DepthLook
from attnres_train.report.charts import Chart, Table
from attnres_train.setup import Setup
from attnres_train.strict_json import dumps
from tests.unit.checkpoint_folders import run_with
from tests.unit.config_files import write
from tests.unit.run_folders import FLOPS_A_TOKEN, look_at, make_run

ROOT = Path(__file__).resolve().parents[2]
CASES = """
[[case]]
name = "standard"
residual.mode = "standard"
residual.block_size = "none"

[[case]]
name = "block"
residual.mode = "block"
"""
GridWriter = Callable[..., Path]


@pytest.fixture
def write_grid(tmp_path: Path) -> GridWriter:
    """Writes a grid of the small configuration; `head` are lines before its tables."""

    def write_it(
        tables: str = CASES, head: str = "", seeds: str = "[1, 2, 3]", launcher: str = "launch/torchrun.sh"
    ) -> Path:
        base = write(tmp_path)
        text = f'base = "{base}"\nfolder = "{tmp_path}/grid"\nreference = "standard"\nseeds = {seeds}\n'
        path = tmp_path / "grid.toml"
        path.write_text(f'{text}launcher = "{launcher}"\n{head}\n{tables}', encoding="utf-8")
        return path

    return write_it


def problems_of(path: Path) -> dict[str, str]:
    with pytest.raises(Refused) as caught:
        read_grid(path)
    return {problem.key: problem.message for problem in caught.value.problems}


def test_cases_times_settings_times_seeds(write_grid: GridWriter, tmp_path: Path) -> None:
    vary = "[vary]\nmodel.num_layers = [2, 4]\n[override]\ntraining.steps = 7\n"
    own = 'where.model.num_layers = [4]\ntraining.steps = 9\ndata.train = {a = 0.5, "b" = 0.5}\n'
    path = write_grid(vary + CASES + own)
    grid = read_grid(path)
    assert [(run.case, run.setting, run.seed) for run in grid.runs[:4]] == [
        *(("standard", "num_layers 2", 1), ("standard", "num_layers 4", 1), ("block", "num_layers 4", 1)),
        ("standard", "num_layers 2", 2),
    ]
    assert len(grid.runs) == 9 and len({run.folder for run in grid.runs}) == 9
    config = load(grid.base, grid.runs[2].overrides).config
    assert (config.model.num_layers, config.residual.mode, config.training.steps, config.training.seed) == (
        4,
        "block",
        9,
        1,
    )
    assert load(grid.base, grid.runs[0].overrides).config.training.steps == 7, "a case outweighs what all share"
    assert config.data.train == {"a": 0.5, "b": 0.5} and config.residual.block_size == 2
    assert config.training.run_folder == str(tmp_path / "grid/block_num_layers-4_seed-1")
    assert load(grid.base, grid.runs[0].overrides).config.residual.block_size is None


def test_a_wrong_grid_is_refused_with_every_problem(write_grid: GridWriter) -> None:
    tables = """
[override]
model.num_layer = 3
training.seed = 4
optimizer.learning_rate = 1.0
[vary]
model.num_layers = 4
optimizer.learning_rate = [1e-3]
[[case]]
name = "a b"
where.model.hidden_size = [64]
[[case]]
name = "block"
optimizer.learning_rate = 1e-3
[[case]]
name = "block"
"""
    found = problems_of(write_grid(tables, seeds="[1, 1]", launcher="no/such.sh"))
    assert set(found) == {
        *("model.num_layer", "training.seed", "optimizer.learning_rate", "model.num_layers", "case.name"),
        *("model.hidden_size", "reference", "case", "seeds", "launcher"),
    }


@pytest.mark.parametrize(
    ("tables", "head", "key"),
    [
        *[
            ("", "", "case"),
            (CASES, "rank = 2", "rank"),
            (CASES, "ranks = 0", "ranks"),
            (CASES, "ranks = true", "ranks"),
        ],
        (CASES + "[vary]\noptimizer.learning_rate = [1e-3, 0.001]", "", "optimizer.learning_rate"),
        (CASES + "where.model.num_layers = [4]\n[vary]\nmodel.num_layers = 4", "", "model.num_layers"),
        (CASES + '[vary]\nobserve.wandb_project = ["a/b", "a-b"]', "", "case"),
    ],
)
def test_a_wrong_file_is_refused(write_grid: GridWriter, tables: str, head: str, key: str) -> None:
    assert key in problems_of(write_grid(tables, head))


def test_a_launcher_that_cannot_be_executed_is_refused(write_grid: GridWriter, tmp_path: Path) -> None:
    (tmp_path / "plain.sh").touch()
    assert "can be executed" in problems_of(write_grid(launcher=str(tmp_path / "plain.sh")))["launcher"]


def test_what_is_no_toml_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[", encoding="utf-8")
    assert (
        main(["ablate", str(tmp_path / "bad.toml")]) == main(["ablate", str(tmp_path / "no.toml")]) == ExitCode.REFUSED
    )


def test_all_runs_are_checked_before_one_starts(write_grid: GridWriter, capsys: pytest.CaptureFixture[str]) -> None:
    tables = "[override]\noptimizer.beta1 = 2.0\n" + CASES + "residual.block_size = 100\n"
    path = write_grid(tables, "ranks = 3", seeds="[1, 2, 3, 4, 5]")
    assert main(["ablate", str(path), "--json"]) == ExitCode.REFUSED
    found = {problem["key"]: problem["message"] for problem in json.loads(capsys.readouterr().out)["problems"]}
    assert "in every run" in found["optimizer.beta1"]
    assert not (path.parent / "grid").exists()


def test_a_problem_of_some_runs_names_them(write_grid: GridWriter) -> None:
    grid = read_grid(write_grid(CASES + 'residual.block_size = "none"\n', seeds="[1, 2, 3, 4, 5]"))
    with pytest.raises(Refused) as caught:
        check_all(grid)
    (message,) = [problem.message for problem in caught.value.problems if problem.key == "residual.block_size"]
    assert "in block_seed-1, block_seed-2, block_seed-3 and 2 more" in message


@pytest.fixture
def trainable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that files exist are left out: these grids name no corpus."""
    from attnres_train.ablate import state

    real = state.load_checked
    monkeypatch.setattr(
        state, "load_checked", lambda path, overrides, world, purpose: real(path, overrides, world, "plan")
    )


def test_a_folder_of_another_configuration_is_refused(write_grid: GridWriter, trainable: None) -> None:
    grid = read_grid(write_grid(seeds="[1]"))
    runs = check_all(grid)
    assert [run.stand for run in runs] == ["not begun", "not begun"]
    make_run(grid.runs[1].folder, *grid.runs[1].overrides)
    assert [run.stand for run in check_all(grid)] == ["not begun", "begun"]
    loaded = load(grid.base, [*grid.runs[1].overrides, "--optimizer.learning_rate=1e-5"])
    (grid.runs[1].folder / "config.toml").write_text(resolved_toml(loaded.config, loaded.origins), encoding="utf-8")
    with pytest.raises(Refused, match=r"optimizer.learning_rate 1e-05, wanted"):
        check_all(grid)


def test_what_is_left_of_a_run_goes_by_its_newest_whole_checkpoint(write_grid: GridWriter, trainable: None) -> None:
    """One of step 20, the last, was cut short: the run is at step 5, and three quarters of its compute are left."""
    grid = read_grid(write_grid(seeds="[1]"))
    for run in grid.runs:
        make_run(run.folder, *run.overrides)
    run_with(grid.runs[0].folder, 5, 20)
    run_with(grid.runs[1].folder, 20)
    whole = grid.runs[0].folder / "checkpoints/step-00000020"
    (whole / "manifest.json").unlink()
    begun, done = check_all(grid)
    assert (begun.stand, begun.done_steps, done.stand, done.done_steps) == ("begun", 5, "done", 20)
    flops = Setup.of(load(grid.base, grid.runs[0].overrides).config).flops_per_token
    assert begun.model_flops == 20 * 8 * 32 * flops
    assert (begun.flops_left, done.flops_left) == (0.75 * begun.model_flops, 0)


def stub(folder: Path, script: str) -> Path:
    """A launcher that runs `script`, with the overrides in $* and the seed in $seed."""
    path = folder / "launcher.sh"
    head = '#!/usr/bin/env bash\nseed=$(sed -E "s/.*training.seed=([0-9]+).*/\\1/" <<< "$*")\n'
    path.write_text(head + script, encoding="utf-8")
    path.chmod(0o755)
    return path


def planned(grid: RunGrid, stand: str = "not begun") -> list[CheckedRun]:
    return [CheckedRun(run, 10, 0, stand, 1e12) for run in grid.runs]  # type: ignore[arg-type]


def test_a_failed_run_is_told_and_the_others_go_on(write_grid: GridWriter, tmp_path: Path) -> None:
    launcher = stub(
        tmp_path,
        f'cd {tmp_path}; echo "seed $seed" >> order; echo $ATTNRES_VENV > venv; echo said; [ "$seed" != 2 ]',
    )
    grid = read_grid(write_grid(launcher=str(launcher)))
    told: list[str] = []
    runner = Runner(grid, told.append)
    assert runner.run(planned(grid)) == ExitCode.FAILED
    assert (tmp_path / "order").read_text(encoding="utf-8").split("\n")[:-1] == ["seed 1"] * 2 + ["seed 2"] * 2 + [
        "seed 3"
    ] * 2
    assert runner.failed == ["standard_seed-2", "block_seed-2"]
    assert (tmp_path / "venv").read_text(encoding="utf-8").strip() == os.environ.get("ATTNRES_VENV", sys.prefix)
    assert (grid.folder / "logs/block_seed-2.log").read_text(encoding="utf-8") == "said\n"
    assert "6 runs: 0 done, 0 begun, 6 to begin" in told[0]
    assert any(re.search(r"5 left, about \d+ s by the pace of 1 so far", line) for line in told)


def test_what_is_done_is_not_launched(write_grid: GridWriter, tmp_path: Path) -> None:
    grid = read_grid(write_grid(launcher=str(stub(tmp_path, "exit 1"))))
    assert Runner(grid, lambda line: None).run(planned(grid, "done")) == ExitCode.DONE


def test_runs_side_by_side(write_grid: GridWriter, tmp_path: Path) -> None:
    both = f"[ $(ls {tmp_path}/at-* | wc -l) -ge 2 ] && exit 0"
    script = f"touch {tmp_path}/at-$$; for i in $(seq 600); do {both}; sleep 0.1; done; exit 1"
    grid = read_grid(write_grid(head="parallel_runs = 2", launcher=str(stub(tmp_path, script)), seeds="[1]"))
    assert Runner(grid, lambda line: None).run(planned(grid)) == ExitCode.DONE


def test_a_signal_is_passed_on_and_nothing_more_starts(write_grid: GridWriter, tmp_path: Path) -> None:
    """Of two runs side by side one takes longer to save: meanwhile no third is started."""
    slow = '[[ "$*" == *standard* ]] && wait=0 || wait=1'
    trap = f'trap "touch {tmp_path}/asked-$$; sleep $wait; exit 3" TERM; touch {tmp_path}/up-$$'
    launcher = stub(tmp_path, f"{slow}; {trap}; while :; do sleep 0.05; done")
    grid = read_grid(write_grid(head="parallel_runs = 2", launcher=str(launcher)))

    def ask() -> None:
        while len(list(tmp_path.glob("up-*"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=ask, daemon=True).start()
    told: list[str] = []
    assert Runner(grid, told.append).run(planned(grid)) == ExitCode.STOPPED_ON_SIGNAL
    assert len(list(tmp_path.glob("asked-*"))) == 2 and signal.getsignal(signal.SIGTERM) == before
    assert len([line for line in told if "begins" in line]) == 2 and "stopped and saved" in told[-1]


def test_a_second_ablate_in_one_folder_is_refused(
    write_grid: GridWriter, trainable: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_grid(launcher="launch/torchrun.sh")
    (path.parent / "grid").mkdir()
    with claim_run_folder(path.parent / "grid"):
        assert main(["ablate", str(path)]) == ExitCode.REFUSED
    assert "another ablate runs in" in capsys.readouterr().err


def finish(
    grid: RunGrid,
    number: int,
    losses: list[tuple[int, float]],
    look: DepthLook | None = None,
    step_seconds: float = 1.0,
) -> None:
    run = grid.runs[number]
    looks = [(20, look)] if look else []
    make_run(run.folder, *run.overrides, valid=losses, looks=looks, step_seconds=step_seconds)


def test_results_of_hand_made_runs(write_grid: GridWriter) -> None:
    grid = read_grid(write_grid())
    standard, block = DepthLayout(8, "standard", None), DepthLayout(8, "block", 2)
    for seed, (ours, theirs) in enumerate([(3.9, 4.0), (3.8, 4.0)]):
        finish(grid, 2 * seed, [(5, 6.0), (10, 5.0), (20, theirs)], look_at(standard, 3.0))
        finish(grid, 2 * seed + 1, [(5, 6.0), (10, 4.0), (20, ours)], look_at(block, 1.0 + seed), step_seconds=1.2)
    finish(grid, 4, [(5, 6.0), (20, float("nan"))])
    results = results_of(grid)
    reference, cell = results.cells
    assert (reference.case, reference.seeds, cell.case, cell.seeds) == ("standard", [1, 2, 3], "block", [1, 2])
    assert reference.loss is not None and (reference.loss.mean, reference.loss.n) == (4.0, 2)
    assert reference.notes == ["seed 3: the last validation loss is not finite"] and reference.advantage is None
    assert cell.loss is not None and cell.loss.mean == pytest.approx(3.85)
    assert cell.loss.high is not None and cell.loss.high - 3.85 == pytest.approx(12.7062 * 0.05, rel=1e-4)
    assert cell.loss_over_reference is not None and cell.loss_over_reference.mean == pytest.approx(-0.15)
    assert cell.advantage is not None and cell.advantage.mean == pytest.approx(2.0), "4.0 at step 10, not 20"
    sizes = cell.by_depth["gradient_rms"]["00-mlp"]
    assert sizes.mean == pytest.approx(0.5**0.5), "the geometric mean of 0.5 and 1"
    assert sizes.low is not None and sizes.low > 0, "its band can be drawn on a scale of ratios"
    slower = cell.step_time_over_reference
    assert slower is not None and (slower.mean, slower.n) == (pytest.approx(1.2), 2)
    assert reference.depth_flops_share == 0.0 and cell.depth_flops_share is not None
    config = load(grid.base, grid.runs[1].overrides).config
    assert cell.depth_flops_share == pytest.approx(depth_flops_per_token(config.model, config.residual) / FLOPS_A_TOKEN)
    assert results.unfinished == ["block_seed-3: not begun"]
    sections = ablation_sections(grid, results)
    items = {item.name: item for section in sections for item in section.items if isinstance(item, Chart)}
    assert items["loss-1"].series[1].y.tolist() == pytest.approx([6.0, 4.0, 3.85])
    band = items["loss-1"].series[1]
    assert band.high is not None and band.high[-1] - 3.85 == pytest.approx(12.7062 * 0.05, rel=1e-4)
    text = markdown("title", "made", sections)
    assert "| – | block | 2 |" in text and "-0.1500 ± 0.6353" in text and "2.000 (2.000 to 2.000)" in text
    table = sections[2].items[1]
    assert isinstance(table, Table) and table.head == ["reader", "standard", "block"]
    settings = sections[-1].items[0]
    assert isinstance(settings, Table) and settings.head == ["key", "standard", "block"]
    assert ["residual.mode", "standard", "block"] in settings.rows and [
        "training.seed",
        *["1, 2, 3"] * 2,
    ] in settings.rows
    found = json.loads(dumps(results_json(grid, results)))
    assert found["cells"][1]["advantage"]["n"] == 2
    assert found["curves"][2]["losses"] == [6.0, "NaN"]


def test_runs_are_paired_by_seed_and_told_by_their_last_look_and_usual_step(write_grid: GridWriter) -> None:
    """Of the reference seed 1 is not done: seed 2 is held against seed 2, which took three seconds a step."""
    grid = read_grid(write_grid(seeds="[1, 2]"))
    layout = DepthLayout(8, "block", 2)
    finish(grid, 1, [(10, 5.0), (20, 4.0)], step_seconds=100.0)
    finish(grid, 2, [(10, 5.0), (20, 4.5)], step_seconds=3.0)
    run = grid.runs[3]
    flat = look_at(layout)
    flat = DepthLook(tuple(replace(r, partial_rms=None if r.partial_rms is None else 2.0) for r in flat.readers))
    make_run(run.folder, *run.overrides, valid=[(10, 5.0), (20, 4.2)], looks=[(10, look_at(layout)), (20, flat)])
    lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    slow = {**json.loads(lines[0]), "time/step_seconds": 1000.0}
    (run.folder / "metrics.jsonl").write_text("\n".join([dumps(slow), *lines[1:]]) + "\n", encoding="utf-8")
    cell = results_of(grid).cells[1]
    slower = cell.step_time_over_reference
    assert slower is not None and (slower.mean, slower.n) == (pytest.approx(1 / 3), 1)
    assert cell.loss_over_reference is not None and cell.loss_over_reference.mean == pytest.approx(4.2 - 4.5)
    assert cell.partial_growth is not None and (cell.partial_growth.mean, cell.partial_growth.n) == (1.0, 1)


def test_a_run_that_lacks_its_last_step_is_not_finished(write_grid: GridWriter) -> None:
    grid = read_grid(write_grid(seeds="[1]"))
    make_run(grid.runs[0].folder, *grid.runs[0].overrides, steps=19, valid=[(19, 4.0)])
    results = results_of(grid)
    assert results.unfinished[0].startswith("standard_seed-1: at step 19 of 20") and results.cells[0].seeds == []


def test_one_seed_has_no_interval_and_nothing_is_extrapolated(write_grid: GridWriter) -> None:
    grid = read_grid(write_grid(seeds="[1]"))
    finish(grid, 0, [(10, 5.0), (20, 4.0)])
    finish(grid, 1, [(10, 3.5), (20, 3.0)])
    cell = results_of(grid).cells[1]
    assert cell.loss is not None and cell.loss.high is None and cell.advantage is None
    assert cell.notes == ["seed 1: no compute at equal loss: it was reached before the first evaluation"]


def test_one_evaluation_is_told_as_such(write_grid: GridWriter) -> None:
    grid = read_grid(write_grid(seeds="[1]"))
    finish(grid, 0, [(10, 5.0), (20, 4.0)])
    finish(grid, 1, [(20, 3.0)])
    cell = results_of(grid).cells[1]
    assert cell.loss is not None and cell.loss_over_reference is not None and cell.advantage is None
    words = "seed 1: no compute at equal loss: the run has one evaluation, and a curve needs two"
    assert cell.notes == [f"{words} (training.eval_interval_steps)"]


def test_a_loss_on_the_way_that_is_not_finite_is_left_out_of_the_curve_and_told(write_grid: GridWriter) -> None:
    grid = read_grid(write_grid(seeds="[1]"))
    finish(grid, 0, [(5, 6.0), (10, 5.0), (20, 4.0)])
    finish(grid, 1, [(5, 6.0), (8, float("nan")), (10, 4.0), (20, 3.9)])
    cell = results_of(grid).cells[1]
    assert cell.advantage is not None and cell.advantage.mean == pytest.approx(2.0)
    assert cell.notes == ["seed 1: 1 validation loss on the way not finite, left out of the curve"]
    assert "NaN" not in dumps(results_json(grid, results_of(grid)))


def test_runs_of_another_grid_in_the_same_folder_are_left_out(write_grid: GridWriter) -> None:
    finish(read_grid(write_grid(seeds="[1]")), 0, [(10, 5.0), (20, 4.0)])
    grid = read_grid(write_grid(tables=CASES + "[override]\noptimizer.learning_rate = 0.5\n", seeds="[1]"))
    results = results_of(grid)
    assert results.cells[0].seeds == [] and "optimizer.learning_rate" in results.unfinished[0]


def test_a_report_of_unfinished_runs(write_grid: GridWriter, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_grid(seeds="[1]")
    assert main(["ablate", str(path), "--report-only"]) == ExitCode.REFUSED
    grid = read_grid(path)
    make_run(grid.runs[0].folder, *grid.runs[0].overrides, steps=5, valid=[])
    (grid.folder / "logs").mkdir()
    (grid.folder / "logs/standard_seed-1.log").touch()
    assert main(["ablate", str(path), "--report-only"]) == ExitCode.DONE
    assert re.search(r"standard_seed-1: at step 5 of 20 \(log: .*standard_seed-1.log\)", capsys.readouterr().out)
    assert (grid.folder / "report/index.html").is_file() and (grid.folder / "report/results.md").is_file()


def test_the_judged_grid_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for path in (ROOT / "configs/ablation").glob("*.toml"):
        grid = read_grid(path)
        assert len(grid.runs) == 18
        for run in grid.runs:
            load(grid.base, run.overrides)
