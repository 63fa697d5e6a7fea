"""`attnres verify`, and how `attnres inspect` shows checkpoints that are damaged."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnres_train.checkpoint.checksum import record_of
from attnres_train.checkpoint.folder import candidates, point_to_latest
from attnres_train.checkpoint.manifest import FILE_NAME, plain_fields, read_manifest
from attnres_train.cli import main
from attnres_train.errors import ExitCode, Refused
from tests.unit.checkpoint_folders import checkpoint, flip, manifest, run_with, write_sealed

ROOT = Path(__file__).resolve().parents[2]
Capture = pytest.CaptureFixture[str]


def answer(capsys: Capture, *arguments: object, expect: int = 0) -> tuple[str, str]:
    """Standard output and standard error of one command that ends with `expect`."""
    assert main([str(argument) for argument in arguments]) == expect
    captured = capsys.readouterr()
    return captured.out, captured.err


def as_json(capsys: Capture, *arguments: object, expect: int = 0) -> dict[str, Any]:
    """The one JSON object on standard output, with nothing on standard error."""
    out, err = answer(capsys, *arguments, "--json", expect=expect)
    assert err == ""
    value = json.loads(out)
    assert isinstance(value, dict)
    return value


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three checkpoints, of which the middle one has a flipped bit and the newest a cut file."""
    checkpoints = run_with(tmp_path / "run", 10, 20, 30)
    flip(checkpoints / "step-00000020/part", 13)
    (checkpoints / "step-00000030/other").write_bytes(b"a")
    return tmp_path / "run"


def test_a_whole_checkpoint_is_said_to_be_whole(tmp_path: Path, capsys: Capture) -> None:
    folder = checkpoint(tmp_path / "step-00000010")
    out, err = answer(capsys, "verify", folder)
    assert out == f"{folder}: whole (2 files, 9.31e-09 GiB)\n" and err == ""
    found = as_json(capsys, "verify", folder)
    entry = {"path": str(folder), "problems": [], "files": 2, "bytes": 10, "strangers": []}
    assert found == {"checkpoints": [entry], "problems": []}


