"""Depth diagnostics: those of any layout are those of one process, and those of one process are plain arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_train.config.run_config import RunConfig
from attnres_train.engine.deepspeed_patches import import_deepspeed
from attnres_train.observe.depth_look import SIZES, DepthLook
from attnres_train.observe.depth_watch import DepthWatch
from attnres_train.parallel.grid import build_grid
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import MICRO_BATCH, MICRO_BATCHES, TOKENS, step_batches, tiny_config
from tests.distributed.training import build_tiny, step_tiny

CASES = ("standard", "full", "block", "gated branch", "denseformer", "block, heads", "full, sigmoid", "full, static")
FEW = ("block", "standard", "denseformer")
HARDEST = {"tensor": 2, "sequence": True, "pipeline": 2, "virtual": 2}


def look_twice(configs: Sequence[RunConfig]) -> list[list[DepthLook]]:
    """Looks at the first and the third of three steps."""
    grid = build_grid(configs[0].parallel, seed=1)
    found = []
    for config in configs:
        parts = build_tiny(config, grid)
        watch, looks = DepthWatch(parts.stages, grid), []
        for step in range(3):
            if step == 1:
                step_tiny(parts, config, grid, step)
                continue
            with watch.looking():
                step_tiny(parts, config, grid, step)
            looks.append(watch.collect())
        found.append(looks)
    return found


@functools.cache
def one_process(cases: tuple[str, ...], **settings: Any) -> list[list[DepthLook]]:
    return run_ranks(look_twice, 1, [tiny_config(case, **settings) for case in cases])[0]


def assert_alike(found: DepthLook, expected: DepthLook, rel: float = 1e-5) -> None:
    assert [reader.name for reader in found.readers] == [reader.name for reader in expected.readers]
    for one, other in zip(found.readers, expected.readers, strict=True):
        for name, value in vars(other).items():
            got = getattr(one, name)
            if isinstance(value, float) or (isinstance(value, tuple) and name == "weights"):
                assert got == pytest.approx(value, rel=rel), f"{one.name}: {name}"
            else:
                assert got == value, f"{one.name}: {name}"


@pytest.mark.parametrize(
    ("ranks", "parallel", "cases"),
    [
        (4, HARDEST, CASES),
        (4, {"tensor": 2, "pipeline": 2}, FEW),
        (2, {"layers_per_stage": (0, 4), "pipeline": 2}, FEW),
        (2, {}, FEW),
        (4, HARDEST | {"recompute": "layer"}, FEW[:1]),
    ],
    ids=["tensor 2 sequence x pipeline 2 x virtual 2", "tensor 2 x pipeline 2", "embedding alone", "data 2", "layer"],
)
def test_every_layout_sees_what_one_process_sees(ranks: int, parallel: dict[str, Any], cases: tuple[str, ...]) -> None:
    configs = [tiny_config(case, **parallel) for case in cases]
    everybody = run_ranks(look_twice, ranks, configs)
    assert all(found == everybody[0] for found in everybody), "every rank gets the same"
    for case, found in zip(cases, everybody[0], strict=True):
        expected = one_process(CASES)[CASES.index(case)]
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
        assert found[0] != found[1]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_under_deepspeed_too(stage: int) -> None:
    import_deepspeed()
    configs = [tiny_config(case, zero={"stage": stage}) for case in FEW]
    for case, found in zip(FEW, run_ranks(look_twice, 2, configs)[0], strict=True):
        expected = one_process(CASES)[CASES.index(case)]
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)


@pytest.mark.parametrize("recompute", ["depth", "block"])
def test_layers_that_are_made_again_are_looked_at_once(recompute: str) -> None:
    found = run_ranks(look_twice, 1, [tiny_config("block", recompute=recompute)])[0][0]
    for one, other in zip(found, one_process(CASES)[CASES.index("block")], strict=True):
        assert_alike(one, other)


def look_by_hand(case: str) -> tuple[DepthLook, dict[str, list[Any]]]:
    """The look of one step, and the same by plain autograd on the outputs of every branch."""
    config = tiny_config(case, backend="reference")
    grid = build_grid(config.parallel, seed=1)
    parts = build_tiny(config, grid)
    watch = DepthWatch(parts.stages, grid)
    with watch.looking():
        step_tiny(parts, config, grid, 0)
    look = watch.collect()
    parts = build_tiny(config, grid)
    return look, by_hand(parts.stages[0], step_batches(0), block=3 if case == "block" else 1)


def by_hand(stage: Any, batches: Sequence[Any], block: int) -> dict[str, list[Any]]:
    readers = [s for layer in stage.layers.values() for s in (layer.attention, layer.mlp)] + [stage.head]
    seen: dict[str, list[list[Tensor]]] = {
        kind: [[] for _ in readers] for kind in ("weights", "input", "output", "partial", "gradient")
    }
    for batch in batches:
        outputs, gradients, embedding = outputs_and_gradients(stage, batch, readers[:-1])
        for index, reader in enumerate(readers):
            whole = index // block
            sources = [embedding] + [sum(outputs[block * n : block * (n + 1)]) for n in range(whole)]
            sources += [sum(outputs[block * whole : index])] if index % block else []
            keys = [s / (s.square().mean(-1, keepdim=True) + reader.norm.eps).sqrt() for s in sources]
            scores = torch.stack([(key * reader.depth.gain) @ reader.depth.query for key in keys])
            weights = scores.softmax(0)
            seen["weights"][index].append(weights.flatten(1))
            seen["input"][index].append(sum(w.unsqueeze(-1) * s for w, s in zip(weights, sources, strict=True)))
            if index < len(outputs):
                seen["output"][index].append(outputs[index])
                seen["partial"][index].append(sum(outputs[block * whole : index + 1]))
                seen["gradient"][index].append(gradients[index])
    weights = [torch.cat(parts, 1).double() for parts in seen.pop("weights")]
    sizes = {f"{kind}_rms": [rms(parts) for parts in lists if parts] for kind, lists in seen.items()}
    return sizes | {
        "weights": [w.mean(1).tolist() for w in weights],
        "entropy": [-(w * w.log()).sum(0).mean().item() for w in weights],
        "query_norm": [reader.depth.query.norm().item() for reader in readers],
    }


def outputs_and_gradients(
    stage: Any, batch: Any, sublayers: Sequence[Any]
) -> tuple[list[Tensor], Sequence[Tensor], Tensor]:
    """What every branch puts out and its gradient, and the embedding."""
    outputs: list[Tensor] = []
    hooks = [s.branch.register_forward_hook(lambda _m, _i, out: outputs.append(out[0])) for s in sublayers]
    losses = stage(batch.tokens_BT, batch.labels_BT)
    for hook in hooks:
        hook.remove()
    gradients = torch.autograd.grad((losses * batch.loss_mask_BT).sum(), outputs)
    return outputs, gradients, stage.embedding(batch.tokens_BT).transpose(0, 1)


def rms(parts: Sequence[Tensor]) -> float:
    return torch.cat([part.flatten() for part in parts]).double().square().mean().sqrt().item()


@pytest.mark.parametrize("case", ["full", "block"])
def test_a_look_is_plain_arithmetic(case: str) -> None:
    look, expected = run_ranks(look_by_hand, 1, case)[0]
    for kind in ("weights", "entropy", "query_norm", *SIZES):
        values = [getattr(reader, kind) for reader in look.readers if getattr(reader, kind) is not None]
        assert len(values) == len(expected[kind])
        for got, wanted in zip(values, expected[kind], strict=True):
            assert got == pytest.approx(wanted, rel=1e-5, abs=1e-12), kind
    assert max(reader.entropy for reader in look.readers) > 0.5
    assert MICRO_BATCHES * MICRO_BATCH * TOKENS == 128, "several micro-batches"


def count_hooks() -> tuple[int, int]:
    """Hooks on all modules: while somebody looks, and afterwards."""
    grid = build_grid(tiny_config("block").parallel, seed=1)
    parts = build_tiny(tiny_config("block"), grid)

    def hooks() -> int:
        modules = [m for stage in parts.stages for m in stage.modules()]
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)

    before = hooks()
    with DepthWatch(parts.stages, grid).looking():
        during = hooks()
    return during - before, hooks() - before


def test_nothing_is_left_when_nobody_looks() -> None:
    (during, afterwards) = run_ranks(count_hooks, 1)[0]
    assert during > 10 and afterwards == 0


def test_standard_shows_sizes_alone() -> None:
    (look, _) = one_process(CASES)[0]
    assert all(
        reader.weights is None and reader.entropy is None and reader.query_norm is None for reader in look.readers
    )
    assert all(math.isfinite(reader.partial_rms) for reader in look.readers[:-1])
    assert look.readers[3].input_rms == pytest.approx(look.readers[2].partial_rms, rel=1e-6), "the stream itself"
