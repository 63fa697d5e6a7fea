"""Small tokenizer.json files of many kinds."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.unit.tokenizer_models import TEXTS

SPECIAL = ["<|endoftext|>", "<pad>"]
SNIPPETS = [
    *("<|endoftext|>", "<|end", "oftext|>", "<pad>", "<think>", "think>", "a b", "   b>", " b>", "don't", "'s", "'S "),
    *("a'll b", "_a ", "x1 ", "12 3", ". A", "A b", "Ab", "aB", "\u00e9 ", "\u0301", "a\u0301", "\u3000a", "a\u00a0b"),
    *(
        "\t\ta",
        "a\tb",
        "a \n b",
        "\n a",
        "a\r\n\r\nb",
        "./a",
        "-a ",
        "a-",
        "/\n",
        "!?\n\n",
        " !",
        "\x1c",
        "\x85",
        "\u2028",
    ),
]
"""Text where the patterns split each in its own way; vocabularies have pieces of all that they leave together."""


@cache
def _byte_level(pattern: str | None) -> str:
    """A byte-level tokenizer that splits by `pattern`; None is the library's own, that of GPT-2."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern is not None:
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_only])
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    pairs = [first + second for first in SNIPPETS for second in SNIPPETS]
    tokenizer.train_from_iterator([*pairs, *TEXTS], trainer)
    return str(tokenizer.to_str())


def byte_level(pattern: str | None = None, added: tuple[AddedToken, ...] = (), **parts: Any) -> bytes:
    """As `_byte_level`, with tokens added to it and `parts` of the file replaced."""
    tokenizer = Tokenizer.from_str(_byte_level(pattern))
    tokenizer.add_tokens(list(added))
    return json.dumps(json.loads(tokenizer.to_str()) | parts).encode()


def _with_special(tokenizer: Tokenizer, special: list[str]) -> bytes:
    tokenizer.add_special_tokens(special)
    return str(tokenizer.to_str()).encode()


def unigram() -> bytes:
    """As of T5: its end token is also a word of its vocabulary, and the most likely one."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("\u2581", -2.0), *((letter, -4.0) for letter in "abcs</>")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _with_special(tokenizer, ["</s>", "<unk>"])


def word_level(*special: str) -> bytes:
    words = {word: index for index, word in enumerate(["[UNK]", *special, "a", "b", "<", "eod>"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_special(tokenizer, ["[UNK]", *special])


def word_piece() -> bytes:
    pieces = {piece: index for index, piece in enumerate(["[UNK]", "[SEP]", "a", "##b", "[", "]", "SEP"])}
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _with_special(tokenizer, ["[UNK]", "[SEP]"])