def test_a_whole_run_is_every_one_of_its_checkpoints(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = run_with(tmp_path, 10, 9, 100)
    point_to_latest(checkpoints / "step-00000100")
    (checkpoints / ".step-00000200.partial").mkdir()
    entries = as_json(capsys, "verify", tmp_path)["checkpoints"]
    assert [Path(entry["path"]).name for entry in entries] == ["step-00000009", "step-00000010", "step-00000100"]
    out, _ = answer(capsys, "verify", tmp_path)
    assert out.count(": whole (") == 3 == len(out.splitlines())
    monkeypatch.chdir(tmp_path)
    assert answer(capsys, "verify", ".")[0] == out


def test_damaged_ones_are_refused_with_the_file_and_the_whole_ones_still_told(run: Path, capsys: Capture) -> None:
    out, err = answer(capsys, "verify", run, expect=2)
    assert out.splitlines() == [f"{run}/checkpoints/step-00000010: whole (2 files, 9.31e-09 GiB)"]
    stored = read_manifest(run / "checkpoints/step-00000020").files["part"].crc32
    now = record_of(run / "checkpoints/step-00000020/part").crc32
    assert err.startswith("2 problems\n")
    assert f"{run}/checkpoints/step-00000020: part has checksum {now}, the manifest says {stored}\n" in err
    assert f"{run}/checkpoints/step-00000030: other has 1 bytes, the manifest says 3\n" in err
    assert err.count("-> use another checkpoint of the run") == 2

    found = as_json(capsys, "verify", run, expect=2)
    assert [len(entry["problems"]) for entry in found["checkpoints"]] == [0, 1, 1]
    assert [set(problem) for problem in found["problems"]] == [{"key", "message", "remedy"}] * 2
    assert [Path(problem["key"]).name for problem in found["problems"]] == ["step-00000020", "step-00000030"]
    assert "part has checksum" in found["problems"][0]["message"]


def test_one_damaged_checkpoint_of_a_run_does_not_speak_for_the_others(run: Path, capsys: Capture) -> None:
    answer(capsys, "verify", run / "checkpoints/step-00000010")
    out, err = answer(capsys, "verify", run / "checkpoints/step-00000020", expect=2)
    assert out.strip() == "" and err.startswith("1 problem\n") and "part has checksum" in err
    (entry,) = as_json(capsys, "verify", run / "checkpoints/step-00000030", expect=2)["checkpoints"]
    assert entry["problems"] == ["other has 1 bytes, the manifest says 3"]


def test_every_damaged_file_is_told(tmp_path: Path, capsys: Capture) -> None:
    folder = checkpoint(tmp_path / "step-00000010")
    (folder / "part").unlink()
    flip(folder / "other")
    (entry,) = as_json(capsys, "verify", folder, expect=2)["checkpoints"]
    assert entry["problems"][0] == "part is missing" and entry["problems"][1].startswith("other has checksum")
    assert (entry["files"], entry["bytes"]) == (2, 10)


def test_strangers_are_told_and_are_no_damage(tmp_path: Path, capsys: Capture) -> None:
    folder = checkpoint(tmp_path / "step-00000010")
    (folder / "core.123").touch()
    out, _ = answer(capsys, "verify", folder)
    assert out.splitlines()[1] == "  not part of it: core.123"
    assert as_json(capsys, "verify", folder)["checkpoints"][0]["strangers"] == ["core.123"]


def test_a_checkpoint_without_a_whole_manifest_is_damaged(run: Path, capsys: Capture) -> None:
    (run / "checkpoints/step-00000010" / FILE_NAME).unlink()
    flip(run / "checkpoints/step-00000020" / FILE_NAME, 999)
    (run / "checkpoints/step-00000030" / FILE_NAME).write_bytes(b"")
    for name, told in [
        ("step-00000010", "has no manifest.json"),
        ("step-00000020", "its checksum is not that of its contents"),
        ("step-00000030", "it has no checksum of its own"),
    ]:
        (entry,) = as_json(capsys, "verify", run / "checkpoints" / name, expect=2)["checkpoints"]
        assert told in entry["problems"][0] and entry["path"] == str(run / "checkpoints" / name)
    assert len(as_json(capsys, "verify", run, expect=2)["problems"]) == 3


def test_a_damaged_manifest_is_named_as_the_file_that_is_damaged(tmp_path: Path, capsys: Capture) -> None:
    folder = checkpoint(tmp_path / "step-00000010")
    flip(folder / FILE_NAME, 999)
    _, err = answer(capsys, "verify", folder, expect=2)
    assert FILE_NAME in err


@pytest.mark.parametrize("name", ["gone", "file", "empty", "unsaved", ".step-00000020.partial"])
def test_what_is_neither_a_run_nor_a_checkpoint_is_refused(name: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").touch()
    for folder in ("empty", "unsaved/checkpoints", ".step-00000020.partial"):
        (tmp_path / folder).mkdir(parents=True)
    (problem,) = as_json(capsys, "verify", tmp_path / name, expect=2)["problems"]
    assert problem["message"] == f"{tmp_path / name} is neither a checkpoint nor a run that has one"
    assert "RUN/checkpoints/step-XXXXXXXX" in problem["remedy"]


def test_a_run_may_be_named_like_a_checkpoint(tmp_path: Path, capsys: Capture) -> None:
    run_with(tmp_path / "step-size-1e-3", 10)
    assert len(as_json(capsys, "verify", tmp_path / "step-size-1e-3")["checkpoints"]) == 1


@pytest.mark.parametrize("arguments", [(), ("a", "b"), ("a", "--world", "2"), ("a", "--deep")], ids=str)
def test_a_wrong_command_line_is_refused(arguments: tuple[str, ...], capsys: Capture) -> None:
    assert as_json(capsys, "verify", *arguments, expect=2)["problems"][0]["key"] == "command line"


def test_verify_changes_nothing_and_imports_no_torch(run: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in run.rglob("*")}

    before = state()
    program = (
        "import sys\n"
        "from attnres_train.cli import main\n"
        f"code = main(['verify', {str(run)!r}])\n"
        "heavy = {'torch', 'megatron', 'numpy', 'rich', 'tensorboard'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code != 2 or heavy else 0)\n"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert state() == before


def test_inspect_of_a_run_lists_damaged_checkpoints_with_what_a_glance_finds(run: Path, capsys: Capture) -> None:
    (run / "checkpoints/step-00000010" / FILE_NAME).unlink()
    found = as_json(capsys, "inspect", run)
    assert [(entry["step"], entry["problem"] is None) for entry in found["checkpoints"]] == [
        (10, False),
        (20, True),  # a flipped bit is seen by `verify` alone
        (30, False),
    ]
    assert found["checkpoints"][1]["bytes"] == 10
    assert found["checkpoints"][2]["problem"] == "other has 1 bytes, the manifest says 3"
    out, _ = answer(capsys, "inspect", run)
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip().startswith("step-")}
    assert "damaged: " in rows["step-00000010"] and "has no manifest.json" in rows["step-00000010"]
    assert "damaged: other has 1 bytes" in rows["step-00000030"]
    assert "damaged" not in rows["step-00000020"]


def test_inspect_of_a_damaged_checkpoint_shows_it_with_its_problems(run: Path, capsys: Capture) -> None:
    folder = run / "checkpoints/step-00000030"
    assert as_json(capsys, "inspect", folder)["problems"] == ["other has 1 bytes, the manifest says 3"]
    out, _ = answer(capsys, "inspect", folder)
    assert "step 30, 240 samples" in out and "damaged" in out and "other has 1 bytes" in out
    flip(folder / FILE_NAME, 999)
    (problem,) = as_json(capsys, "inspect", folder, expect=2)["problems"]
    assert problem["key"] == str(folder / FILE_NAME) and "it is damaged" in problem["message"]


def test_inspect_does_not_take_the_hint_for_an_unpublished_checkpoint(tmp_path: Path, capsys: Capture) -> None:
    point_to_latest(run_with(tmp_path, 10) / "step-00000010")
    assert as_json(capsys, "inspect", tmp_path)["unpublished"] == []


@pytest.mark.parametrize("tensor", [{}, {"shape": 3}], ids=str)
def test_inspect_refuses_a_manifest_without_shapes(tensor: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    write_sealed(tmp_path, plain_fields(manifest()) | {"tensors": {"a": tensor}})
    as_json(capsys, "inspect", tmp_path, expect=2)


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_this_user_may_not_list_is_refused_in_words(
    command: str, run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = Path.iterdir

    def guarded(path: Path) -> Iterator[Path]:
        if path.name == "checkpoints":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", guarded)
    assert main([command, str(run)]) == ExitCode.REFUSED
    assert f"{run / 'checkpoints'} cannot be read: Permission denied" in capsys.readouterr().err
    with pytest.raises(Refused, match="checkpoints cannot be read: Permission denied"):
        candidates("auto", run)


def test_inspect_shows_numbers_of_any_length(run: Path, capsys: Capture) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1, "loss/train": ' + "9" * 400 + "}\n")
    assert main(["inspect", str(run)]) == ExitCode.DONE
    assert "inf" in capsys.readouterr().out
