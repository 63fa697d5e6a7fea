"""The console command `attnres`."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnres_train.checkpoint.manifest import TensorRecord, plain_fields, write_manifest
from attnres_train.cli import main
from attnres_train.config.load import load
from attnres_train.config.show import resolved_toml
from attnres_train.data.indexed_writer import IndexedWriter
from tests.unit.checkpoint_folders import checkpoint, manifest, write_sealed
from tests.unit.config_files import SMALL, write

REPOSITORY = Path(__file__).parents[2]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def as_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Standard output as the one JSON object it must be, with nothing on standard error."""
    captured = capsys.readouterr()
    assert captured.err == ""
    value = json.loads(captured.out)
    assert isinstance(value, dict)
    return value


def finished_run(folder: Path) -> Path:
    """A run folder with metrics, two whole checkpoints, a damaged and an unpublished one."""
    folder.mkdir()
    loaded = load(write(folder.parent))
    (folder / "config.toml").write_text(resolved_toml(loaded.config, loaded.origins))
    records = [{"step": step, "tokens": 256 * step, "loss/train": 6 - step / 10} for step in range(1, 11)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + '\n{"step": 11, "lo')
    for step in (5, 10, 15):
        checkpoint(folder / f"checkpoints/step-{step:08d}", step, {"part": b"1234567"})
    (folder / "checkpoints/step-00000015/part").write_bytes(b"1")
    (folder / "checkpoints/.step-00000020.partial").mkdir()
    return folder


def test_check_of_a_sound_file_says_so_in_words_and_in_json(tmp_path: Path, capsys) -> None:
    path = write(tmp_path)
    assert run("check", path) == 0
    assert f"{path}: no problem on 1 rank\n" in capsys.readouterr().out
    assert run("check", path, "--json", "--world", 2) == 0
    assert as_json(capsys)["problems"] == []


def test_check_reports_problems_on_stderr_or_as_one_json_object_and_returns_2(tmp_path: Path, capsys) -> None:
    path = write(tmp_path)
    wrong = ("--training.global_batch_size", 10, "--lr", "1e-3")
    assert run("check", path, "--world", 2, *wrong) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("2 problems\n")
    assert "nearest valid global sizes: 8 or 12" in captured.err
    assert run("check", path, "--world=2", "--json", *wrong) == 2
    problems = as_json(capsys)["problems"]
    assert [set(problem) for problem in problems] == [{"key", "message", "remedy"}] * 2
    assert {problem["key"] for problem in problems} == {"training.global_batch_size", "--lr"}


def test_check_looks_for_named_files_and_plan_does_not(tmp_path: Path, capsys) -> None:
    arguments = (write(tmp_path), "--json", "--data.train", tmp_path / "gone")
    assert run("check", *arguments) == 2
    assert as_json(capsys)["problems"][0]["key"] == "data.train"
    assert run("plan", *arguments) == 0


def test_check_says_that_the_validation_set_is_smaller_than_asked_for(tmp_path: Path, capsys) -> None:
    with IndexedWriter(tmp_path / "c", vocabulary_size=320) as writer:
        writer.add_documents(np.arange(321) % 320, np.array([321]))
        writer.finish()
        writer.publish()
    arguments = (write(tmp_path), "--data.train", tmp_path / "c", "--data.valid", tmp_path / "c")
    assert run("check", *arguments, "--json") == 0
    note = f"training.eval_samples asks {tmp_path / 'c'} for 64 samples; it holds 10"
    assert as_json(capsys)["notes"] == [note]
    assert run("check", *arguments) == 0
    assert f"note: {note}\n" in capsys.readouterr().out
    assert run("check", *arguments, "--json", "--training.eval_samples", 10) == 0
    assert as_json(capsys)["notes"] == []


def test_flags_may_stand_before_the_file(tmp_path: Path, capsys) -> None:
    assert run("plan", "--json", "--training.steps=3", "--world", 1, write(tmp_path)) == 0
    assert as_json(capsys)["steps"] == 3


