"""An exported tokenizer gives the ids and the text of the one in training."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnres_train.errors import Refused
from attnres_train.exchange.hf_tokenizer import tokenizer_files
from attnres_train.tokenizer.load import load_tokenizer
from attnres_train.tokenizer.training import TrainingOptions, train_model

transformers = pytest.importorskip("transformers", reason="the test extra installs transformers")

TEXT = (
    "The people of the United States. Größe, été, 日本語 and  two spaces;\n\n\ttabs 1234567890 don't aaaa aaa.\n" * 20
)


@lru_cache(maxsize=4)
def both(folder: Path, kind: str) -> tuple[Any, Any]:
    """Ours, and AutoTokenizer's of what is exported."""
    made = folder / kind
    made.mkdir()
    path = made / "its.model"
    path.write_bytes(train_model([TEXT], TrainingOptions(vocab_size=400, model_type=kind)))  # type: ignore[arg-type]
    files = tokenizer_files(path, None, None, 128)
    for name, content in files.json_files.items():
        (made / name).write_text(json.dumps(content), encoding="utf-8")
    return load_tokenizer(path), transformers.AutoTokenizer.from_pretrained(made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


def held(folder: Path, kind: str, text: str) -> None:
    ours, theirs = both(folder, kind)
    ids = ours.encode(text)
    assert theirs(text)["input_ids"] == ids
    assert theirs.decode(ids) == ours.decode(ids)


SPECIAL = [
    "<unk>",
    "</s>",
    "<pad>",
    "a</s>b <pad>",
    "  leading",
    "\n\n",
    "\u2581x",
    "\x00\x07",
    "<0x0A>",
    "",
    " ",
    "🙂é",
]


@pytest.mark.parametrize("text", [*SPECIAL, TEXT])
def test_ids_and_text_are_those_of_training(folder: Path, text: str) -> None:
    held(folder, "bpe", text)


@given(
    st.text(alphabet=st.one_of(st.sampled_from("The peoplaf Stdn\n 12é日"), st.characters(exclude_categories=["Cs"])))
)
@example("aaaaaaa")
@settings(max_examples=300, deadline=None)
def test_ids_and_text_are_those_of_training_for_any_text(folder: Path, text: str) -> None:
    held(folder, "bpe", text)


def test_special_pieces_are_named(folder: Path) -> None:
    ours, theirs = both(folder, "bpe")
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.unk_token_id) == (ours.eod_id, ours.pad_id, ours.unk_id)
    assert len(theirs) == ours.vocab_size and theirs.model_max_length == 128
    assert theirs.decode([ours.eod_id, *ours.encode("The")], skip_special_tokens=True) == "The"


def test_another_tokenizer_is_refused(folder: Path) -> None:
    both(folder, "bpe")
    with pytest.raises(Refused, match="was trained with other"):
        tokenizer_files(folder / "bpe" / "its.model", "other", None, 128)
