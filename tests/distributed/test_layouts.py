"""Every layout trains to the numbers of one process."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnres_train.engine.deepspeed_patches import import_deepspeed
from tests.cases import ATTENTIONS, ISOLATED, PUBLISHED, VARIANTS
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import MICRO_BATCH, MICRO_BATCHES, TOKENS, deepspeed_engine, tiny_config
from tests.distributed.training import Trained, relative_error, train_all

MODES = tuple(PUBLISHED)
STEPS = 5
"""Of which every one clips, and each but the first has moments."""
FEW_STEPS = 3
"""Enough where bits are compared, and where rounding soon decides."""


@dataclass(frozen=True)
class Layout:
    name: str
    ranks: int
    parallel: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def keeps_bits(self) -> bool:
        """Pipelines alone change no sum's order, if the whole prefix travels (see test_transport.py for the cache); a
        tied matrix adds its two gradients up in another order."""
        return (
            "tensor" not in self.parallel and self.ranks == self.parallel.get("pipeline") and not self.model.get("tied")
        )


LAYOUTS = [
    Layout("data 2", 2, {}),
    Layout("tensor 2", 2, {"tensor": 2}),
    Layout("tensor 2 sequence", 2, {"tensor": 2, "sequence": True}),
    Layout("pipeline 2", 2, {"pipeline": 2}),
    Layout("pipeline 2 x virtual 2", 2, {"pipeline": 2, "virtual": 2}),
    Layout("pipeline 4", 4, {"pipeline": 4}),
    Layout("tensor 2 x pipeline 2", 4, {"tensor": 2, "pipeline": 2}),
    Layout(
        "tensor 2 sequence x pipeline 2 x virtual 2",
        4,
        {"tensor": 2, "sequence": True, "pipeline": 2, "virtual": 2},
    ),
    Layout("data 2 x pipeline 2", 4, {"pipeline": 2}),
    Layout("7 layers on 2 stages", 2, {"pipeline": 2}, {"layers": 7}),
    Layout("7 layers on 2 x 2 stages", 2, {"pipeline": 2, "virtual": 2}, {"layers": 7}),
    Layout("stated split, embedding alone", 2, {"pipeline": 2, "layers_per_stage": (0, 4)}),
    Layout("stated split, head alone", 2, {"pipeline": 2, "layers_per_stage": (4, 0)}),
    Layout("tied, pipeline 2", 2, {"pipeline": 2}, {"tied": True}),
    Layout("tied, tensor 2 sequence", 2, {"tensor": 2, "sequence": True}, {"tied": True}),
    Layout("tied, pipeline 2 x virtual 2", 2, {"pipeline": 2, "virtual": 2}, {"tied": True}),
]


ZERO_LAYOUTS = [
    Layout("ZeRO-1, data 2", 2, {"zero": {"stage": 1}}),
    Layout("ZeRO-2, data 2", 2, {"zero": {"stage": 2}}),
    Layout("ZeRO-3, data 2, tied", 2, {"zero": {"stage": 3}}, {"tied": True}),
    Layout("ZeRO-1, tensor 2 x data 2", 4, {"tensor": 2, "zero": {"stage": 1}}),
    Layout("ZeRO-2, tensor 2 sequence x data 2", 4, {"tensor": 2, "sequence": True, "zero": {"stage": 2}}),
    Layout("ZeRO-3, tensor 2 sequence x data 2", 4, {"tensor": 2, "sequence": True, "zero": {"stage": 3}}),
    Layout("ZeRO-1, pipeline 2 x data 2", 4, {"pipeline": 2, "zero": {"stage": 1}}, {"tied": True}),
    Layout("ZeRO-1, pipeline 2 x virtual 2", 2, {"pipeline": 2, "virtual": 2, "zero": {"stage": 1}}, {"tied": True}),
    Layout("ZeRO-1, tensor 2 x pipeline 2", 4, {"tensor": 2, "pipeline": 2, "zero": {"stage": 1}}),
]
MORE_ZERO_LAYOUTS = [
    Layout("ZeRO-1, pipeline 2", 2, {"pipeline": 2, "zero": {"stage": 1}}),
    Layout("ZeRO-2, tensor 2 x data 2", 4, {"tensor": 2, "zero": {"stage": 2}}),
    Layout("ZeRO-3, tensor 2 x data 2, tied", 4, {"tensor": 2, "zero": {"stage": 3}}, {"tied": True}),
    Layout("ZeRO-3, data 4", 4, {"zero": {"stage": 3}}),
    Layout(
        "ZeRO-1, tensor 2 sequence x pipeline 2 x virtual 2",
        4,
        {"tensor": 2, "sequence": True, "pipeline": 2, "virtual": 2, "zero": {"stage": 1}},
    ),
    *(Layout(f"ZeRO-{n} offloaded, data 2", 2, {"zero": {"stage": n, "offload_optimizer": True}}) for n in (1, 2, 3)),
    *(Layout(f"ZeRO-{n}, {r}", 2, {"zero": {"stage": n}, "recompute": r}) for n in (2, 3) for r in ("depth", "block")),
]


KINDS_OF_PARAMETERS = ("gated branch", "denseformer", "full, query from the input, low rank")


@pytest.fixture
def deepspeed() -> None:
    """Imports it once for all ranks, which are forked."""
    import_deepspeed()


@functools.cache
def one_process(
    layers: int, tied: bool, clip: float | None, cases: tuple[str, ...] = MODES, steps: int = STEPS
) -> dict[str, Trained]:
    configs = [tiny_config(case, layers=layers, tied=tied, clip=clip) for case in cases]
    return dict(zip(cases, run_ranks(train_all, 1, configs, steps)[0], strict=True))


def trained(
    layout: Layout, clip: float | None, cases: tuple[str, ...] = MODES, steps: int = STEPS, **settings: Any
) -> dict[str, tuple[Trained, Trained]]:
    """This layout and one process, by case."""
    configs = [tiny_config(case, clip=clip, **layout.model, **layout.parallel, **settings) for case in cases]
    results = run_ranks(train_all, layout.ranks, configs, steps)[0]
    reference = one_process(layout.model.get("layers", 4), layout.model.get("tied", False), clip, cases, steps)
    return {case: (result, reference[case]) for case, result in zip(cases, results, strict=True)}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_layout_trains_to_the_numbers_of_one_process(layout: Layout) -> None:
    assert_equal_to_one_process(trained(layout, clip=0.5))


@pytest.mark.usefixtures("deepspeed")
@pytest.mark.parametrize("layout", ZERO_LAYOUTS, ids=lambda layout: layout.name)
def test_zero_trains_to_the_numbers_of_one_process(layout: Layout) -> None:
    steps = STEPS if layout.parallel["zero"]["stage"] == 1 else FEW_STEPS  # all of them take all steps below
    assert_equal_to_one_process(trained(layout, 0.5, ("block",), steps))


@pytest.mark.slow
@pytest.mark.usefixtures("deepspeed")
@pytest.mark.parametrize("layout", [*ZERO_LAYOUTS, *MORE_ZERO_LAYOUTS], ids=lambda layout: layout.name)
def test_every_kind_of_parameter_trains_under_zero_to_the_numbers_of_one_process(layout: Layout) -> None:
    assert_equal_to_one_process(trained(layout, 0.5, (*PUBLISHED, *KINDS_OF_PARAMETERS)))


(HARDEST,) = [layout for layout in LAYOUTS if layout.name == "tensor 2 sequence x pipeline 2 x virtual 2"]


def test_every_variant_trains_to_the_numbers_of_one_process() -> None:
    assert_equal_to_one_process(trained(HARDEST, 0.5, (*VARIANTS, "full, isolated documents", *ATTENTIONS), steps=2))


@pytest.mark.parametrize("recompute", [pytest.param("depth", marks=pytest.mark.slow), "layer"])
def test_recompute_in_the_hardest_layout_trains_to_the_numbers_of_one_process(recompute: str) -> None:
    assert_equal_to_one_process(trained(HARDEST, 0.5, steps=FEW_STEPS, recompute=recompute))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x != HARDEST], ids=lambda layout: layout.name)
def test_every_variant_trains_to_the_numbers_of_one_process_in_every_layout(layout: Layout) -> None:
    assert_equal_to_one_process(trained(layout, 0.5, (*VARIANTS, *ISOLATED, *ATTENTIONS)))


def assert_equal_to_one_process(trained: dict[str, tuple[Trained, Trained]]) -> None:
    """Losses, norms, every first gradient, final weights; clipping having been active."""
    for mode, (result, reference) in trained.items():
        assert min(reference.grad_norms) > 0.5, "clipping must be active"
        assert result.losses == pytest.approx(reference.losses, rel=1e-5), mode
        assert result.grad_norms == pytest.approx(reference.grad_norms, rel=1e-5), mode
        assert result.first_gradients.keys() == reference.first_gradients.keys()
        got, expected = _measured_together(result.first_gradients), _measured_together(reference.first_gradients)
        for name, gradient in expected.items():
            assert relative_error(got[name], gradient) < 1e-5, f"{mode}: gradient of {name}"
        for name, weight in reference.weights.items():
            assert relative_error(result.weights[name], weight) < 1e-4, f"{mode}: weight {name}"


def _measured_together(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients that may vanish by cancellation or symmetry, as parts of those that do not.

    Single numbers (a gate's bias, a source's coefficient) are one vector of all readers. The first reader has one
    source, and the norm behind undoes whatever it is scaled by: its own are measured with the second reader's.
    """
    kinds = (".gate_bias", ".coefficients", ".logits")
    first, second = "layers.0.attention.depth.", "layers.0.mlp.depth."
    together = {name: gradient.flatten() for name, gradient in gradients.items() if not name.endswith(kinds)}
    for name in [name for name in together if name.startswith(first)]:
        twin = name.replace(first, second)
        together[twin] = torch.cat([together.pop(name), together[twin]])
    for kind in kinds:
        numbers = [gradients[name].flatten() for name in sorted(gradients) if name.endswith(kind)]
        if numbers:
            together[f"all {kind}"] = torch.cat(numbers)
    return together


