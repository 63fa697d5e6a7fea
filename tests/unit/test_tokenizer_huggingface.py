"""tokenizer.json: the ids of the library, special tokens only where they are meant, files that are none."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from attnres_train.errors import Refused
from attnres_train.tokenizer.byte_level import GPT_2, GPT_4O, LLAMA_3, MISTRAL, QWEN
from attnres_train.tokenizer.huggingface import HuggingFaceTokenizer
from attnres_train.tokenizer.load import load_tokenizer
from tests.unit.huggingface_files import SNIPPETS, byte_level, unigram, word_level, word_piece
from tests.unit.tokenizer_models import ANY_TEXT, DIFFICULT_TEXT

WORDS_OF_ITS_OWN = (AddedToken("<think>"), AddedToken("  "), AddedToken("a b"), AddedToken("b>", lstrip=True))
NFC = {"type": "NFC"}
DIGITS = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}
CUT: dict[str, bytes] = {
    "the library's own split": byte_level(),
    "GPT-2": byte_level(GPT_2),
    "Llama 3": byte_level(LLAMA_3),
    "Qwen": byte_level(QWEN, normalizer=NFC),
    "GPT-4o": byte_level(GPT_4O),
    "Mistral": byte_level(MISTRAL),
    "digits apart": byte_level(pre_tokenizer=DIGITS),
    "with words of its own": byte_level(LLAMA_3, WORDS_OF_ITS_OWN),
}
TEXT = st.lists(st.sampled_from(SNIPPETS) | DIFFICULT_TEXT, max_size=8).map("".join) | ANY_TEXT


@cache
def tokenizer_of(kind: str) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(CUT[kind], kind, "<|endoftext|>")


@cache
def library_of(kind: str) -> Library:
    library = Library.from_str(CUT[kind].decode())
    library.encode_special_tokens = True
    return library


@pytest.mark.parametrize("kind", CUT)
@settings(deadline=None, max_examples=100)
@given(texts=st.lists(TEXT, max_size=3))
@example(texts=["".join(SNIPPETS), "", " ".join(SNIPPETS), "\n"])
def test_the_ids_are_those_of_the_library(kind: str, texts: list[str]) -> None:
    encoded = tokenizer_of(kind).encode_many(texts)
    each = [library_of(kind).encode(text, add_special_tokens=False).ids for text in texts]
    assert (encoded.ids.tolist(), encoded.lengths.tolist()) == (sum(each, []), list(map(len, each)))


@pytest.mark.parametrize("kind", CUT)
@settings(deadline=None, max_examples=50)
@given(text=TEXT)
def test_text_comes_back_and_never_becomes_a_special_token(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text)
    assert not {0, 1} & set(ids)
    if tokenizer.keeps_text:
        assert tokenizer.decode([0, *ids, 1]) == text


def test_what_is_known_of_each() -> None:
    tokenizer = tokenizer_of("Llama 3")
    assert (tokenizer.eod_id, tokenizer.pad_id, tokenizer.unk_id) == (0, None, None)
    assert tokenizer.special_pieces == ("<|endoftext|>", "<pad>")
    assert tokenizer.vocab_size == library_of("Llama 3").get_vocab_size()
    assert all(tokenizer_of(kind)._encode_words is not None for kind in CUT)
    keeping = [kind for kind in CUT if tokenizer_of(kind).keeps_text]
    assert keeping == [kind for kind in CUT if kind not in ("Qwen", "with words of its own")]


def test_words_of_its_own_are_given_for_text_that_spells_them() -> None:
    tokenizer = HuggingFaceTokenizer(byte_level(added=(AddedToken("<think>"), AddedToken("<x>", special=True))))
    assert tokenizer.keeps_text
    think, special = tokenizer.vocab_size - 2, tokenizer.vocab_size - 1
    assert tokenizer.encode("<think>") == [think]
    assert special not in tokenizer.encode("<x>")
    assert tokenizer.decode(tokenizer.encode("so <think>about <x> it")) == "so <think>about <x> it"


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": GPT_2}, "behavior": "Isolated", "invert": False}


MODEL = json.loads(byte_level())["model"]


def stages(*found: dict[str, Any]) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(found)}}


@pytest.mark.parametrize(
    "content, cuts, keeps",
    [
        (byte_level(), True, True),
        (byte_level(normalizer={"type": "NFKC"}), False, False),
        (byte_level(normalizer={"type": "Lowercase"}), False, False),
        (byte_level(normalizer={"type": "Sequence", "normalizers": []}), True, True),
        (byte_level(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}), True, False),
        (byte_level(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFD"}]}), False, False),
        (byte_level(pre_tokenizer=None), False, False),
        (byte_level(pre_tokenizer=BYTES), False, True),
        (byte_level(pre_tokenizer=BYTES | {"add_prefix_space": True, "use_regex": True}), False, False),
        (byte_level(**stages(SPLIT, BYTES)), True, True),
        (byte_level(**stages(SPLIT | {"pattern": {"Regex": "a+"}}, BYTES)), False, True),
        (byte_level(**stages(SPLIT | {"behavior": "Removed"}, BYTES)), False, False),
        (byte_level(**stages(SPLIT | {"invert": True}, BYTES)), False, True),
        (byte_level(**stages({"type": "Whitespace"}, BYTES | {"use_regex": True})), False, False),
        (byte_level(decoder=None), True, False),
        (byte_level(added=(AddedToken("<x>", rstrip=True),)), False, False),
        (byte_level(added=(AddedToken("<x>", lstrip=True),)), True, False),
        (byte_level(added=(AddedToken("x", single_word=True),)), False, True),
        (byte_level(added=(AddedToken("\u00e9"),)), True, False),
        (byte_level(added=(AddedToken("\u00e9", special=True),)), True, True),
        (byte_level(model=MODEL | {"end_of_word_suffix": "</w>"}), False, False),
        (byte_level(model=MODEL | {"vocab": {k: i for k, i in MODEL["vocab"].items() if k != "\u0100"}}), True, False),
        (b'{"version": "1.0", "added_tokens": [], "model": %s}' % json.dumps(MODEL).encode(), False, False),
        (byte_level(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}), True, True),
        (unigram(), False, False),
        (word_piece(), False, False),
    ],
)
def test_what_cannot_be_cut_or_does_not_keep_text_is_known(content: bytes, cuts: bool, keeps: bool) -> None:
    tokenizer = HuggingFaceTokenizer(content)
    assert (tokenizer._encode_words is not None, tokenizer.keeps_text) == (cuts, keeps)
    text = "a  'x' \u00e9<x> b1"
    library = Library.from_str(content.decode())
    library.encode_special_tokens = True
    assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids


def test_special_tokens_that_are_words_of_the_vocabulary_are_not_made_of_text() -> None:
    tokenizer = HuggingFaceTokenizer(unigram(), eod_piece="</s>")
    assert tokenizer.eod_id == 1
    for text in ("</s>", "a</s>b </s></s>", "ab </s>"):
        ids = tokenizer.encode(text)
        assert 1 not in ids
        assert tokenizer.decode([*ids, 1]) == text
    tokenizer = HuggingFaceTokenizer(word_level("<eod>"), eod_piece="<eod>")
    assert tokenizer.encode("a <eod> b x").count(1) == 0
    assert HuggingFaceTokenizer(word_piece(), eod_piece="[SEP]").encode("a[SEP]ab") == [2, 4, 6, 5, 2, 3]


def test_a_special_token_that_text_cannot_avoid_is_refused() -> None:
    tokenizer = HuggingFaceTokenizer(word_level("#"), "t.json", "#")
    assert tokenizer.encode("a b") == [2, 3]
    with pytest.raises(Refused, match="t.json: gives special tokens for text that spells them: #"):
        tokenizer.encode("a # b")


def test_truncation_padding_dropout_and_post_processing_are_left_out() -> None:
    start = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"a": {"id": "a", "ids": [MODEL["vocab"]["a"]], "tokens": ["a"]}},
    }
    changed = byte_level(
        truncation={"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": "<pad>",
        },
        post_processor=start,
        model=json.loads(byte_level())["model"] | {"dropout": 0.9},
    )
    tokenizer = HuggingFaceTokenizer(changed)
    assert tokenizer.pad_id == 1
    assert tokenizer.encode("banana and bands") == tokenizer_of("GPT-2").encode("banana and bands")


def test_the_vocabulary_size_is_above_every_id() -> None:
    gap = json.loads(word_level("<eod>"))
    gap["model"]["vocab"]["z"] = 99
    tokenizer = HuggingFaceTokenizer(json.dumps(gap).encode())
    assert (tokenizer.vocab_size, tokenizer.encode("z"), tokenizer.unk_id) == (100, [99], 0)


def _added(content: str, index: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": True, **flags}


@pytest.mark.parametrize(
    "added, vocabulary, message",
    [
        ([("<x>", 500)], {}, "'<x>' has id 500 in the file and 6 in the library"),
        (
            [("<x>", 7), ("<y>", 6)],
            {},
            "'<x>' has id 7 in the file and 6 in the library; '<y>' has id 6 in the file and 7",
        ),
        ([("a", 9)], {}, "'a' has id 9 in the file and 2 in the library"),
        ([("<x>", 7)], {"z": 7}, "id 7 is that of '<x>' and of 'z'"),
        ([("<x>", 6)], {"z": 2}, "id 2 is that of 'a' and of 'z'"),
    ],
)
def test_ids_that_the_library_does_not_keep_are_refused(
    added: list[tuple[str, int]], vocabulary: dict[str, int], message: str
) -> None:
    stated = json.loads(word_level("<eod>"))
    stated["model"]["vocab"] |= vocabulary
    stated["added_tokens"] += [_added(*token) for token in added]
    with pytest.raises(Refused, match=message):
        HuggingFaceTokenizer(json.dumps(stated).encode(), "t.json")


def test_padding_under_another_id_than_its_token_has_is_refused() -> None:
    padding = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_type_id": 0}
    stated = json.loads(byte_level()) | {"padding": padding | {"pad_id": 0, "pad_token": "<pad>"}}
    with pytest.raises(Refused, match="'<pad>' has id 0 in the file and 1 in the library"):
        HuggingFaceTokenizer(json.dumps(stated).encode())


@pytest.mark.parametrize("ids", [[-1], [5, 5000]])
def test_decoding_ids_outside_the_vocabulary_is_an_error(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        tokenizer_of("GPT-2").decode(ids)


@pytest.mark.parametrize(
    "content, what",
    [
        (b"", "it is empty"),
        (b"{", "damaged or cut short"),
        (b'{"a":' * 100_000, "damaged or cut short"),
        (b"[1]", "it holds a list"),
        (b'{"a": 1, "b": 2}', "only one part of a tokenizer"),
        (b'{"tokenizer_class": "GPT2Tokenizer"}', "tokenizer_config.json"),
        (b'{"model": {}, "keys": 1}', "an object with the keys model, keys"),
        (b'{"version": "1.0", "model": {}, "added_tokens": []}', "does not take"),
        (byte_level(model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[]), "has no vocabulary"),
        (b"\xff\xfe{\x00", "binary data"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_saying_what_it_is(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(Refused, match=f"t.json: .*{what}"):
        load_tokenizer(tmp_path / "t.json")


def test_only_a_special_token_can_end_documents(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(byte_level(added=(AddedToken("<think>"),)))
    assert load_tokenizer(tmp_path / "t.json").eod_id is None
    tokenizer = load_tokenizer(tmp_path / "t.json", "<pad>")
    assert tokenizer.eod_id == 1
    assert tokenizer.fingerprint == hashlib.sha256((tmp_path / "t.json").read_bytes()).hexdigest()
    with pytest.raises(Refused, match=r"'<think>' is no special token.*: <\|endoftext\|>, <pad>\n"):
        load_tokenizer(tmp_path / "t.json", "<think>")
    many = byte_level(added=tuple(AddedToken(f"<{number}>", special=True) for number in range(100)))
    with pytest.raises(Refused, match="<17> and 82 more"):
        HuggingFaceTokenizer(many, eod_piece="absent")
    with pytest.raises(Refused, match="also stands for what is unknown"):
        HuggingFaceTokenizer(word_piece(), eod_piece="[UNK]")


def test_the_library_starts_no_threads(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(unigram())
    code = """if True:
        import os, sys
        from attnres_train.tokenizer.load import load_tokenizer
        tokenizer = load_tokenizer(sys.argv[1])
        before = len(os.listdir("/proc/self/task"))
        tokenizer.encode_many(["a b c"] * 100)
        tokenizer._library.encode_batch_fast(["a b c"] * 100)
        assert len(os.listdir("/proc/self/task")) == before
    """
    subprocess.run([sys.executable, "-c", code, tmp_path / "t.json"], check=True)


def test_a_text_that_the_library_cannot_encode_is_refused() -> None:
    library = Library(models.WordLevel({"a": 0, "b": 1}))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = HuggingFaceTokenizer(library.to_str().encode(), "words.json")
    assert tokenizer.encode("b a") == [1, 0]
    with pytest.raises(Refused, match=r"words\.json: cannot encode a text: WordLevel error: Missing \[UNK\]"):
        tokenizer.encode("a c")
