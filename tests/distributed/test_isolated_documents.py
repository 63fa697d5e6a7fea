"""A window of several documents computes what each document computes alone, and nothing reaches from one to another."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from attnres_train.model.documents import Documents
from attnres_train.model.megatron import transformer_config
from attnres_train.model.parameters import initialize
from attnres_train.model.stage import StageModel, StageRole
from attnres_train.parallel.grid import build_grid
from tests.cases import PUBLISHED
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import END_OF_DOCUMENT, VOCABULARY, step_batches, tiny_config
from tests.distributed.training import build_tiny

LENGTHS = (7, 1, 12, 5)
"""Of the documents of a window, as inputs: the rest of one, an empty one, a whole one, the start of one."""
BEGINS = (0, 7, 8, 20)
TOKENS = 25
CHANGED = 10
"""A token of the third document."""


class Computed(NamedTuple):
    losses: Tensor
    gradients: dict[str, Tensor]


class Outcome(NamedTuple):
    """Of one residual mode."""

    window: Computed
    alone: Computed
    whole: Computed
    """The window without isolation."""
    changed: dict[int, Tensor]
    """Losses of the window after the token at a place was changed."""
    changed_whole: Tensor
    """The same for place CHANGED, without isolation."""


def documents(lengths: tuple[int, ...]) -> Documents:
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return Documents.of(segments[None])


def window() -> Tensor:
    tokens = torch.randint(1, VOCABULARY, (1, TOKENS + 1), generator=torch.Generator().manual_seed(5))
    tokens[0, list(BEGINS[1:])] = END_OF_DOCUMENT
    return tokens


def build(case: str) -> StageModel:
    """In float64 throughout, the angles of the rotary positions too."""
    config = tiny_config(case)
    groups = build_grid(config.parallel, seed=1).groups
    role = StageRole(stage=0, layers=range(4), first=True, last=True)
    megatron = transformer_config(config.model, dtype=torch.float64)
    stage = StageModel(config.model, config.residual, megatron, groups, role, VOCABULARY, 88).double()
    initialize(stage, seed=1)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            if ".depth." in name:
                parameter.add_(torch.randn(parameter.shape, generator=noise, dtype=parameter.dtype), alpha=0.3)
    stage.rotary.inv_freq = stage.rotary.inv_freq.double()
    return stage


def losses(stage: StageModel, tokens: Tensor, isolated: Documents | None) -> Tensor:
    stage.set_input_tensor([None])
    return stage(tokens[:, :-1], tokens[:, 1:], isolated)[0]


def computed(stage: StageModel, pieces: list[Tensor], isolated: Documents | None) -> Computed:
    """All losses, and the gradients of their sum."""
    stage.zero_grad()
    found = torch.cat([losses(stage, piece, isolated) for piece in pieces])
    found.sum().backward()
    gradients = {name: p.grad.clone() for name, p in stage.named_parameters() if p.grad is not None}
    return Computed(found.detach(), gradients)


def outcome(case: str) -> Outcome:
    stage, tokens, isolated = build(case), window(), documents(LENGTHS)
    pieces = [tokens[:, start : start + length + 1] for start, length in zip(BEGINS, LENGTHS, strict=True)]
    with torch.no_grad():
        changed = {
            place: losses(stage, with_another(tokens, place), isolated)
            for place in range(TOKENS)
            if tokens[0, place] != END_OF_DOCUMENT
        }
        changed_whole = losses(stage, with_another(tokens, CHANGED), None)
    return Outcome(
        computed(stage, [tokens], isolated),
        computed(stage, pieces, None),
        computed(stage, [tokens], None),
        changed,
        changed_whole,
    )


def with_another(tokens: Tensor, place: int) -> Tensor:
    """Another token at `place`, and no end of a document."""
    other = tokens.clone()
    other[0, place] = 1 + other[0, place] % (VOCABULARY - 1)
    return other


def outcomes() -> dict[str, Outcome]:
    from megatron.core import parallel_state

    found = {}
    for case in PUBLISHED:
        found[case] = outcome(case)
        parallel_state.destroy_model_parallel()
    return found


@pytest.fixture(scope="module")
def by_mode() -> dict[str, Outcome]:
    return run_ranks(outcomes, 1)[0]


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_window_computes_what_its_documents_compute_alone(case: str, by_mode: dict[str, Outcome]) -> None:
    window, alone, whole, *_ = by_mode[case]
    assert torch.allclose(window.losses, alone.losses, rtol=1e-12, atol=0)
    assert window.gradients.keys() == alone.gradients.keys()
    for name, gradient in alone.gradients.items():
        assert (window.gradients[name] - gradient).norm() <= 1e-11 * gradient.norm(), name
    # The comparison could fail: without isolation all but the first document are predicted from more.
    difference = (whole.losses / window.losses - 1).abs()
    assert (difference[: LENGTHS[0]] < 1e-12).all() and (difference[LENGTHS[0] :] > 1e-5).all()


@pytest.mark.parametrize("case", PUBLISHED)
def test_no_token_changes_a_bit_of_another_document(case: str, by_mode: dict[str, Outcome]) -> None:
    window, _, whole, changed, changed_whole = by_mode[case]
    assert len(changed) == TOKENS - 3
    for place, losses in changed.items():
        (start, length) = next(one for one in zip(BEGINS, LENGTHS, strict=True) if place < sum(one))
        mine = torch.arange(TOKENS).ge(start) & torch.arange(TOKENS).lt(start + length)
        assert losses[~mine].equal(window.losses[~mine]), place
        assert losses[place] != window.losses[place], "a change matters where it is seen"
    assert (changed_whole[CHANGED:] != whole.losses[CHANGED:]).all()


def loss_sums() -> tuple[float, float, float]:
    """Of a step: through the pipeline; micro-batch by micro-batch through the model; and without isolation."""
    config = tiny_config("block, isolated documents")
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    batches = step_batches(0, isolated=True)
    (chunk,) = parts.engine.chunks
    with torch.no_grad():
        totals = parts.pipeline.run(parts.engine.chunks, batches, forward_only=True).totals
        crossing = [replace(batch, segments_BT=None) for batch in batches]
        totals_crossing = parts.pipeline.run(parts.engine.chunks, crossing, forward_only=True).totals
        expected = 0.0
        for batch in batches:
            isolated = Documents.of(batch.segments_BT)
            chunk.module.set_input_tensor([None])
            expected += (chunk(batch.tokens_BT, batch.labels_BT, isolated) * batch.loss_mask_BT).sum().item()
    return totals.whole.loss, expected, totals_crossing.whole.loss


def test_the_schedule_hands_every_micro_batch_its_documents() -> None:
    through_pipeline, by_hand, crossing = run_ranks(loss_sums, 1)[0]
    assert through_pipeline == pytest.approx(by_hand, rel=1e-6)
    assert crossing != pytest.approx(by_hand, rel=1e-4)
