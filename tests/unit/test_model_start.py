"""How weights start: by name, by seed, and as wide as their place asks."""

from __future__ import annotations

from attnres_train.depth.config import ResidualConfig
from attnres_train.model.config import ModelConfig
from attnres_train.model.describe import describe
from attnres_train.model.parameters import draw

MODEL = ModelConfig(
    num_layers=8, hidden_size=64, ffn_hidden_size=96, num_attention_heads=4, pad_vocabulary_to=8, init_std=0.1
)
SPECS = {spec.name: spec for spec in describe(MODEL, ResidualConfig(mode="standard"), 83, 88).all}


def test_outputs_of_branches_start_narrower_by_the_root_of_their_number() -> None:
    """So that the sum of 2 L of them starts as wide as one: GPT-2, and megatron-core's scaled init."""
    outputs = [name for name in SPECS if name.endswith(("linear_proj.weight", "linear_fc2.weight"))]
    inputs = [name for name in SPECS if name.endswith(("linear_qkv.weight", "linear_fc1.weight", "embedding.weight"))]
    assert len(outputs) == 16 and len(inputs) == 17
    assert {round(SPECS[name].std, 12) for name in outputs} == {round(0.1 / (2 * 8) ** 0.5, 12)}
    assert {SPECS[name].std for name in inputs} == {0.1}
    for name in (outputs[0], inputs[0]):
        assert abs(draw(SPECS[name], 1).std().item() / SPECS[name].std - 1) < 0.05


def test_every_seed_and_every_name_has_values_of_its_own() -> None:
    one, two = (SPECS[f"layers.{layer}.mlp.branch.linear_fc1.weight"] for layer in (0, 1))
    assert draw(one, 1).equal(draw(one, 1))
    assert not draw(one, 1).equal(draw(one, 2)) and not draw(one, 1).equal(draw(two, 1))