@pytest.mark.parametrize("layout", [x for x in LAYOUTS if x.keeps_bits], ids=lambda layout: layout.name)
def test_pipelines_keep_every_bit_before_clipping(layout: Layout) -> None:
    for mode, (result, reference) in trained(layout, None, steps=FEW_STEPS, history_cache="off").items():
        assert result.losses == reference.losses, mode
        for name, gradient in reference.first_gradients.items():
            assert result.first_gradients[name].equal(gradient), f"{mode}: gradient of {name}"
        for name, weight in reference.weights.items():
            assert result.weights[name].equal(weight), f"{mode}: weight {name} after {FEW_STEPS} steps"


@pytest.mark.parametrize("layout", [*LAYOUTS[:5], LAYOUTS[-1]], ids=lambda layout: layout.name)
def test_bf16_keeps_fp32_masters_and_follows_one_process(layout: Layout) -> None:
    """Rounding differs where sums are cut; the bound is what bf16's 8 bits leave of a loss near 4."""
    configs = [
        tiny_config(mode, precision="bf16", history_cache="off", **layout.model, **layout.parallel) for mode in MODES
    ]
    results = run_ranks(train_all, layout.ranks, configs, FEW_STEPS)[0]
    for mode, result in zip(MODES, results, strict=True):
        reference = one_process_bf16(layout.model.get("tied", False))[mode]
        assert result.losses == pytest.approx(reference.losses, rel=5e-3), mode
        if layout.keeps_bits:
            assert result.losses[0] == reference.losses[0]
            for name, gradient in reference.first_gradients.items():
                assert result.first_gradients[name].equal(gradient), f"{mode}: gradient of {name}"
        # A master that had been rounded to bf16 would have no bits below the eighth.
        masters = result.weights["layers.0.mlp.branch.linear_fc1.weight"]
        assert not masters.equal(masters.bfloat16().float())


