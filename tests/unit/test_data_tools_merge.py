"""Pairs joined to one: parts to what one run makes, others in the order given, and what does not belong together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnres_train.data.indexed import IndexedReader
from attnres_train.data.indexed_writer import IndexedWriter
from attnres_train.data.manifest import read_manifest
from attnres_train.tokenizer.training import TrainingOptions, train_model
from data_tools.merge import main as merge
from data_tools.preprocess import main as preprocess

TEXTS = [f"Document {i} of several {i * i}.\n" for i in range(60)]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the current one, with a tokenizer and two inputs that make many shards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("data_tools.pieces.SMALLEST_SHARD_BYTES", 300)
    Path("m.model").write_bytes(train_model(TEXTS * 20, TrainingOptions(vocab_size=300)))
    for name, texts in (("a.jsonl", TEXTS[:40]), ("b.jsonl", TEXTS[40:])):
        Path(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tmp_path


def make(output: str, *arguments: str, inputs: tuple[str, ...] = ("a.jsonl", "b.jsonl")) -> None:
    arguments = (*inputs, "--tokenizer", "m.model", "--output", output, "--workers", "1", *arguments)
    assert preprocess(list(arguments)) == 0


def documents(prefix: str) -> list[list[int]]:
    reader = IndexedReader(prefix)
    return [reader.document(i).tolist() for i in range(reader.num_documents)]


@pytest.mark.parametrize("of", [1, 2, 5])
def test_parts_in_any_order_become_what_one_run_makes(corpus: Path, of: int) -> None:
    make("whole")
    for number in range(of, 0, -1):
        make("c", "--part", f"{number}/{of}")
    prefixes = sorted((path.name for path in corpus.glob("c.part-*.idx")), reverse=True)
    assert len(prefixes) == of
    assert merge([*prefixes, "--output", "joined"]) == 0
    for ending in (".bin", ".idx", ".json"):
        assert Path(f"joined{ending}").read_bytes() == Path(f"whole{ending}").read_bytes()
    manifest = read_manifest("joined")
    assert manifest is not None and all(source.sha256 for source in manifest.sources)


def test_other_pairs_are_joined_in_the_order_given_with_their_accounts(corpus: Path) -> None:
    make("b", inputs=("b.jsonl",))
    make("a", "--bad-records", "skip", inputs=("a.jsonl",))
    assert merge(["b", "a", "--output", "joined"]) == 0
    assert documents("joined") == documents("b") + documents("a")
    manifest = read_manifest("joined")
    assert manifest is not None
    assert [source.path for source in manifest.sources] == ["b.jsonl", "a.jsonl"]
    assert (manifest.documents, manifest.text_bytes) == (60, sum(map(len, TEXTS)))
    assert manifest.options == {"merged_pairs": 2, "metadata": []}


def test_pairs_of_other_tools_are_joined_among_each_other(corpus: Path) -> None:
    for name, tokens in (("x", [1, 2, 3]), ("y", [70_000])):
        with IndexedWriter(name, 100_000) as writer:
            writer.add_documents(np.array(tokens), np.array([len(tokens)]))
            writer.finish()
            writer.publish()
    assert merge(["x", "y", "--output", "z"]) == 0
    assert documents("z") == [[1, 2, 3], [70_000]]
    assert read_manifest("z") is None


def problems(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert merge([*arguments, "--output", "joined", "--json"]) == 2
    assert not list(Path().glob("joined*"))
    return str(json.loads(capsys.readouterr().out)["problems"])


def test_what_does_not_belong_together_is_refused(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("a", inputs=("a.jsonl",))
    make("no_eod", "--no-eod", inputs=("a.jsonl",))
    assert "end-of-document id" in problems(capsys, "a", "no_eod")
    assert "is given twice" in problems(capsys, "a", "a")
    assert "no such pair" in problems(capsys, "a", "absent")
    for number in (1, 2, 3):
        make("c", "--part", f"{number}/3")
    assert "parts 1, 3 of 3, missing: 2" in problems(capsys, "c.part-1-of-3", "c.part-3-of-3")
    make("d", "--part", "2/3", inputs=("b.jsonl", "a.jsonl"))
    assert "plan of the parts" in problems(capsys, "c.part-1-of-3", "d.part-2-of-3", "c.part-3-of-3")
    Path("m.model").write_bytes(train_model(TEXTS, TrainingOptions(vocab_size=301)))
    make("other", inputs=("b.jsonl",))
    assert "tokenizer" in problems(capsys, "a", "other")
    Path("a.json").unlink()
    assert "manifest none" in problems(capsys, "other", "a")


def test_parts_of_copies_that_differ_where_a_line_runs_on_are_refused(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"text": f"{i} " + "word " * (40 + 3 * i)}) for i in range(8)]
    content = "\n".join(lines) + "\n"
    Path("a.jsonl").write_text(content)
    pieces = -(-len(content) // 300)
    edge = len(content) * (2 * pieces // 3) // pieces
    for number in (1, 2, 3):
        if number == 2:
            rest = content.index("word", edge)  # of the line that begins in the second part and ends in the third
            assert "\n" not in content[edge:rest]
            Path("a.jsonl").write_text(content[:rest] + "ward" + content[rest + 4 :])
        make("c", "--part", f"{number}/3", inputs=("a.jsonl",))
        Path("a.jsonl").write_text(content)
    prefixes = [f"c.part-{number}-of-3" for number in (1, 2, 3)]
    assert "has read another a.jsonl" in problems(capsys, *prefixes)
    make("c", "--part", "2/3", "--overwrite", inputs=("a.jsonl",))
    assert merge([*prefixes, "--output", "joined"]) == 0


def test_a_changed_byte_is_found_while_it_is_copied(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("a", inputs=("a.jsonl",))
    make("b", inputs=("b.jsonl",))
    data = bytearray(Path("b.bin").read_bytes())
    data[5] ^= 1
    Path("b.bin").write_bytes(data)
    assert "has SHA-256" in problems(capsys, "a", "b")
