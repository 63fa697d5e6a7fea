"""What a configuration amounts to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.config.check import check
from attnres_train.config.load import load, load_checked
from attnres_train.config.run_config import RunConfig
from attnres_train.depth.config import ResidualConfig
from attnres_train.model.config import ModelConfig
from attnres_train.parallel.config import ParallelConfig
from attnres_train.plan import as_json, bubble_fraction, plan
from attnres_train.plan.text import plan_text
from attnres_train.tokenizer.config import TokenizerConfig
from attnres_train.trainer.config import TrainingConfig
from tests.unit.config_files import flags, small, write

PUBLISHED = Path(__file__).parents[2] / "configs/published"


@st.composite
def sound_configs(draw: st.DrawFn) -> RunConfig:
    """Small configurations without a problem, over modes, ties, splits and grids."""
    pipeline, tensor = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 4]))
    virtual = draw(st.integers(1, 3)) if pipeline > 1 else 1
    mode = draw(st.sampled_from(["standard", "full", "block"]))
    config = RunConfig(
        model=ModelConfig(
            num_layers=draw(st.integers(pipeline * virtual, 30)),
            hidden_size=32,
            ffn_hidden_size=draw(st.sampled_from([48, 64])),
            num_attention_heads=8,
            num_query_groups=draw(st.sampled_from([None, 4])),
            tie_embeddings=draw(st.booleans()),
            qk_norm=draw(st.booleans()),
            pad_vocabulary_to=8,
        ),
        residual=ResidualConfig(mode=mode, block_size=draw(st.integers(1, 9)) if mode == "block" else None),
        tokenizer=TokenizerConfig(vocab_size=draw(st.integers(1, 700))),
        training=TrainingConfig(
            global_batch_size=2 * pipeline * draw(st.integers(1, 5)),
            micro_batch_size=2,
            sequence_length=16,
            steps=draw(st.integers(1, 30)),
        ),
        parallel=ParallelConfig(tensor=tensor, pipeline=pipeline, virtual=virtual, sequence=tensor > 1),
    )
    assert check(config, None) == []
    return config


def real_parameters(config: RunConfig, padded: int) -> int:
    """The parameters of the model written out, tensor by tensor."""
    model = config.model
    width, key_value = model.hidden_size, model.query_groups * model.head_size
    depth = [] if config.residual.mode == "standard" else [(width,), (width,)]
    head_norms = [(model.head_size,), (model.head_size,)] if model.qk_norm else []
    attention = [(width + 2 * key_value, width), (width, width), *head_norms]
    mlp = [(2 * model.ffn_hidden_size, width), (width, model.ffn_hidden_size)]
    layer = [*attention, (width,), *depth, *mlp, (width,), *depth]
    head = [(width,), *depth, *([] if model.tie_embeddings else [(padded, width)])]
    tensors = [(padded, width), *layer * model.num_layers, *head]
    return sum(rows * (rest[0] if rest else 1) for rows, *rest in tensors)


@settings(deadline=None)
@given(sound_configs())
def test_the_parameter_count_is_that_of_the_model_and_the_sum_over_stages(config: RunConfig) -> None:
    found = plan(config)
    assert found.parameters_total == real_parameters(config, found.setup.padded_vocabulary)
    assert found.parameters_total == sum(stage.parameters for stage in found.stages)


@settings(deadline=None)
@given(sound_configs())
def test_ranks_hold_every_parameter_with_copies_of_what_is_whole_on_each(config: RunConfig) -> None:
    found, model, tensor = plan(config), config.model, config.parallel.tensor
    held = tensor * sum(found.parameters_per_rank)
    vectors = 2 * model.num_layers + 1
    whole = vectors * model.hidden_size * (1 if config.residual.mode == "standard" else 3)
    whole += 2 * model.num_layers * model.head_size if model.qk_norm else 0
    second_table = found.setup.padded_vocabulary * model.hidden_size
    tied_copy = second_table if model.tie_embeddings and len(found.stages) > 1 else 0
    assert held == found.parameters_total + (tensor - 1) * whole + tied_copy


@settings(deadline=None)
@given(sound_configs())
def test_every_layer_is_on_exactly_one_stage(config: RunConfig) -> None:
    found = plan(config)
    held = [layer for s in found.stages for layer in range(s.first_layer, s.first_layer + s.layers)]
    assert held == list(range(config.model.num_layers))
    assert [(s.rank, s.chunk) for s in found.stages] == [
        (rank, chunk) for chunk in range(config.parallel.virtual) for rank in range(config.parallel.pipeline)
    ]


@settings(deadline=None)
@given(sound_configs())
def test_every_plan_can_be_printed_and_is_one_json_value(config: RunConfig) -> None:
    found = plan(config)
    assert json.loads(json.dumps(as_json(found)))["parameters"]["total"] == found.parameters_total
    assert f"{found.parameters_total:,}" in plan_text(found, "title")


@pytest.mark.parametrize(
    ("layers", "pipeline", "virtual"),
    [(7, 2, 1), (30, 4, 1), (80, 16, 2)],
    ids=["7 on 2", "30 on 4", "80 on 16 x 2"],
)
def test_layers_that_do_not_divide_by_stages_are_all_planned(
    tmp_path: Path, layers: int, pipeline: int, virtual: int
) -> None:
    settings = flags(
        model__num_layers=layers,
        parallel__pipeline=pipeline,
        parallel__virtual=virtual,
        training__global_batch_size=2 * pipeline,
    )
    config = small(tmp_path, *settings)
    assert check(config) == []
    found = as_json(plan(config, pipeline))
    counts = [stage["layers"] for stage in found["stages"]]
    assert len(counts) == pipeline * virtual
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1
    assert found["parameters"]["total"] == sum(found["parameters"]["per_rank"])
    assert found["parameters"]["total"] == real_parameters(config, found["vocabulary"]["padded"])


def test_work_with_isolated_documents_is_an_upper_bound_and_says_so(tmp_path: Path) -> None:
    whole, isolated = plan(small(tmp_path)), plan(small(tmp_path, "--data.isolate_documents", "true"))
    assert isolated.setup.step_flops == whole.setup.step_flops and isolated.memory == whole.memory
    assert "attention inside documents is less" in plan_text(isolated, "x")
    assert "documents" not in plan_text(whole, "x")
    assert (as_json(whole)["isolate_documents"], as_json(isolated)["isolate_documents"]) == (False, True)


def test_7_layers_on_2_stages_count_7_layers_of_flops(tmp_path: Path) -> None:
    config = small(tmp_path, *flags(model__num_layers=7, parallel__pipeline=2))
    matrices = 7 * (4 * 64 * 64 + 3 * 64 * 128) + 384 * 64
    attention = 7 * 2 * 64 * 32
    assert plan(config).setup.step_flops == 3 * (2 * matrices + attention) * 8 * 32


def test_numbers_of_a_step_and_first_rates(tmp_path: Path) -> None:
    config = small(tmp_path, *flags(schedule__warmup_steps=4, schedule__kind="constant"))
    found = as_json(plan(config, world_size=2))
    assert (found["tokens_per_step"], found["steps"], found["micro_batches"]) == (256, 20, 2)
    assert found["grid"]["data"] == 2
    assert found["learning_rates"] == pytest.approx([0.75e-4, 1.5e-4, 2.25e-4, *[3e-4] * 7])


def test_a_run_shorter_than_ten_steps_has_as_many_rates(tmp_path: Path) -> None:
    assert len(plan(small(tmp_path, *flags(training__steps=3))).learning_rates) == 3


def test_the_first_rate_of_a_new_schedule_is_the_one_the_plan_prints(tmp_path: Path) -> None:
    """A run of constant 6e-4 changed to cosine from 3e-4 to 3e-5."""
    settings = flags(optimizer__learning_rate="3e-4", schedule__min_learning_rate="3e-5", schedule__kind="cosine")
    rate = plan(small(tmp_path, *settings)).learning_rates[0]
    assert rate == pytest.approx(2.9834e-4, rel=1e-4)


def test_hops_name_sources_partial_and_bytes_of_one_rank(tmp_path: Path) -> None:
    settings = flags(
        model__num_layers=4,
        residual__block_size=3,
        parallel__pipeline=2,
        parallel__tensor=2,
        parallel__sequence="true",
        parallel__layers_per_stage="[2, 2]",
    )
    (hop,) = as_json(plan(small(tmp_path, *settings)))["wire"]["hops"]
    slice_of_one_rank = 32 // 2 * 2 * 64 * 2
    assert hop == {
        "from": 0,
        "to": 1,
        "sources": [0, 1],
        "partial": True,
        "slices": 3,
        "bytes": 3 * slice_of_one_rank,
        "returned": [0, 1],
        "bytes_back": 3 * slice_of_one_rank,
    }


@pytest.mark.parametrize(
    ("cache", "wanted"),
    [
        ("off", {"kimi-linear-48b-like": (8, 44, 9), "llama-8b-block": (7, 35, 8), "k3-like": (31, 167, 9)}),
        ("on", {"kimi-linear-48b-like": (8, 17, 3), "llama-8b-block": (7, 21, 4), "k3-like": (31, 77, 3)}),
    ],
)
def test_published_wire_totals_come_out_of_the_published_configs(
    cache: str, wanted: dict[str, tuple[int, int, int]]
) -> None:
    even = {"kimi-linear-48b-like": [3] * 9, "llama-8b-block": [4] * 8, "k3-like": [3] * 29 + [2] * 3}
    for name, split in even.items():
        settings = flags(parallel__layers_per_stage=split, parallel__history_cache=cache)
        found = as_json(plan(load(PUBLISHED / f"{name}.toml", settings).config))["wire"]
        assert (found["slices_standard"], found["slices_total"], found["slices_max"]) == wanted[name]
        assert found["slices_back_total"] == found["slices_total"]


def test_exact_gradients_return_the_whole_prefix() -> None:
    settings = flags(parallel__exact_gradients="true")
    found = as_json(plan(load(PUBLISHED / "k3-like.toml", settings).config))["wire"]
    assert (found["slices_total"], found["slices_back_total"], found["slices_whole_prefix"]) == (77, 167, 167)
    assert found["step_forward_bytes"] * 167 == found["step_backward_bytes"] * 77 > 0


def test_a_step_sends_what_its_hops_send_times_micro_batches_tensor_ranks_and_replicas(tmp_path: Path) -> None:
    settings = flags(parallel__pipeline=2, parallel__virtual=2, parallel__tensor=2, model__num_layers=8)
    found = as_json(plan(small(tmp_path, *settings, *flags(training__global_batch_size=16)), 8))
    wire = found["wire"]
    assert found["micro_batches"] == 4
    assert wire["step_forward_bytes"] == wire["bytes_total"] * 4 * 2 * 2
    assert sum(rank["forward_bytes"] for rank in wire["ranks"]) == wire["bytes_total"]
    assert sum(rank["backward_bytes"] for rank in wire["ranks"]) == wire["bytes_back_total"]


def test_the_published_parameter_count_of_llama_3_8b_comes_out() -> None:
    overrides = flags(residual__mode="standard", residual__block_size="none")
    assert plan(load(PUBLISHED / "llama-8b-block.toml", overrides).config).parameters_total == 8_030_261_248


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.toml")), ids=lambda path: path.stem)
def test_every_published_config_is_sound_and_plans(path: Path) -> None:
    config = load_checked(path, purpose="plan").config
    found = plan(config, world_size=2 * config.parallel.model_ranks)
    assert found.setup.data == 2
    assert sum(stage.layers for stage in found.stages) == config.model.num_layers


@pytest.mark.parametrize(("tensor", "padded"), [(1, 384), (2, 512), (4, 512)])
def test_a_vocabulary_of_320_is_padded_to_a_multiple_of_128_times_the_tensor_ranks(
    tmp_path: Path, tensor: int, padded: int
) -> None:
    found = plan(small(tmp_path, *flags(parallel__tensor=tensor)))
    assert as_json(found)["vocabulary"] == {"size": 320, "padded": padded}
    assert f"vocabulary 320 padded to {padded}" in plan_text(found, "title")


def test_bubble_of_1f1b_and_interleaved() -> None:
    assert bubble_fraction(pipeline=1, virtual=1, micro_batches=5) == 0
    assert bubble_fraction(pipeline=4, virtual=1, micro_batches=8) == 3 / 11
    assert bubble_fraction(pipeline=4, virtual=2, micro_batches=8) == 3 / 19


@pytest.mark.parametrize(
    ("more", "slices"),
    [
        # Of a layer's two sublayers an all-reduce each way, of the embedding one, of the head one on the way back.
        ({}, 4 * 4 + 2),
        # Gathers and scatters, half an all-reduce each: backward gathers the input of both products once more.
        ({"parallel__sequence": "true"}, (4 * (4 + 6) + 4) / 2),
        ({"parallel__pipeline": 2}, 4 * 2 + 1),
    ],
)
def test_the_plan_counts_what_tensor_ranks_reduce(tmp_path: Path, more: dict[str, object], slices: float) -> None:
    config = load_checked(write(tmp_path), flags(parallel__tensor=2, **more), purpose="plan").config
    micro_batches = 4
    assert plan(config).tensor_bytes == micro_batches * slices * (2 * 32 * 64 * 2)
    assert plan(load(write(tmp_path)).config).tensor_bytes == 0
    assert "the tensor ranks reduce" in plan_text(plan(config), "")