@pytest.mark.usefixtures("deepspeed")
@pytest.mark.parametrize(
    ("zero", "grid"),
    [
        (1, {"pipeline": 2}),
        (2, {}),
        (3, {}),
        pytest.param(1, {}, marks=pytest.mark.slow),
        pytest.param(1, {"tensor": 2, "sequence": True}, marks=pytest.mark.slow),
    ],
)
def test_bf16_under_zero_is_the_other_engines(zero: int, grid: dict[str, Any]) -> None:
    """Fp32 accumulation and fp32 parameters of depth readers included: either in bf16 costs 1e-3 of their gradients."""
    configs = [tiny_config("block", precision="bf16", **grid), tiny_config("block", precision="bf16", **grid)]
    configs[1] = replace(configs[1], engine=deepspeed_engine(zero))
    expected, result = run_ranks(train_all, 2, configs, 2)[0]
    assert result.losses == pytest.approx(expected.losses, rel=1e-4)
    assert result.grad_norms == pytest.approx(expected.grad_norms, rel=1e-4)
    for name, gradient in expected.first_gradients.items():
        assert relative_error(result.first_gradients[name], gradient) < 1e-4, name
    for name, weight in expected.weights.items():
        assert relative_error(result.weights[name], weight) < 1e-4, name


@functools.cache
def one_process_bf16(tied: bool) -> dict[str, Trained]:
    configs = [tiny_config(mode, precision="bf16", tied=tied) for mode in MODES]
    return dict(zip(MODES, run_ranks(train_all, 1, configs, FEW_STEPS)[0], strict=True))


def test_depth_queries_receive_gradients() -> None:
    """The comparison above would pass on zeros: the readers must really read."""
    for mode in ("full", "block"):
        gradients = one_process(4, False, 0.5)[mode].first_gradients
        inert = {name for name, gradient in gradients.items() if gradient.norm() == 0}
        # The first sublayer has one source, whose weight is 1 whatever its query says.
        assert inert == {"layers.0.attention.depth.query", "layers.0.attention.depth.gain"}


def test_bytes_sent_are_the_wire_plans() -> None:
    configs = [tiny_config(mode, pipeline=2, virtual=2, history_cache="off") for mode in MODES]
    for mode, result in zip(MODES, run_ranks(train_all, 2, configs, 2)[0], strict=True):
        # 4 stages of 2 sublayers each; blocks of 3 sublayers for `block`.
        slices = {"standard": 1 + 1 + 1, "full": 3 + 5 + 7, "block": 2 + 3 + 3}[mode]
        slice_bytes = TOKENS * MICRO_BATCH * 32 * 4
        assert result.forward_bytes == [slices * slice_bytes * MICRO_BATCHES] * 2
