"""Splitting by document: a pure function of text and seed, both files or neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from data_tools.split import is_for_validation, main

LINES = [json.dumps({"id": i, "text": f"document {i}"}) for i in range(400)]


def split(
    folder: Path, capsys: pytest.CaptureFixture[str], lines: list[str], *arguments: str
) -> tuple[int, dict[str, Any]]:
    (folder / "all.jsonl").write_text("\n".join(lines) + "\n")
    outputs = ["--train", str(folder / "train.jsonl"), "--valid", str(folder / "valid.jsonl")]
    code = main([str(folder / "all.jsonl"), *outputs, "--valid-fraction", "0.1", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def sides(folder: Path) -> tuple[list[str], list[str]]:
    train, valid = ((folder / f"{name}.jsonl").read_text().splitlines() for name in ("train", "valid"))
    return train, valid


def test_every_document_goes_to_one_side_as_it_is_and_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = split(tmp_path, capsys, LINES)
    train, valid = sides(tmp_path)
    assert code == 0
    assert (report["train_documents"], report["valid_documents"]) == (len(train), len(valid))
    assert sorted(train + valid) == sorted(LINES)
    assert train == [line for line in LINES if line in set(train)]
    assert 20 <= len(valid) <= 60


def test_a_document_stays_on_its_side_whatever_is_around_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split(tmp_path, capsys, LINES)
    _, valid = sides(tmp_path)
    split(tmp_path, capsys, LINES[::-2], "--overwrite")
    _, fewer = sides(tmp_path)
    assert set(fewer) == set(valid) & set(LINES[::-2])


def test_seeds_draw_different_documents() -> None:
    drawn = [{i for i in range(400) if is_for_validation(f"document {i}", seed, 0.5)} for seed in (1, 2)]
    assert 60 < len(drawn[0] & drawn[1]) < 140


def test_the_draw_is_pinned_for_all_platforms() -> None:
    assert [i for i in range(40) if is_for_validation(f"document {i}", 1, 0.1)] == [11, 28]


def test_a_second_run_leaves_the_same_files_and_refuses_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split(tmp_path, capsys, LINES)
    before = sides(tmp_path)
    assert split(tmp_path, capsys, LINES)[1]["status"] == "already done"
    code, report = split(tmp_path, capsys, LINES, "--seed", "2")
    assert code == 2 and "already there" in report["problems"][0]["message"]
    (tmp_path / "valid.jsonl").unlink()
    assert split(tmp_path, capsys, LINES)[0] == 2
    assert sides_or_none(tmp_path) == before[0]


def sides_or_none(folder: Path) -> list[str]:
    assert not (folder / "valid.jsonl").exists()
    return (folder / "train.jsonl").read_text().splitlines()


@pytest.mark.parametrize("lines", [LINES[:1], [*LINES, "{"]])
def test_an_empty_side_or_a_bad_record_leaves_neither_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str]
) -> None:
    code, _ = split(tmp_path, capsys, lines)
    assert code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"]


def test_outputs_that_are_the_input_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = split(tmp_path, capsys, LINES, "--train", str(tmp_path / "all.jsonl"), "--overwrite")
    assert code == 2 and "the same file, or one of the inputs" in report["problems"][0]["message"]
    assert (tmp_path / "all.jsonl").read_text().splitlines() == LINES


def test_other_kinds_and_several_files_become_lines_and_bad_records_can_be_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet.write_table(pa.table({"text": [f"row {i}" for i in range(50)], "id": range(50)}), tmp_path / "b.parquet")
    (tmp_path / "c.txt").write_text("one document\n of two lines\n")
    more = [str(tmp_path / "b.parquet"), str(tmp_path / "c.txt")]
    code, report = split(tmp_path, capsys, [*LINES, "{"], *more, "--bad-records", "skip", "--metadata", "id")
    train, valid = sides(tmp_path)
    texts = sorted(json.loads(line)["text"] for line in train + valid)
    rows = [f"row {i}" for i in range(50)]
    assert (code, report["skipped_records"]) == (0, 1)
    assert texts == sorted([f"document {i}" for i in range(400)] + rows + ["one document\n of two lines\n"])
    assert json.dumps({"text": "row 7", "id": 7}) in train + valid


def test_rows_keep_their_columns_and_what_json_has_no_word_for_is_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"text": [f"row {i}" for i in range(9)], "score": [float("nan"), *range(8)], "url": ["\u00fc"] * 9}
    parquet.write_table(pa.table(columns), tmp_path / "b.parquet")
    split(tmp_path, capsys, LINES, str(tmp_path / "b.parquet"))
    train, valid = sides(tmp_path)
    assert '{"text": "row 0", "score": "NaN", "url": "\u00fc"}' in train + valid
    split(tmp_path, capsys, LINES, str(tmp_path / "b.parquet"), "--metadata", "url", "--overwrite")
    train, valid = sides(tmp_path)
    assert '{"text": "row 0", "url": "\u00fc"}' in train + valid


def test_a_key_in_the_name_of_a_folder_is_added_and_one_that_is_nowhere_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lang=de").mkdir()
    lines = [json.dumps({"text": f"Zeile {i}"}) for i in range(40)]
    (tmp_path / "lang=de" / "a.jsonl").write_text(" \n".join(lines))
    arguments = [str(tmp_path / "lang=de"), "--metadata", "lang"]
    code, report = split(tmp_path, capsys, LINES, *arguments)
    train, valid = sides(tmp_path)
    assert code == 0 and report["documents_without"] == [{"key": "lang", "documents": 400}]
    assert {'{"text": "Zeile 7", "lang": "de"}', LINES[3]} < set(train + valid)
    code, report = split(tmp_path, capsys, LINES, *arguments, "--metadata", "ulr", "--overwrite")
    assert code == 2 and report["problems"][0]["message"] == "no document has 'ulr'"


def test_nothing_but_empty_and_blank_is_refused_with_the_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.jsonl.gz").touch()
    code, report = split(tmp_path, capsys, ["", '{"text": " "}'], str(tmp_path / "empty.jsonl.gz"))
    told = "no document with text: 2 blank, 0 bad, files that are empty: 1"
    assert code == 2 and report["problems"][0]["message"] == told


def test_lines_without_text_stay_where_they_hold_other_keys_and_empty_ones_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [*LINES, '{"text": "", "id": 7}', "", '{"text": " \\n"}']
    code, report = split(tmp_path, capsys, lines)
    train, valid = sides(tmp_path)
    assert code == 0
    assert '{"text": "", "id": 7}' in train + valid and "" not in train + valid
    assert report["train_documents"] + report["valid_documents"] == len(train) + len(valid)
    assert report["blank_documents"] == len(lines) - len(LINES)
