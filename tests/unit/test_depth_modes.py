"""Each mode against its formula, written out with plain tensors in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_train.depth.config import ResidualConfig
from attnres_train.depth.history import History
from attnres_train.depth.layout import DepthLayout
from attnres_train.depth.mix import Norm
from attnres_train.depth.modes.choose import mode_of
from attnres_train.depth.reader import DepthReader
from attnres_train.depth.source import Source

WIDTH, EPS = 12, 1e-5


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rms(x: Tensor) -> Tensor:
    return (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def normed(x: Tensor, gain: Tensor) -> Tensor:
    return x / rms(x) * gain


def reader_of(seed: int = 0, index: int = 3, **section: Any) -> tuple[DepthReader, dict[str, Tensor]]:
    """Reader `index` of a model of 6 sublayers, its parameters moved to random places."""
    residual = ResidualConfig(**section)
    reader = DepthReader(residual, DepthLayout.of(residual, 3), index, WIDTH, EPS).double()
    with torch.no_grad():
        for number, parameter in enumerate(reader.parameters()):
            parameter.add_(draw(*parameter.shape, seed=100 + seed + number))
    return reader, {name: parameter.detach() for name, parameter in reader.named_parameters()}


def full_history(count: int = 4) -> tuple[History, list[Tensor]]:
    values = [draw(5, 2, WIDTH, seed=number) for number in range(count)]
    return History({number: Source.open(value) for number, value in enumerate(values)}, None), values


def attention(values: list[Tensor], scores: list[Tensor]) -> Tensor:
    weights = torch.stack(scores).softmax(0)
    return sum(w.unsqueeze(-1) * v for w, v in zip(weights, values, strict=True))  # type: ignore[return-value]


NORM_GAIN = 1 + draw(WIDTH, seed=77) / 4


def read(reader: DepthReader, history: History) -> Tensor:
    return reader.read(history, Norm(NORM_GAIN, EPS))


@pytest.mark.parametrize("backend", ["reference", "lean", "native"])
def test_full_is_the_published_formula(backend: str) -> None:
    reader, own = reader_of(mode="full", backend=backend)
    history, values = full_history()
    scores = [(v / rms(v) * own["gain"] * own["query"]).sum(-1) for v in values]
    torch.testing.assert_close(read(reader, history), normed(attention(values, scores), NORM_GAIN))


def test_a_window_reads_the_embedding_and_the_last_sources() -> None:
    reader, own = reader_of(mode="full", window=2)
    history, values = full_history()
    seen = [values[0], *values[2:]]
    scores = [(v / rms(v) * own["gain"] * own["query"]).sum(-1) for v in seen]
    torch.testing.assert_close(read(reader, history), normed(attention(seen, scores), NORM_GAIN))


@pytest.mark.parametrize(("rank", "heads"), [(None, 1), (4, 2)])
def test_a_query_from_the_input_is_scaled_dot_product_attention(rank: int | None, heads: int) -> None:
    reader, own = reader_of(mode="full", query="input", key_rank=rank, heads=heads, temperature=0.5)
    history, values = full_history()
    width = rank or WIDTH
    newest = values[-1] / rms(values[-1]) @ own["query_projection"].T
    parts = []
    for head in range(heads):
        columns = slice(head * width // heads, (head + 1) * width // heads)
        mine = slice(head * WIDTH // heads, (head + 1) * WIDTH // heads)
        keys = [(v / rms(v) * own["gain"]) @ own["key_projection"].T for v in values]
        scores = [(newest[..., columns] * k[..., columns]).sum(-1) / math.sqrt(width) / 0.5 for k in keys]
        parts.append(attention([v[..., mine] for v in values], scores))
    torch.testing.assert_close(read(reader, history), normed(torch.cat(parts, -1), NORM_GAIN))


def test_a_look_has_the_mean_weights_of_the_heads() -> None:
    reader, own = reader_of(mode="full", heads=2)
    history, values = full_history()
    half = WIDTH // 2
    seen = []
    for columns in (slice(half), slice(half, WIDTH)):
        scores = [((v / rms(v) * own["gain"] * own["query"])[..., columns]).sum(-1) for v in values]
        seen.append(torch.stack(scores).softmax(0).flatten(1))
    weights = reader.look(history).weights_SN
    assert weights is not None
    torch.testing.assert_close(weights, (seen[0] + seen[1]) / 2)


def test_keys_that_are_projected_start_as_wide_as_they_were() -> None:
    """By the width that each entry is a sum over, whatever the rank; queries and keys decay, gains do not."""
    residual = ResidualConfig(mode="full", query="input", key_rank=4)
    reads = DepthLayout.of(residual, 3).reads(3)
    own = mode_of(residual, EPS).parameters(reads, 64, True)
    assert (own["key_projection"].shape, own["key_projection"].std) == ((4, 64), 1 / 8)
    assert {name: initial.decays for name, initial in own.items()} == {
        "gain": False,
        "query_projection": True,
        "key_projection": True,
    }


def test_sigmoid_weights_do_not_compete() -> None:
    reader, own = reader_of(mode="full", weights="sigmoid", key_norm=False)
    history, values = full_history()
    weights = [(v * own["gain"] * own["query"]).sum(-1, keepdim=True).sigmoid() for v in values]
    expected = sum(w * v for w, v in zip(weights, values, strict=True))
    torch.testing.assert_close(read(reader, history), normed(expected, NORM_GAIN))  # type: ignore[arg-type]


def test_static_weights_are_the_same_for_every_token() -> None:
    reader, own = reader_of(mode="full", weights="static", temperature=0.5)
    history, values = full_history()
    weights = (own["logits"][:, 0] / 0.5).softmax(0)
    expected = sum(w * v for w, v in zip(weights, values, strict=True))
    torch.testing.assert_close(read(reader, history), normed(expected, NORM_GAIN))  # type: ignore[arg-type]


def test_denseformer_starts_as_the_sum_and_is_linear_in_its_coefficients() -> None:
    history, values = full_history()
    residual = ResidualConfig(mode="denseformer")
    fresh = DepthReader(residual, DepthLayout.of(residual, 3), 3, WIDTH, EPS).double()
    torch.testing.assert_close(read(fresh, history), normed(sum(values), NORM_GAIN))  # type: ignore[arg-type]
    reader, own = reader_of(mode="denseformer")
    expected = sum(c * v for c, v in zip(own["coefficients"], values, strict=True))
    torch.testing.assert_close(read(reader, history), normed(expected, NORM_GAIN))  # type: ignore[arg-type]


@pytest.mark.parametrize("gate", ["branch", "highway"])
def test_gates_decide_how_an_output_enters(gate: str) -> None:
    reader, own = reader_of(mode="gated", gate=gate)
    stream, output = draw(5, 2, WIDTH, seed=1), draw(5, 2, WIDTH, seed=2)
    history = History({}, Source.open(stream))
    branch_input = read(reader, history)
    torch.testing.assert_close(branch_input, normed(stream, NORM_GAIN))
    written = reader.write(history, branch_input, output).partial
    share = ((branch_input * own["gate"]).sum(-1, keepdim=True) + own["gate_bias"]).sigmoid()
    expected = (stream if gate == "branch" else (1 - share) * stream) + share * output
    assert written is not None
    torch.testing.assert_close(written.value, expected)


@pytest.mark.parametrize(("gate", "kept", "entering"), [("branch", 1.0, 0.982), ("highway", 0.5, 0.5)])
def test_gates_start_alike_for_every_token(gate: str, kept: float, entering: float) -> None:
    residual = ResidualConfig(mode="gated", gate=gate)
    reader = DepthReader(residual, DepthLayout.of(residual, 3), 0, WIDTH, EPS).double()
    stream, output = draw(5, 2, WIDTH, seed=1), draw(5, 2, WIDTH, seed=2)
    written = reader.write(History({}, Source.open(stream)), draw(5, 2, WIDTH, seed=3), output).partial
    assert written is not None
    torch.testing.assert_close(written.value, kept * stream + entering * output, atol=1e-3, rtol=0)


@pytest.mark.parametrize("heads", [1, 3])
def test_the_entropy_term_changes_gradients_by_its_own_and_outputs_by_nothing(heads: int) -> None:
    """It is the mean over the heads, summed over tokens."""
    weight, history = 0.3, full_history()[0]
    plain, own = reader_of(mode="full", temperature=1.5, heads=heads)
    penalised, _ = reader_of(mode="full", temperature=1.5, heads=heads, entropy_weight=weight)
    values = [source.value for source in history.sources.values()]
    upstream = draw(5, 2, WIDTH, seed=9)
    read(plain, history).backward(upstream)
    out = read(penalised, history)
    assert out.equal(read(plain, history))
    out.backward(upstream)

    query = own["query"].clone().requires_grad_()
    products = torch.stack([v / rms(v) * own["gain"] * query for v in values])
    shares = (products.unflatten(-1, (heads, -1)).sum(-1) / 1.5).softmax(0)
    (expected,) = torch.autograd.grad(weight * -(shares * shares.log()).sum() / heads, query)
    difference = penalised.query.grad - plain.query.grad  # type: ignore[operator, union-attr]
    torch.testing.assert_close(difference, expected)


def test_parameters_stay_fp32_and_the_query_one_dimensional() -> None:
    residual = ResidualConfig(mode="block", block_size=2)
    reader = DepthReader(residual, DepthLayout.of(residual, 3), 6, WIDTH, EPS)
    assert {name: (p.ndim, p.dtype) for name, p in reader.named_parameters()} == {
        "query": (1, torch.float32),
        "gain": (1, torch.float32),
    }
