"""Texts that go on with prompts, token by token, several at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnres_train.evaluate.sampling import Sampling, next_token
from attnres_train.tokenizer.protocol import Tokenizer

if TYPE_CHECKING:
    from attnres_train.exchange.huggingface.modeling_attnres import AttnResForCausalLM

UNFINISHED = "\ufffd"
"""What a decoder gives for bytes that are no character yet."""


@dataclass
class Text:
    """One text on its way. `ids` are the prompt's, then the new ones."""

    prompt: str
    ids: list[int]
    prompt_tokens: int
    generator: torch.Generator
    ended: str | None = None
    """Why nothing follows: `end of document`, `stop`, `max tokens`."""
    told: str = field(default="", repr=False)
    """Of the new text, what was given away already."""

    @property
    def new_ids(self) -> list[int]:
        return self.ids[self.prompt_tokens :]


@dataclass(frozen=True)
class Asked:
    sampling: Sampling
    max_tokens: int
    seed: int
    stop: Sequence[str] = ()
    samples: int = 1
    """Texts for each prompt."""


def texts_of(prompts: Sequence[str], tokenizer: Tokenizer, asked: Asked) -> list[Text]:
    """What is to be gone on with. Each draws from a stream of its own, by seed and sample: what is beside it in the
    batch does not matter.

    A prompt without tokens begins behind the end of a document. Raises ValueError where there is no such token.
    """
    texts = []
    for prompt in prompts:
        ids = tokenizer.encode(prompt) or ([] if tokenizer.eod_id is None else [tokenizer.eod_id])
        if not ids:
            raise ValueError("an empty prompt needs a tokenizer with an end of documents")
        for sample in range(asked.samples):
            generator = torch.Generator().manual_seed((asked.seed << 20) + sample)
            texts.append(Text(prompt, list(ids), len(ids), generator))
    return texts


def generate(
    model: AttnResForCausalLM, tokenizer: Tokenizer, texts: Sequence[Text], asked: Asked
) -> Iterator[tuple[int, str]]:
    """Go on with all `texts` until each has ended; yields the number of a text and what follows in it, as whole
    characters."""
    from attnres_train.exchange.huggingface.modeling_attnres import CACHE

    device = model.lm_head.weight.device
    cache: Any = None
    ids_BT, mask_BT = _padded(texts)
    positions_BT = (mask_BT.cumsum(1) - 1).clamp_min(0)
    while True:
        with torch.no_grad():
            inputs = {"attention_mask": mask_BT.to(device), "position_ids": positions_BT.to(device)}
            out = model(ids_BT.to(device), cache=cache, use_cache=True, logits_to_keep=1, **inputs)
        cache = out[CACHE]
        tokens = []
        for number, text in enumerate(texts):
            tokens.append(0)
            if text.ended is None:
                tokens[-1] = next_token(out.logits[number, -1], text.ids, asked.sampling, text.generator)
                if piece := _take(text, tokens[-1], tokenizer, asked):
                    yield number, piece
        if all(text.ended is not None for text in texts):
            return
        ids_BT = torch.tensor(tokens)[:, None]
        positions_BT = positions_BT[:, -1:] + 1
        mask_BT = torch.cat((mask_BT, torch.ones(len(texts), 1, dtype=torch.long)), 1)


def new_text(text: Text, tokenizer: Tokenizer) -> str:
    """What was added, whole."""
    return _behind(text, tokenizer)


def _padded(texts: Sequence[Text]) -> tuple[Tensor, Tensor]:
    """Prompts of one length, padded on the left, and which tokens are real."""
    longest = max(len(text.ids) for text in texts)
    rows = [[0] * (longest - len(text.ids)) + text.ids for text in texts]
    real = [[0] * (longest - len(text.ids)) + [1] * len(text.ids) for text in texts]
    return torch.tensor(rows), torch.tensor(real)


def _take(text: Text, token: int, tokenizer: Tokenizer, asked: Asked) -> str:
    """Add a token; what can be told of the text now."""
    if token == tokenizer.eod_id:
        text.ended = "end of document"
    else:
        text.ids.append(token)
        if len(text.new_ids) >= asked.max_tokens:
            text.ended = "max tokens"
    whole = _behind(text, tokenizer)
    found = [place for stop in asked.stop if (place := whole.find(stop)) >= 0]
    if found:
        text.ended, whole = "stop", whole[: min(found)]
    elif text.ended is None:
        whole = _settled(whole, asked.stop)
    piece = whole.removeprefix(text.told)
    text.told = whole
    return piece


def _settled(whole: str, stops: Sequence[str]) -> str:
    """`whole` without an end that the next token may change: bytes that are no character yet, the beginning of a
    stop."""
    whole = whole.rstrip(UNFINISHED)
    held = max((n for stop in stops for n in range(1, len(stop)) if whole.endswith(stop[:n])), default=0)
    return whole[: len(whole) - held]


def _behind(text: Text, tokenizer: Tokenizer) -> str:
    """The text behind the prompt: of both decoded together, since a first piece alone may lose its space."""
    prompt = tokenizer.decode(text.ids[: text.prompt_tokens])
    return tokenizer.decode(text.ids).removeprefix(prompt)
