"""What each token of a text read over depth, as numbers and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnres_train.errors import refuse
from attnres_train.tokenizer.protocol import Tokenizer

if TYPE_CHECKING:
    from attnres_train.exchange.huggingface.modeling_attnres import AttnResForCausalLM

_MOST_LABELS = 80
_TITLES = ("the embedding", "the newest source", "how evenly: entropy over that of equal weights")


def depth_weights(model: AttnResForCausalLM, ids: Sequence[int]) -> list[Tensor]:
    """Of each sublayer and the head, `[T, S]`: the weight of every source for every token, a mean over heads.

    Raises Refused for a model that weighs no sources.
    """
    with torch.no_grad():
        found = model(torch.tensor([list(ids)], device=model.lm_head.weight.device), output_depth_weights=True)
    if not found.depth_weights:
        mode = model.config.residual["mode"]
        raise refuse("--picture", f'residual.mode = "{mode}" weighs no sources', "leave it out")
    return [weights[0].mean(0).float().cpu() for weights in found.depth_weights]


def summaries(weights: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """`[readers, T]` each: weight of the embedding, of the newest source, and the entropy over its greatest. Pure."""
    first = torch.stack([each[:, 0] for each in weights])
    newest = torch.stack([each[:, -1] for each in weights])
    shares = [each / each.sum(-1, keepdim=True) for each in weights]
    evenness = [torch.special.entr(s).sum(-1) / torch.tensor(float(max(2, s.shape[-1]))).log() for s in shares]
    return first, newest, torch.stack(evenness)


def draw(weights: Sequence[Tensor], ids: Sequence[int], tokenizer: Tokenizer, target: Path) -> None:
    """One row a reader (the head is the last), one column a token. Raises OSError."""
    from matplotlib.figure import Figure

    width = min(24.0, 3.0 + 0.16 * len(ids))
    height = min(24.0, 3 * (1.2 + 0.11 * len(weights)))
    figure = Figure(figsize=(width, height), layout="constrained")
    for axes, values, title in zip(figure.subplots(3, 1, sharex=True), summaries(weights), _TITLES, strict=True):
        cells = axes.imshow(values.numpy(), aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_ylabel("sublayer")
        figure.colorbar(cells, ax=axes)
    labels = [repr(tokenizer.decode([token]))[1:-1] for token in ids]
    every = max(1, len(ids) // _MOST_LABELS)
    places = range(0, len(ids), every)
    axes.set_xticks(list(places), [_plain(labels[place]) for place in places], rotation=90, fontsize=6)
    figure.savefig(target, dpi=110)


def as_json(weights: Sequence[Tensor]) -> list[Any]:
    """`[readers][tokens][sources]`, rounded to what a picture needs."""
    return [[[round(weight, 5) for weight in token] for token in each.tolist()] for each in weights]


def _plain(text: str) -> str:
    """matplotlib reads `$` as the beginning of a formula."""
    return text.replace("$", r"\$")