def test_plan_prints_what_outside_checks_rely_on(tmp_path: Path, capsys) -> None:
    overrides = ("--model.num_layers", 7, "--parallel.pipeline", 2)
    assert run("plan", write(tmp_path), "--world", 4, "--json", *overrides) == 0
    found = as_json(capsys)
    assert [stage["layers"] for stage in found["stages"]] == [4, 3]
    assert [(stage["rank"], stage["chunk"]) for stage in found["stages"]] == [(0, 0), (1, 0)]
    assert found["tokens_per_step"] == 256 and found["steps"] == 20
    assert len(found["learning_rates"]) == 10
    wire = found["wire"]
    assert set(wire["hops"][0]) == {"from", "to", "sources", "partial", "slices", "bytes", "returned", "bytes_back"}
    assert wire["slices_total"] == wire["slices_max"] == sum(hop["slices"] for hop in wire["hops"])
    assert wire["slices_standard"] == 1
    kinds = {"weights", "gradients", "masters", "moments", "average", "activations", "depth_history", "buffers"}
    assert set(found["memory_gib"]) == kinds | {"total"}
    assert found["memory_gib"]["total"] == pytest.approx(sum(found["memory_gib"][kind] for kind in kinds))


def test_a_plan_and_a_check_are_of_so_many_ranks(tmp_path: Path, capsys) -> None:
    path = write(tmp_path)
    assert run("plan", path, "--world", 4, "--json") == 0
    found = as_json(capsys)
    assert (found["grid"]["data"], found["micro_batches"]) == (4, 1)
    assert run("plan", path, "--json") == 0
    assert as_json(capsys)["grid"]["data"] == 1
    assert run("check", path, "--world", 3, "--json") == 2
    assert [problem["key"] for problem in as_json(capsys)["problems"]] == ["training.global_batch_size"]


def test_a_refused_plan_prints_the_same_problems_object(tmp_path: Path, capsys) -> None:
    assert run("plan", write(tmp_path), "--json", "--model.hidden_size", "64k") == 2
    (problem,) = as_json(capsys)["problems"]
    assert problem["key"] == "model.hidden_size"


def test_the_plan_in_words_is_short_and_names_stages_and_wire(tmp_path: Path, capsys) -> None:
    assert run("plan", write(tmp_path), "--parallel.pipeline", 2) == 0
    text = capsys.readouterr().out
    assert "2 (0-1)" in text and "2 (2-3)" in text and "sources 0-2" in text
    lines = text.split("\n")
    assert len(lines) <= 20
    assert max(map(len, lines[1:])) <= 120


