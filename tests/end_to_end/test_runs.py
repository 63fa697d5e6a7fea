"""Whole runs through launch/torchrun.sh: files, curves, resume, signals, refusals."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnres_train.observe.claim import claim_run_folder
from attnres_train.observe.settings_history import read_history
from tests.end_to_end.conftest import ROOT, Corpus, by_step, launch, records
from tests.end_to_end.processes import ancestors, read, wait_for_rank

MODULE = "attnres_train.train"
TAGS = {
    "loss/train", "optim/lr", "optim/grad_norm", "optim/skipped_steps", "throughput/tokens_per_second",
    "throughput/tokens_per_second_per_device", "throughput/model_tflops_per_device", "time/step_seconds",
    "time/data_seconds", "time/forward_seconds", "time/backward_seconds", "time/waiting_seconds",
    "time/reduction_seconds", "time/optimizer_seconds", "memory/peak_gib", "pipeline/forward_bytes",
    "pipeline/backward_bytes", "pipeline/kept_bytes",
}  # fmt: skip


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def maps(run: Path) -> list[int]:
    """Steps of the maps in the image tab."""
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    return [image.step for image in events.Images("z-depth/weights")]


def test_a_run_leaves_what_it_promises(write_config: Callable[..., Path], corpus: Corpus, tmp_path: Path) -> None:
    assert_promises_are_kept(write_config(parallel="pipeline = 2", observe="depth_interval = 4"), corpus, tmp_path)


@pytest.mark.slow
def test_a_resumed_run_leaves_what_a_whole_one_does(write_config: Callable[..., Path], tmp_path: Path) -> None:
    config = write_config(parallel="pipeline = 2", observe="depth_interval = 4")
    launch(config, 2)
    launch(config, 2, "--training.run_folder", f"{tmp_path}/broken", "--training.stop_after_steps", "6")
    launch(config, 2, "--training.run_folder", f"{tmp_path}/broken")
    whole, broken = tmp_path / "run", tmp_path / "broken"
    for tag in ("loss/train", "optim/grad_norm", "optim/lr", "depth/entropy/head"):
        assert by_step(broken, tag) == by_step(whole, tag)
    assert by_step(broken, "loss/valid")[12] == by_step(whole, "loss/valid")[12]
    assert records(broken / "samples.jsonl") == records(whole / "samples.jsonl")


def assert_promises_are_kept(config: Path, corpus: Corpus, tmp_path: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in corpus.folder.rglob("*")}
    done = launch(config, 2)
    run = tmp_path / "run"
    assert {path: path.stat().st_mtime_ns for path in corpus.folder.rglob("*")} == files, "data folders are only read"
    orders = [re.findall(r"order of samples: (\w+)", path.read_text()) for path in (run / "logs").iterdir()]
    assert len(orders) == 2 and orders[0] == orders[1] and len(orders[0][0]) == 12
    assert re.search(rf"{corpus.train}: [\d,]+ tokens, (\d+) samples; draws 96, epochs \d+\.\d\d\n", done.stdout)
    assert "step 12/12  loss" in done.stdout and "validation loss" in done.stdout
    resolved = tomllib.loads((run / "config.toml").read_text())
    assert resolved["model"]["num_layers"] == 3 and resolved["optimizer"]["beta2"] == 0.95
    assert f"# {config}:" in (run / "config.toml").read_text()
    assert {path.name for path in (run / "logs").iterdir()} == {"rank-0000.log", "rank-0001.log"}
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"latest", "step-00000010", "step-00000012"}

    first = records(run / "metrics.jsonl")[0]
    assert TAGS | {"step", "tokens", "samples", "loss_tokens"} == first.keys()
    phases = [value for tag, value in first.items() if tag.startswith("time/") and tag != "time/step_seconds"]
    assert 0.5 * first["time/step_seconds"] < sum(phases) < 1.05 * first["time/step_seconds"]
    assert (first["step"], first["samples"], first["tokens"], first["loss_tokens"]) == (1, 8, 8 * 32, 8 * 32)
    # 3 layers on 2 stages: blocks of 3 sublayers put source 0, block 1 and a partial on the one hop.
    assert first["pipeline/forward_bytes"] == first["pipeline/backward_bytes"] == 4 * 3 * 32 * 2 * 32 * 4
    losses = by_step(run, "loss/train")
    assert list(losses) == list(range(1, 13)) and losses[12] < losses[1] - 0.3
    assert dict(curves(run)["loss/train"]) == pytest.approx(losses)
    assert len(list((run / "tensorboard").iterdir())) == 1, "one process writes"
    assert [record["step"] for record in records(run / "depth.jsonl")] == [4, 8, 12]
    assert sorted(path.name for path in (run / "depth").iterdir()) == [
        f"step-000000{n}.png" for n in ("04", "08", "12")
    ]
    assert list(by_step(run, "depth/entropy/head")) == [4, 8, 12] == maps(run)
    assert [len(r["samples"]) for r in records(run / "samples.jsonl")] == [8] * 12

    kept = [(run / name).read_bytes() for name in ("config.toml", "settings.jsonl")]
    again = launch(config, 2, "--parallel.pipeline", "1")
    assert "complete: 12 of 12 steps are done" in again.stdout
    assert by_step(run, "loss/train") == losses
    assert [(run / name).read_bytes() for name in ("config.toml", "settings.jsonl")] == kept, "it trained nothing"


def test_curves_after_a_kill_have_every_step_once(write_config: Callable[..., Path], tmp_path: Path) -> None:
    """Steps 1 to 10, checkpoint at 5, SIGKILL, on from 5 to 12: the values of 6 to 10 are the second run's."""
    config, run = write_config(observe="depth_interval = 1"), tmp_path / "run"
    launch(config, 2, "--training.stop_after_steps", "5")
    before = by_step(run, "loss/train")
    killed = subprocess.Popen(
        [ROOT / "launch/torchrun.sh", config, "--ranks", "2", "--checkpoint.interval_steps", "1000",
         "--training.steps", "2000", "--schedule.decay_steps", "12"],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.startswith("step   10/"):
            break
    for rank in (wait_for_rank(killed.pid, rank=0), wait_for_rank(killed.pid)):
        os.kill(rank, signal.SIGKILL)  # the ranks first: they would save when their launcher dies
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    interrupted = by_step(run, "loss/train")
    assert max(interrupted) >= 10

    launch(config, 2)
    losses = by_step(run, "loss/train")
    assert list(losses) == list(range(1, 13))
    assert {step: losses[step] for step in before} == before
    for tag, points in curves(run).items():
        steps = [step for step, _ in points]
        assert len(steps) == len(set(steps)) and max(steps) == 12, tag
    assert dict(curves(run)["loss/train"]) == pytest.approx(losses)
    assert "z-depth/gradient_rms/02-mlp" in curves(run)
    assert [r["step"] for r in records(run / "samples.jsonl")] == list(range(1, 13))
    assert [r["step"] for r in records(run / "depth.jsonl")] == list(range(1, 13)) == maps(run)
    drawn = [sample for r in records(run / "samples.jsonl") for sample in r["samples"]]
    assert len(drawn) == len(set(drawn)) == 12 * 8, "no sample is drawn twice"


@pytest.mark.slow
def test_another_layout_goes_on_with_the_same_samples(write_config: Callable[..., Path], tmp_path: Path) -> None:
    config, run = write_config(), tmp_path / "run"
    launch(config, 1, "--training.run_folder", f"{tmp_path}/whole")
    launch(config, 2, "--parallel.tensor", "2", "--parallel.sequence", "true", "--training.stop_after_steps", "6")
    launch(config, 2, "--training.micro_batch_size", "1")
    assert list(by_step(run, "loss/train").values()) == pytest.approx(
        list(by_step(tmp_path / "whole", "loss/train").values()), rel=1e-5
    )
    before, after = read_history(run)
    assert (before.steps, after.steps) == ("1 to 6", "from 7") and before.settings["ranks"] == 2
    assert after.changed["parallel.tensor"] == (2, 1) and after.changed["training.micro_batch_size"] == (2, 1)
    assert tomllib.loads((run / "config.toml").read_text())["parallel"]["tensor"] == 1
    for mine, theirs in zip(records(run / "samples.jsonl"), records(tmp_path / "whole/samples.jsonl"), strict=True):
        assert sorted(mine["samples"]) == sorted(theirs["samples"])


@pytest.mark.parametrize("target", ["launcher", pytest.param("one rank", marks=pytest.mark.slow)])
def test_sigterm_saves_and_ends_with_code_3(target: str, write_config: Callable[..., Path], tmp_path: Path) -> None:
    config, run = write_config(parallel="pipeline = 2"), tmp_path / "run"
    started = subprocess.Popen(
        [ROOT / "launch/torchrun.sh", config, "--ranks", "2", "--training.steps", "5000"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    lines = []
    for line in started.stdout:
        lines.append(line)
        if line.startswith("step    3/"):
            os.kill(started.pid if target == "launcher" else wait_for_rank(started.pid), signal.SIGTERM)
            break
    lines += started.stdout.readlines()
    assert started.wait(timeout=240) == 3, "".join(lines)
    stopped = max(by_step(run, "loss/train"))
    assert 3 <= stopped < 100
    assert any(f"stopped on a signal after step {stopped}" in line for line in lines)
    assert "checking it, while torchrun loads" in lines[0] and "exit code 3" in lines[-1]
    assert "Traceback" not in "".join(lines), "torchrun's pages are in the logs"
    assert "SignalException" in (run / "logs/launcher-0000.log").read_text() or target == "one rank"
    assert (run / f"checkpoints/step-{stopped:08d}/manifest.json").is_file()
    resumed = launch(config, 2, "--training.steps", str(stopped + 2), "--schedule.decay_steps", "12")
    assert f"at step {stopped}, sample {8 * stopped}" in resumed.stdout


def test_a_killed_rank_ends_the_run_and_is_named_as_the_cause(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    config = write_config(parallel="pipeline = 2")
    started = subprocess.Popen(
        [ROOT / "launch/torchrun.sh", config, "--ranks", "2", "--training.steps", "5000"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith("step    3/"):
            os.kill(wait_for_rank(started.pid), signal.SIGKILL)
            break
    told = started.stdout.read()
    assert started.wait(timeout=240) == 1, told
    assert "rank 0 ended because another rank did" in told
    last = told.rpartition("the run failed (exit code 1)")[2]
    assert "cause: rank 1 on" in last and "signal 9 (SIGKILL): most often memory" in last and "rank-0001.log" in last
    assert "Connection closed by peer" not in told
    assert read(tmp_path / "run/logs/rank-0000.log").count("rank 0 failed") == 1


@pytest.mark.parametrize("target", [pytest.param("torchrun", marks=pytest.mark.slow), "launch script"])
def test_ranks_do_not_outlive_a_killed_launcher(target: str, write_config: Callable[..., Path], tmp_path: Path) -> None:
    config = write_config(parallel="pipeline = 2")
    started = subprocess.Popen(
        [ROOT / "launch/torchrun.sh", config, "--ranks", "2", "--training.steps", "5000"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith("step    3/"):
            rank = wait_for_rank(started.pid)
            os.kill(int(ancestors(rank)[0]) if target == "torchrun" else started.pid, signal.SIGKILL)
            break
    deadline = time.monotonic() + 240
    while Path(f"/proc/{rank}").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not Path(f"/proc/{rank}").exists(), "rank 1 goes on training unseen"
    started.communicate(timeout=240)
    stopped = max(by_step(tmp_path / "run", "loss/train"))
    assert (tmp_path / f"run/checkpoints/step-{stopped:08d}/manifest.json").is_file()


@pytest.mark.parametrize("by_script", [True, False], ids=["launch script", "bare rank"])
def test_a_launch_into_a_folder_in_use_is_refused_before_it_touches_it(
    by_script: bool, write_config: Callable[..., Path], tmp_path: Path
) -> None:
    config, run = write_config(), tmp_path / "run"
    (run / "ranks").mkdir(parents=True)
    for name in ("ranks/rank-0000.json", "config.toml"):
        (run / name).write_text("the living run's")
    words = [ROOT / "launch/torchrun.sh"] if by_script else [sys.executable, "-X", "importtime", "-m", MODULE]
    with claim_run_folder(run):
        done = subprocess.run([*words, config], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2, done.stderr
    who = f"process {os.getpid()} on {socket.gethostname()}, since 20"
    assert f"another run is writing to {run}: {who}" in done.stderr
    assert " torch\n" not in done.stderr, "refused before that is imported"
    assert {path.name for path in run.rglob("*")} == {".lock", "config.toml", "ranks", "rank-0000.json"}
    assert {(run / name).read_text() for name in ("ranks/rank-0000.json", "config.toml")} == {"the living run's"}


@pytest.mark.slow
def test_a_second_run_in_the_folder_is_refused_and_repeated_signals_do_no_harm(
    write_config: Callable[..., Path], tmp_path: Path
) -> None:
    config, run = write_config(parallel="pipeline = 2"), tmp_path / "run"
    first = subprocess.Popen(
        [ROOT / "launch/torchrun.sh", config, "--ranks", "2", "--training.steps", "5000"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("step    3/"):
            break
    second = launch(config, 2, "--training.steps", "5000", expect=2)
    assert "another run is writing to" in second.stderr
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        os.killpg(first.pid, number)
    told = first.stdout.read()
    assert first.wait(timeout=240) == 3, told
    losses = by_step(run, "loss/train")
    assert list(losses) == list(range(1, max(losses) + 1))
    assert (run / f"checkpoints/step-{max(losses):08d}/manifest.json").is_file()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["--training.global_batch_size", "10"], ["10", "8", "12"]),
        (["--optimizer.learing_rate", "1e-3"], ["optimizer.learing_rate", "optimizer.learning_rate"]),
        (["--parallel.pipeline", "2", "--parallel.layers_per_stage", "[3, 1]"], ["sum", "4", "3"]),
        (["--tokenizer.model", "nowhere.model"], ["nowhere.model"]),
        (["--checkpoint.resume", "must"], ["must", "checkpoints"]),
        (["--training.run_folder", "/proc/version/run"], ["training.run_folder", "/proc/version is a file"]),
        (["--checkpoint.resume", "nowhere/step-00000001"], ["nowhere/step-00000001"]),
    ],
    ids=["batch", "misspelt", "split", "tokenizer", "resume must", "run folder", "resume path"],
)
def test_what_cannot_be_met_is_refused_before_training(
    overrides: list[str],
    told: list[str],
    write_config: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = tmp_path / "a rank began"
    (tmp_path / "sitecustomize.py").write_text(f"import os\nif 'RANK' in os.environ: open({str(rank)!r}, 'a')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    done = launch(write_config(), 2, *overrides, expect=2)
    for part in told:
        assert part in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert "resume" in overrides[0] or not rank.exists()


def test_data_of_another_tokenizer_is_refused(
    write_config: Callable[..., Path], corpus: object, tmp_path: Path
) -> None:
    from tests.end_to_end.conftest import tool

    other = tmp_path / "other.model"
    tool("train_tokenizer", corpus.folder / "valid.jsonl", "--vocab-size", "310", "--output", other)
    done = launch(write_config(), 1, "--tokenizer.model", str(other), expect=2)
    assert "made with tokenizer" in done.stderr and "Traceback" not in done.stderr


def test_data_that_is_cut_under_a_run_is_a_failure_and_no_refusal(
    write_config: Callable[..., Path], corpus: Corpus, tmp_path: Path
) -> None:
    """A refusal says that nothing was trained, and ends what supervises the run."""
    for path in corpus.folder.glob("train.*"):
        shutil.copy(path, tmp_path / path.name)
    words = ["--data.train", tmp_path / "train", "--training.steps", "5000", "--observe.log_interval_steps", "1"]
    run = subprocess.Popen(
        [ROOT / "launch/torchrun.sh", write_config(), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None and run.stderr is not None
    next(line for line in run.stdout if line.startswith("step    3/"))
    os.truncate(tmp_path / "train.bin", 100)
    told = run.stderr.read()
    assert run.wait() == 1, told
    assert re.search(r"cause: rank 0 on \S+, .*step \d+", told) and f"{tmp_path}/train.bin: ends at byte" in told
