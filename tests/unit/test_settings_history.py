"""Which settings were used from which step to which, and where that is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnres_train.cli import main
from attnres_train.observe.event_file import EventFile
from attnres_train.observe.settings_history import FILE_NAME, keep_history, read_history
from attnres_train.report.write import report
from tests.unit.run_folders import make_run

MEGATRON = {"engine.kind": "megatron", "parallel.layers_per_stage": (2, 2)}
DEEPSPEED = {**MEGATRON, "engine.kind": "deepspeed"}


def told(folder: Path) -> list[tuple[str, str]]:
    return [(used.steps, str(used)) for used in read_history(folder)]


def test_a_line_is_written_only_where_settings_change(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    assert keep_history(tmp_path, 0, 2, MEGATRON) == "the first that are known; ranks 2"
    assert keep_history(tmp_path, 80, 2, MEGATRON) is None
    assert keep_history(tmp_path, 80, 1, DEEPSPEED) == 'ranks 1 (was 2), engine.kind "deepspeed" (was "megatron")'
    assert keep_history(tmp_path, 100, 1, {**DEEPSPEED, "a.new": None}) is None, "none is what is not there"
    assert told(tmp_path) == [
        ("1 to 80", "the first that are known; ranks 2"),
        ("from 81", 'ranks 1 (was 2), engine.kind "deepspeed" (was "megatron")'),
    ]
    lines = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert lines[1] == {"step": 81, "settings": {"ranks": 1, **json.loads(json.dumps(DEEPSPEED))}}


def test_a_resume_takes_back_the_settings_of_steps_it_trains_anew(tmp_path: Path) -> None:
    keep_history(tmp_path, 0, 2, MEGATRON)
    keep_history(tmp_path, 80, 1, DEEPSPEED)
    assert keep_history(tmp_path, 80, 2, MEGATRON) is None, "killed before a save, and begun anew as before"
    assert told(tmp_path) == [("from 1", "the first that are known; ranks 2")]
    keep_history(tmp_path, 80, 1, DEEPSPEED)
    keep_history(tmp_path, 40, 4, MEGATRON)
    assert told(tmp_path)[-1] == ("from 41", "ranks 4 (was 2)")
    assert len(told(tmp_path)) == 2


@pytest.mark.parametrize("junk", [b"{", b"\xff\n", b'{"step": 7}\n', b'{"step": 7, "settings": 3}\n', b"[]\n\n"])
def test_lines_that_cannot_be_read_are_passed_over(junk: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(junk)
    assert told(tmp_path) == []
    keep_history(tmp_path, 0, 2, MEGATRON)
    with open(tmp_path / FILE_NAME, "ab") as file:
        file.write(junk)
    assert told(tmp_path) == [("from 1", "the first that are known; ranks 2")]


def test_a_disk_that_cannot_be_written_keeps_no_run_from_training(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    assert keep_history(tmp_path, 0, 2, MEGATRON) is None


def test_inspect_report_and_tensorboard_show_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    keep_history(run, 0, 2, MEGATRON)
    words = keep_history(run, 10, 1, DEEPSPEED)
    assert words is not None and main(["inspect", str(run)]) == 0
    assert f"  from 11  {words}\n" in capsys.readouterr().out
    main(["inspect", str(run), "--json"])
    last = json.loads(capsys.readouterr().out)["settings"][-1]
    assert (last["first"], last["last"]) == (11, None)
    assert last["changed"] == {"ranks": [2, 1], "engine.kind": ["megatron", "deepspeed"]}
    page = report([run], tmp_path / "report").page.read_text()
    assert "1 to 10" in page and "engine.kind &quot;deepspeed&quot;" in page
    events = EventFile(run / "tensorboard", 10)
    events.text(11, "settings", words)
    events.close()
    read = EventAccumulator(str(run / "tensorboard"))
    read.Reload()
    (event,) = read.Tensors("settings")
    assert event.step == 11 and event.tensor_proto.string_val[0].decode() == words
    assert read.SummaryMetadata("settings").plugin_data.plugin_name == "text"