@pytest.mark.parametrize(
    "arguments",
    [
        ("chek", "x.toml"),
        ("check",),
        ("check", "a.toml", "b.toml"),
        ("plan", "a.toml", "--world", "zero"),
        ("plan", "a.toml", "--world", "0"),
        ("inspect",),
        ("inspect", "a", "--deep"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_refused_in_words_and_in_json(arguments: tuple[str, ...], capsys) -> None:
    assert run(*arguments) == 2
    assert "command line: " in capsys.readouterr().err
    assert run(*arguments, "--json") == 2
    assert as_json(capsys)["problems"][0]["key"] == "command line"


def test_without_a_command_the_examples_are_shown(capsys) -> None:
    assert run() == 2
    assert "attnres check configs/quickstart.toml" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "plan", "inspect", "report", "ablate"])
def test_help_teaches_by_example(command: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        run(command, "-h")
    assert ended.value.code == 0
    assert capsys.readouterr().out.count(f"\n  attnres {command} ") >= 2


def test_inspect_of_a_checkpoint_says_what_decays(tmp_path: Path, capsys) -> None:
    names = {"layers.0.mlp.norm.weight": False, "layers.1.mlp.norm.weight": False, "embedding.weight": True}
    tensors = {name: TensorRecord((3, 4), "float32", decays) for name, decays in names.items()}
    write_manifest(tmp_path, manifest(tensors=tensors, settings={"optimizer.weight_decay": 0.1}))
    assert run("inspect", tmp_path) == 0
    page = capsys.readouterr().out
    assert "decay 0.1     12 parameters: embedding.weight\n" in page
    assert "no decay      24 parameters: mlp.norm.weight\n" in page


def test_inspect_of_a_run_lists_steps_and_checkpoints(tmp_path: Path, capsys) -> None:
    folder = finished_run(tmp_path / "first")
    assert run("inspect", folder, "--json") == 0
    found = as_json(capsys)
    assert found["kind"] == "run"
    assert [record["step"] for record in found["last_steps"]] == [8, 9, 10]
    assert found["unreadable_metric_lines"] == 1
    assert found["config"]["model"]["num_layers"] == 4
    assert [(c["step"], c["problem"] is None) for c in found["checkpoints"]] == [
        (5, True),
        (10, True),
        (15, False),
    ]
    assert found["unpublished"] == [".step-00000020.partial"]
    assert run("inspect", folder) == 0
    text = capsys.readouterr().out
    assert "step-00000010" in text and "not published: .step-00000020.partial" in text and "damaged: " in text


def test_inspect_merges_what_is_recorded_of_a_step(tmp_path: Path, capsys) -> None:
    """With a look and a checkpoint at every step, the last records hold no loss."""
    records: list[Any] = []
    for step in range(1, 7):
        position = {"step": step, "tokens": 256 * step}
        records += [{**position, "loss/train": 6 - step / 10}, {**position, "depth/entropy/head": 0.5}]
        records += [{**position, "time/checkpoint_seconds": 0.1}]
    records += [{"step": 5, "tokens": 1280, "loss/valid": 4.25}, {"step": 7, "depth/entropy/head": 0.5}, [3], {}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert run("inspect", tmp_path, "--json") == 0
    found = as_json(capsys)
    assert [(r["step"], r["loss/train"]) for r in found["last_steps"]] == [(4, 5.6), (5, 5.5), (6, 5.4)]
    assert found["last_steps"][1]["loss/valid"] == 4.25 and found["unreadable_metric_lines"] == 2
    assert run("inspect", tmp_path) == 0
    assert "5.4" in capsys.readouterr().out


def test_inspect_of_a_checkpoint_counts_parameters_and_bytes(tmp_path: Path, capsys) -> None:
    folder = checkpoint(tmp_path / "step-00000010", 10, {"part": b"1234567"})
    assert run("inspect", folder, "--json") == 0
    found = as_json(capsys)
    assert (found["kind"], found["step"], found["parameters"], found["bytes"]) == ("checkpoint", 10, 17, 7)
    assert run("inspect", folder) == 0
    text = capsys.readouterr().out
    assert "step 10, 80 samples, 2,560 tokens" in text and "17 in 2 tensors" in text and "pipeline 2" in text
    assert "decay" not in text, "an older checkpoint does not say"


def test_a_run_that_has_not_logged_yet_is_shown(tmp_path: Path, capsys) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert run("inspect", tmp_path) == 0
    text = capsys.readouterr().out
    assert "no step logged yet" in text and "no checkpoint yet" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone", "there is no"),
        ("file", "is a file"),
        ("empty", "is neither a run"),
        (".step-00000020.partial", "was never published"),
        ("step-00000030", "was never published"),
        ("step-00000040", "format 9"),
        ("step-00000050", "cannot be read"),
    ],
)
def test_inspect_of_anything_else_is_refused_with_the_absolute_path(
    tmp_path: Path, name: str, words: str, capsys
) -> None:
    (tmp_path / "file").touch()
    for folder in ("empty", ".step-00000020.partial", "step-00000030", "step-00000040", "step-00000050"):
        (tmp_path / folder).mkdir()
    write_sealed(tmp_path / "step-00000040", plain_fields(manifest()) | {"format": 9})
    (tmp_path / "step-00000050/manifest.json").write_text('{"format": 1')
    assert run("inspect", tmp_path / name, "--json") == 2
    (problem,) = as_json(capsys)["problems"]
    assert words in problem["message"]
    assert str(tmp_path / name) in problem["message"] + problem["key"]


def cpu_seconds(*arguments: str | Path) -> tuple[float, subprocess.CompletedProcess[str]]:
    """What a process of its own takes of a processor, and what came of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, ended


def test_check_in_a_process_of_its_own_takes_well_under_two_seconds_of_cpu(tmp_path: Path) -> None:
    """Where some modules of the standard library take a seventh of one; it was 4 times that when this was written."""
    path = write(tmp_path, SMALL.replace("steps = 20", "stepps = 20"))
    library = "import asyncio, decimal, doctest, email.mime.text, http.server, statistics, unittest, xml.dom.minidom"
    reference = min(cpu_seconds("-c", library)[0] for _ in range(2))
    command = ("-m", "attnres_train.cli", "check", path, "--json")
    seconds, ended = min((cpu_seconds(*command) for _ in range(2)), key=lambda run: run[0])
    assert seconds < 10 * reference
    assert (ended.returncode, ended.stderr) == (2, "")
    assert json.loads(ended.stdout)["problems"][0]["remedy"] == "did you mean training.steps?"


def test_neither_check_nor_plan_nor_inspect_imports_torch(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from attnres_train.cli import main\n"
        f"codes = [main(['check', {str(write(tmp_path))!r}]), main(['plan', {str(tmp_path / 'run.toml')!r}]),"
        f" main(['inspect', {str(finished_run(tmp_path / 'first'))!r}])]\n"
        "heavy = {'torch', 'megatron', 'numpy', 'rich', 'tensorboard'} & set(sys.modules)\n"
        "sys.exit(f'{codes} {heavy}' if any(codes) or heavy else 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("module", ["attnres_train.cli", "attnres_train.entry"])
def test_a_reader_that_ends_first_is_no_error(tmp_path: Path, module: str) -> None:
    """As in `attnres ... | head -1`."""
    # Unbuffered, argparse itself would pass over that nobody reads its help.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for arguments in (["plan", str(write(tmp_path))], ["plan", "-h"], []):
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "-m", module, *arguments]
        ended = subprocess.run(
            command, cwd=REPOSITORY, env=buffered, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120
        )
        os.close(writing)
        assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("when", ["import", "run"])
def test_an_interruption_is_one_line(when: str) -> None:
    stopped = "type('Stop', (), {'find_spec': lambda *_: signal.raise_signal(signal.SIGINT)})()"
    setup = {
        "import": f"sys.meta_path.insert(0, {stopped})",
        "run": "import attnres_train.cli.run as cli; cli._answer = lambda _: signal.raise_signal(signal.SIGINT)",
    }[when]
    # Tests that run in the background of a shell inherit that Ctrl-C is ignored.
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"import signal, sys\n{heard}\nfrom attnres_train.entry import main\n{setup}\nsys.exit(main())"
    command = [sys.executable, "-c", program, "plan", "run.toml"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "attnres: interrupted\n")


def test_a_page_of_usage_ends_with_what_was_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    captured = capsys.readouterr()
    assert captured.err.endswith("command line: no command\n    -> name one of these\n")
    for script, words in (("torchrun", "no CONFIG.toml is named"), ("supervise", "no command is named")):
        done = subprocess.run([REPOSITORY / f"launch/{script}.sh"], capture_output=True, text=True)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"refused: {words}")


def test_a_setting_without_its_dashes_is_told_how_to_be_written(tmp_path: Path, capsys: Any) -> None:
    assert run("check", write(tmp_path), "training.steps=30") == 2
    assert "write overrides as --training.steps value" in capsys.readouterr().err


def test_what_is_typed_for_a_training_leads_to_the_launch_script(capsys: Any) -> None:
    assert run("train") == 2
    told = capsys.readouterr().err
    assert "there is no command 'train', but 'check', " in told and "launch/torchrun.sh" in told


def test_inspect_of_a_pair_leads_to_the_tool_for_pairs(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "train.idx").touch()
    assert run("inspect", tmp_path / "train") == 2
    assert f"`python -m data_tools.inspect {tmp_path / 'train'}` shows it" in capsys.readouterr().err
