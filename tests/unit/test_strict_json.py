"""JSON that strict readers take: a value that is not finite still tells itself, and older files are read.

The kind: ludwig-ai/ludwig#4016, bare NaN in files that are called JSON.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from attnres_train.cli import main
from attnres_train.depth.layout import DepthLayout
from attnres_train.observe.depth_look import DepthLook
from attnres_train.observe.record_lines import parse_record, read_curve
from attnres_train.observe.sinks import JsonlSink
from attnres_train.report.run_folder import read_run
from attnres_train.strict_json import as_strict, dumps, loads
from data_tools.split import main as split
from tests.unit.run_folders import look_at, make_run, step_record

VALUES = {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": 1.5, "e": "NaN!", "f": (0.0, math.nan)}
WRITTEN = {"a": "NaN", "b": ["Infinity", {"c": "-Infinity"}], "d": 1.5, "e": "NaN!", "f": [0.0, "NaN"]}


def strictly(text: str | bytes) -> Any:
    """As a reader of another language has it, to whom bare NaN is a syntax error."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def same(one: Any, other: Any) -> bool:
    """Equal, with NaN equal to itself."""
    return repr(one) == repr(other)


def test_what_is_not_finite_is_a_text_and_comes_back_as_a_number() -> None:
    assert strictly(dumps(VALUES)) == WRITTEN
    back = loads(dumps(VALUES))
    assert same(back, {**VALUES, "f": [0.0, math.nan]})
    assert same(loads(dumps(VALUES).encode()), back), "bytes are read as texts are"
    assert same(loads(json.dumps(VALUES)), back), "older files have it bare"
    assert loads('{"a": "a NaN", "b": "nan"}') == {"a": "a NaN", "b": "nan"}


def test_a_line_that_is_strict_stays_as_it_is() -> None:
    for line in (b'{ "text":"a \\u00e9"}', b'{"text": "NaN and Infinity, -Infinity" }', b'{"big": 1e400}'):
        assert as_strict(line) == line
    assert strictly(as_strict('{"text": "Ünder", "x": [NaN, -Infinity], "y": "NaN"}'.encode())) == {
        **{"text": "Ünder", "x": ["NaN", "-Infinity"], "y": "NaN"}
    }
    # All else stays, also what Python would write otherwise or lose: long numbers, keys that come twice, escapes.
    rest = rb'"a": 1e400, "b":0.10000000000000000000001, "b": "\" NaN \\", "c": ' + b"1" * 5000
    assert as_strict(b"{" + rest + b',"x":-Infinity, "y":[NaN,Infinity ]}') == (
        b"{" + rest + b',"x":"-Infinity", "y":["NaN","Infinity" ]}'
    )


def test_records_of_a_run_are_strict_and_resumes_keep_them(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss/train": NaN}\n{"step": 9, "loss/train": 1.0}\n')  # as an older version has it
    sink = JsonlSink(path, 1)
    sink.write(2, {"loss/train": math.nan, "optim/grad_norm": math.inf, "optim/skipped_steps": 1})
    sink.close()
    steps = [parse_record(line) for line in path.read_bytes().splitlines()]
    assert [(record or {})["step"] for record in steps] == [1, 2]
    assert all(math.isnan((record or {})["loss/train"]) for record in steps)
    last = path.read_text().splitlines()[-1]
    assert strictly(last) == {
        **{"step": 2, "loss/train": "NaN", "optim/grad_norm": "Infinity", "optim/skipped_steps": 1}
    }
    steps_of, losses = read_curve(tmp_path, "loss/train")
    assert steps_of == [1, 2] and same(losses, [math.nan, math.nan])


def test_a_look_that_is_not_finite_is_read_back(tmp_path: Path) -> None:
    look = look_at(DepthLayout(8, "block", 2), scale=math.inf)
    sink = JsonlSink(tmp_path / "depth.jsonl", 0)
    sink.write(10, look.record())
    line = (tmp_path / "depth.jsonl").read_bytes()
    strictly(line)
    assert same(DepthLook.of_record(parse_record(line) or {}), look)


@pytest.mark.parametrize("writes", [json.dumps, dumps], ids=["older", "strict"])
def test_report_and_inspect_say_what_diverged(tmp_path: Path, capsys: pytest.CaptureFixture[str], writes: Any) -> None:
    folder = make_run(tmp_path / "run", valid=[(10, 5.0), (20, 4.0)])
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(writes(step_record(21, math.nan)) + "\n")
    run = read_run(folder, "run")
    assert "loss/train: 1 value not finite, left out of its curve" in run.notes
    assert main(["report", str(folder), "--json"]) == 0
    assert strictly(capsys.readouterr().out)["runs"][0]["training_loss"] == "NaN"
    assert main(["inspect", str(folder), "--json"]) == 0
    assert strictly(capsys.readouterr().out)["last_steps"][-1]["loss/train"] == "NaN"
    assert main(["inspect", str(folder)]) == 0
    assert "nan" in capsys.readouterr().out


def test_split_writes_strict_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"row {i}" for i in range(40)]
    columns = {"text": texts, "score": [math.nan] * 40, "raw": pa.array([b"\xff"] * 40)}
    parquet.write_table(pa.table(columns), "rows.parquet")
    line = '{"text": "line %d", "score": NaN}'
    Path("lines.jsonl").write_text("".join(f"{line % i}\n" for i in range(40)))
    files = ["--train", "a.jsonl", "--valid", "b.jsonl", "--valid-fraction", "0.3"]
    assert split(["rows.parquet", "lines.jsonl", "--metadata", "score", "--metadata", "raw", *files]) == 0
    rows = [strictly(line) for name in "ab" for line in Path(f"{name}.jsonl").read_bytes().splitlines()]
    assert len(rows) == 80 and {row["score"] for row in rows} == {"NaN"}
    assert {row["raw"] for row in rows if "raw" in row} == {r"\xff"}
