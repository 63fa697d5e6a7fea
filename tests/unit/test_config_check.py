"""Rules between keys: each broken rule is named with its numbers and the nearest valid values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.config import check
from attnres_train.words import nearest_divisors, nearest_multiples
from tests.cases import CASES
from tests.unit.config_files import broken_rules, flags, small


def only(found: dict, key: str) -> tuple[str, str]:
    assert list(found) == [key]
    return found[key].message, found[key].remedy


def test_a_sound_configuration_has_no_problem(tmp_path: Path) -> None:
    assert broken_rules(tmp_path) == {}
    assert broken_rules(tmp_path, world_size=4) == {}


def test_layers_that_do_not_divide_by_stages_are_fine(tmp_path: Path) -> None:
    assert broken_rules(tmp_path, *flags(model__num_layers=7, parallel__pipeline=2)) == {}
    assert broken_rules(tmp_path, *flags(model__num_layers=30, parallel__pipeline=4)) == {}
    many = flags(model__num_layers=80, parallel__pipeline=16, parallel__virtual=2, training__global_batch_size=32)
    assert broken_rules(tmp_path, *many) == {}


def test_explicit_counts_3_and_3_for_7_layers_are_refused_with_sum_and_wanted(tmp_path: Path) -> None:
    settings = flags(model__num_layers=7, parallel__pipeline=2, parallel__layers_per_stage="[3, 3]")
    message, remedy = only(broken_rules(tmp_path, *settings), "parallel.layers_per_stage")
    assert message == "sum 6, wanted 7 (model.num_layers)"
    assert "[4, 3]" in remedy


def test_explicit_counts_may_be_uneven_and_zero(tmp_path: Path) -> None:
    settings = flags(model__num_layers=4, parallel__pipeline=3, parallel__layers_per_stage="[1, 3, 0]")
    assert broken_rules(tmp_path, *settings) == {}


def test_explicit_counts_of_the_wrong_number_are_refused(tmp_path: Path) -> None:
    settings = flags(parallel__pipeline=2, parallel__virtual=2, parallel__layers_per_stage="[2, 2]")
    message, _ = only(broken_rules(tmp_path, *settings), "parallel.layers_per_stage")
    assert message == "2 numbers, wanted 4 (pipeline 2 * virtual 2 = 4 stages)"


def test_a_negative_count_is_refused(tmp_path: Path) -> None:
    settings = flags(parallel__pipeline=2, parallel__layers_per_stage="[5, -1]")
    assert only(broken_rules(tmp_path, *settings), "parallel.layers_per_stage")[0] == "-1 layers on a stage"


def test_one_layer_on_two_stages_is_refused_with_valid_numbers(tmp_path: Path) -> None:
    message, remedy = only(
        broken_rules(tmp_path, *flags(model__num_layers=1, parallel__pipeline=2)), "parallel.pipeline"
    )
    assert message == "pipeline 2 * virtual 1 = 2 stages, but model.num_layers = 1: not every stage gets one"
    assert "1 or less" in remedy and "[1, 0]" in remedy


def test_global_10_micro_2_on_2_ranks_is_refused_with_8_or_12(tmp_path: Path) -> None:
    found = broken_rules(tmp_path, *flags(training__global_batch_size=10), world_size=2)
    message, remedy = only(found, "training.global_batch_size")
    assert message == "10 is not micro_batch_size 2 * accumulation * data 2: 10 / 4 = 2.5 micro-batches a rank"
    assert remedy == "nearest valid global sizes: 8 or 12"


def test_global_8_micro_3_accumulation_1_is_refused_with_3_and_6_or_9(tmp_path: Path) -> None:
    settings = flags(training__micro_batch_size=3, training__accumulation=1)
    message, remedy = only(broken_rules(tmp_path, *settings), "training.accumulation")
    assert message == "micro_batch_size 3 * accumulation 1 * data 1 = 3, but training.global_batch_size = 8"
    assert "global_batch_size = 3" in remedy and "6 or 9" in remedy


def test_global_8_micro_2_accumulation_3_is_refused_with_12_and_2_on_two_ranks(tmp_path: Path) -> None:
    message, remedy = only(
        broken_rules(tmp_path, *flags(training__accumulation=3), world_size=2), "training.accumulation"
    )
    assert message == "micro_batch_size 2 * accumulation 3 * data 2 = 12, but training.global_batch_size = 8"
    assert "global_batch_size = 12 or accumulation = 2" in remedy


def test_a_stated_accumulation_that_agrees_is_fine(tmp_path: Path) -> None:
    assert broken_rules(tmp_path, *flags(training__accumulation=2), world_size=2) == {}


def test_a_micro_batch_larger_than_the_global_is_refused(tmp_path: Path) -> None:
    message, remedy = only(
        broken_rules(tmp_path, *flags(training__micro_batch_size=16), world_size=2),
        "training.micro_batch_size",
    )
    assert message == "16 is larger than training.global_batch_size = 8"
    assert remedy.endswith("nearest valid global size: 32")


def test_fewer_micro_batches_than_stages_are_refused(tmp_path: Path) -> None:
    settings = flags(training__global_batch_size=4, parallel__pipeline=4)
    message, remedy = only(broken_rules(tmp_path, *settings), "training.global_batch_size")
    assert "4 / (micro_batch_size 2 * data 1) = 2 micro-batches, fewer than parallel.pipeline = 4 stages" in message
    assert "nearest valid global sizes: 8;" in remedy


def test_interleaving_needs_a_multiple_of_pipeline_micro_batches(tmp_path: Path) -> None:
    settings = flags(training__global_batch_size=6, parallel__pipeline=2, parallel__virtual=2)
    message, remedy = only(broken_rules(tmp_path, *settings), "training.global_batch_size")
    assert "= 3 micro-batches, no multiple of parallel.pipeline = 2" in message
    assert "nearest valid global sizes: 4 or 8;" in remedy
    assert broken_rules(tmp_path, *flags(training__global_batch_size=6, parallel__pipeline=2)) == {}


@settings(deadline=None)
@given(
    whole=st.integers(1, 60),
    micro=st.integers(1, 5),
    pipeline=st.integers(1, 4),
    virtual=st.integers(1, 2),
    data=st.integers(1, 3),
)
def test_the_sizes_a_batch_problem_offers_are_valid(
    tmp_path_factory: pytest.TempPathFactory, whole: int, micro: int, pipeline: int, virtual: int, data: int
) -> None:
    folder = tmp_path_factory.mktemp("batch")
    virtual = virtual if pipeline > 1 else 1
    numbers = {
        "training__micro_batch_size": micro,
        "parallel__pipeline": pipeline,
        "parallel__virtual": virtual,
    }
    world = pipeline * data

    def batch_problems(size: int) -> dict:
        settings = flags(model__num_layers=16, training__global_batch_size=size, **numbers)
        return broken_rules(folder, *settings, world_size=world)

    for problem in batch_problems(whole).values():
        offered = problem.remedy.partition("nearest valid global size")[2].removeprefix("s").removeprefix(": ")
        for size in offered.partition(";")[0].split(" or "):
            assert batch_problems(int(size)) == {}


def test_a_world_that_is_no_multiple_of_the_model_ranks_is_refused(tmp_path: Path) -> None:
    settings = flags(parallel__tensor=2, parallel__pipeline=2)
    message, remedy = only(broken_rules(tmp_path, *settings, world_size=6), "parallel")
    assert message == "6 ranks are no multiple of tensor 2 * pipeline 2 = 4 ranks a replica"
    assert remedy.startswith("start 4 or 8 ranks")


@pytest.mark.parametrize(
    ("settings", "key", "facts"),
    [
        (flags(model__hidden_size=66), "model.hidden_size", ("66", "num_attention_heads = 4", "64 or 72")),
        (flags(model__hidden_size=68), "model.hidden_size", ("68 / 4 heads = 17", "even", "64 or 72")),
        (flags(model__head_dim=5), "model.head_dim", ("5", "even", "6")),
        (flags(model__sliding_layers="[1]"), "model.sliding_layers", ("sliding_window is not set",)),
        (flags(model__sliding_window=8, model__sliding_layers="[]"), "model.sliding_layers", ("no layer",)),
        (flags(model__sliding_window=8, model__sliding_layers="[4]"), "model.sliding_layers", ("layer 4", "0 to 3")),
        (flags(model__sliding_window=8, model__sliding_layers="[2, 1]"), "model.sliding_layers", ("[1, 2]",)),
        (flags(model__rope_scaling__kind="linear"), "model.rope_scaling.factor", ("not set", "linear")),
        (flags(model__rope_scaling__factor=2.0), "model.rope_scaling.factor", ("2.0", "none", "linear")),
        (
            flags(
                model__rope_scaling__kind="yarn",
                model__rope_scaling__factor=2.0,
                model__rope_scaling__original_window_tokens=32,
                model__rope_base=1,
            ),
            "model.rope_base",
            ("YaRN", "10000"),
        ),
        (flags(model__num_query_groups=3), "model.num_query_groups", ("3 does not divide", "= 4", "2 or 4")),
        (
            flags(parallel__tensor=3),
            "parallel.tensor",
            ("num_attention_heads = 4 and model.num_query_groups = 4", "ffn_hidden_size = 128", "2 or 4"),
        ),
        (
            flags(parallel__tensor=4, model__num_query_groups=2),
            "parallel.tensor",
            ("model.num_query_groups = 2 is no multiple of parallel.tensor = 4", "all of them: 2"),
        ),
        (
            flags(parallel__tensor=2, parallel__sequence="true", training__sequence_length=33),
            "parallel.tensor",
            ("training.sequence_length = 33 is no multiple", "all of them: 1"),
        ),
        (flags(parallel__sequence="true"), "parallel.sequence", ("parallel.tensor = 1", "2 or more")),
        (flags(residual__block_size="none"), "residual.block_size", ('mode = "block"', "8 sublayers", "= 2")),
        (
            flags(residual__mode="full", residual__block_size=2),
            "residual.block_size",
            ('mode = "full" has no blocks', '"none"'),
        ),
        (flags(parallel__virtual=2), "parallel.virtual", ("2, but parallel.pipeline = 1", "= 1")),
        (flags(tokenizer__vocab_size="none"), "tokenizer.model", ("neither", "tokenizer.vocab_size")),
        (flags(data__valid="v"), "data.valid", ("data.train is not", "remove")),
        (flags(data__train="{a = -1, b = 2}"), "data.train", ("negative weight: a = -1", "0 or more")),
        (flags(data__train="{a = 0, b = 0.0}"), "data.train", ("no weight above 0 among 2",)),
        (flags(data__train="{}"), "data.train", ("no weight above 0 among 0",)),
        (flags(schedule__warmup_steps=21), "schedule.warmup_steps", ("21 steps", "steps = 20", "20 or less")),
        (flags(schedule__kind="wsd"), "schedule.decay_steps", ('kind = "wsd"', "decay_steps = 2")),
        (
            flags(schedule__kind="wsd", schedule__decay_steps=18, schedule__warmup_steps=5),
            "schedule.decay_steps",
            ("18", "steps 20 - warmup_steps 5 = 15", "15 or less"),
        ),
        (
            flags(schedule__kind="constant", schedule__decay_steps=5),
            "schedule.decay_steps",
            ("5", "never decays", '"none"'),
        ),
        (
            flags(schedule__decay_steps=5, schedule__warmup_steps=5),
            "schedule.decay_steps",
            ("5 is the step at which the cosine ends", "takes 5 steps", "more than 5"),
        ),
        (
            flags(schedule__min_learning_rate="1e-3"),
            "schedule.min_learning_rate",
            ("0.001 is above optimizer.learning_rate = 0.0003", "0.0003 or less"),
        ),
        (flags(training__stop_after_steps=21), "training.stop_after_steps", ("21 is after", "steps = 20")),
    ],
    ids=lambda value: " ".join(value).replace("--", "") if isinstance(value, list) else "",
)
def test_a_broken_rule_is_the_only_problem_and_states_its_facts(
    tmp_path: Path, settings: list[str], key: str, facts: tuple[str, ...]
) -> None:
    text = " | ".join(only(broken_rules(tmp_path, *settings), key))
    for fact in facts:
        assert fact in text


@pytest.mark.parametrize(
    "settings",
    [
        flags(schedule__warmup_steps=20),
        flags(schedule__min_learning_rate="3e-4"),
        flags(schedule__kind="wsd", schedule__warmup_steps=5, schedule__decay_steps=15),
        flags(schedule__decay_steps=40),
        flags(training__stop_after_steps=20),
        flags(data__train="{a = 1, b = 0}"),
        flags(residual__mode="standard", residual__block_size="none"),
        flags(residual__block_size=100),
        flags(parallel__tensor=4, parallel__sequence="true"),
        flags(parallel__pipeline=2, parallel__virtual=2, parallel__micro_batch_group=2),
        flags(
            parallel__pipeline=2,
            parallel__virtual=2,
            parallel__history_cache="on",
            parallel__layers_per_stage="[0, 2, 2, 0]",
        ),
        flags(checkpoint__resume="runs/x/checkpoints/step-00000010"),
    ],
    ids=" ".join,
)
def test_what_lies_on_the_edge_of_a_rule_is_allowed(tmp_path: Path, settings: list[str]) -> None:
    assert broken_rules(tmp_path, *settings) == {}


def test_all_broken_rules_are_reported_together(tmp_path: Path) -> None:
    settings = flags(
        model__hidden_size=66,
        training__global_batch_size=9,
        schedule__warmup_steps=30,
        parallel__virtual=2,
        residual__block_size="none",
        tokenizer__vocab_size="none",
    )
    assert set(broken_rules(tmp_path, *settings)) == {
        "model.hidden_size",
        "training.global_batch_size",
        "schedule.warmup_steps",
        "parallel.virtual",
        "residual.block_size",
        "tokenizer.model",
    }


@settings(deadline=None)
@given(st.integers(1, 1000), st.integers(1, 60), st.integers(1, 400))
def test_nearest_multiples_are_the_nearest_on_both_sides(number: int, unit: int, least: int) -> None:
    found = nearest_multiples(number, unit, least)
    valid = [size for size in range(unit, 2500, unit) if size >= least]
    below, above = [s for s in valid if s <= number], [s for s in valid if s > number]
    assert found == (below[-1:] + above[:1])


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 2000))
def test_nearest_divisors_are_the_nearest_on_both_sides(number: int, whole: int) -> None:
    valid = [size for size in range(1, whole + 1) if whole % size == 0]
    below, above = [s for s in valid if s <= number], [s for s in valid if s > number]
    assert nearest_divisors(number, whole) == below[-1:] + above[:1]


@pytest.mark.parametrize(
    ("settings", "key", "told"),
    [
        (flags(residual__mode="gated", residual__block_size="none", residual__window=3), "residual.window", "gated"),
        (flags(residual__gate="highway"), "residual.gate", '"gated"'),
        (flags(residual__heads=5), "residual.heads", "write 4 or 8"),
        (flags(residual__key_rank=6, residual__heads=4), "residual.heads", "residual.key_rank = 6"),
        (flags(residual__key_rank=1000), "residual.key_rank", "wider than model.hidden_size"),
        (flags(residual__weights="static", residual__query="input"), "residual.query", "looks at no keys"),
        (flags(residual__heads=2, residual__backend="native"), "residual.backend", "residual.heads"),
    ],
    ids=str,
)
def test_an_option_that_the_mode_does_not_have_is_refused(
    tmp_path: Path, settings: list[str], key: str, told: str
) -> None:
    message, remedy = only(broken_rules(tmp_path, *settings), key)
    assert told in f"{message} {remedy}"


def test_an_evaluation_without_validation_data_is_refused_and_a_plan_without_data_is_not(tmp_path: Path) -> None:
    every = flags(training__eval_interval_steps=5)
    message, remedy = only(broken_rules(tmp_path, *every, *flags(data__train="a")), "training.eval_interval_steps")
    assert message == "5, but data.valid is not set: there is nothing to evaluate on" and "set data.valid" in remedy
    assert broken_rules(tmp_path, *every, *flags(data__train="a", data__valid="b")) == {}
    assert broken_rules(tmp_path, *every) == {}


def test_more_samples_than_can_be_counted_are_refused(tmp_path: Path) -> None:
    message, remedy = only(broken_rules(tmp_path, *flags(training__steps=10**19)), "training.steps")
    assert "more than can be counted" in message
    assert broken_rules(tmp_path, *flags(training__steps=remedy.split()[1])) == {}


@pytest.mark.parametrize("case", CASES)
def test_every_case_of_the_equivalence_tests_is_a_sound_configuration(tmp_path: Path, case: str) -> None:
    section = {f"residual__{name}": str(value).lower() for name, value in CASES[case].items()}
    section.setdefault("residual__block_size", "none")
    if section["residual__block_size"] == "none":
        assert CASES[case]["mode"] != "block"
    assert broken_rules(tmp_path, *flags(**section)) == {}


def test_groups_of_micro_batches_fill_the_pipeline(tmp_path: Path) -> None:
    grid = {"parallel__pipeline": 4, "parallel__virtual": 2, "model__num_layers": 8}
    found = broken_rules(tmp_path, *flags(**grid, parallel__micro_batch_group=3, training__global_batch_size=24))
    assert "3 is less than parallel.pipeline = 4" in only(found, "parallel.micro_batch_group")[0]
    found = broken_rules(tmp_path, *flags(**grid, parallel__micro_batch_group=8, training__global_batch_size=20))
    message, remedy = only(found, "training.global_batch_size")
    assert "= 10 micro-batches, 2 of them in the last group of parallel.micro_batch_group = 8" in message
    assert "nearest valid global sizes: 16 or 24;" in remedy
    found = broken_rules(tmp_path, *flags(**grid, parallel__micro_batch_group=8, training__global_batch_size=8))
    assert (
        "= 4 micro-batches, fewer than parallel.micro_batch_group = 8" in only(found, "training.global_batch_size")[0]
    )
    assert broken_rules(tmp_path, *flags(**grid, parallel__micro_batch_group=8, training__global_batch_size=24)) == {}


def test_a_group_of_micro_batches_needs_several_stages_a_rank(tmp_path: Path) -> None:
    found = broken_rules(tmp_path, *flags(parallel__pipeline=2, parallel__micro_batch_group=2))
    assert "groups take turns between the stages of a rank" in only(found, "parallel.micro_batch_group")[0]


def test_the_cache_does_not_go_with_an_empty_stage_between_others(tmp_path: Path) -> None:
    grid = {"parallel__pipeline": 2, "parallel__virtual": 2, "parallel__layers_per_stage": "[2,0,1,1]"}
    message, remedy = only(
        broken_rules(tmp_path, *flags(**grid, parallel__history_cache="on")), "parallel.history_cache"
    )
    assert "[2, 0, 1, 1] has a stage of no layers between others" in message and '"auto" or "off"' in remedy
    for allowed in ({"parallel__history_cache": "auto"}, {"parallel__history_cache": "off"}):
        assert broken_rules(tmp_path, *flags(**grid, **allowed)) == {}
        assert not small(tmp_path, *flags(**grid, **allowed)).parallel.caches_history
    ends = flags(parallel__pipeline=2, parallel__virtual=2, parallel__layers_per_stage="[0,2,2,0]")
    assert broken_rules(tmp_path, *ends) == {} and small(tmp_path, *ends).parallel.caches_history


def test_a_residual_without_blocks_has_none_to_make_again(tmp_path: Path) -> None:
    settings = {"residual__mode": "standard", "residual__block_size": "none", "training__recompute": "block"}
    message, remedy = only(broken_rules(tmp_path, *flags(**settings)), "training.recompute")
    assert "has no blocks" in message and '"layer"' in remedy


@pytest.mark.parametrize(
    ("settings", "key", "said"),
    [
        ({"zero_stage": 2, "pipeline": 2}, "zero_stage", "reduces and forgets gradients after each micro-batch"),
        ({"zero_stage": 3, "pipeline": 2, "virtual": 2}, "zero_stage", "a pipeline has several under way"),
        ({"zero_stage": 0}, "zero_stage", "counts the gradients of the first pipeline stage alone"),
        ({"param_persistence_threshold": 5, "zero_stage": 2}, "param_persistence_threshold", "zero_stage = 2 does not"),
        ({"zero_stage": 2, "kind": "megatron"}, "zero_stage", 'engine.kind = "megatron" does not read it'),
        ({"config": "own.json", "kind": "megatron"}, "config", 'engine.kind = "megatron" does not read it'),
    ],
)
def test_what_deepspeed_cannot_do_is_refused_with_the_reason(
    tmp_path: Path, settings: dict[str, object], key: str, said: str
) -> None:
    flags = [f"--engine.kind={settings.pop('kind', 'deepspeed')}"]
    for name, value in settings.items():
        section = "parallel" if name in ("pipeline", "virtual") else "engine.deepspeed"
        flags.append(f"--{section}.{name}={value}")
    (problem,) = broken_rules(tmp_path, *flags).values()
    assert problem.key == f"engine.deepspeed.{key}" and said in problem.message


@pytest.mark.parametrize(("stage", "pipeline"), [(1, 2), (1, 1), (2, 1), (3, 1)])
def test_what_deepspeed_can_do_is_not_refused(tmp_path: Path, stage: int, pipeline: int) -> None:
    flags = [f"--engine.deepspeed.zero_stage={stage}", f"--parallel.pipeline={pipeline}"]
    assert not broken_rules(tmp_path, "--engine.kind=deepspeed", *flags)


def test_the_rules_of_every_room_are_gathered() -> None:
    product = Path(__file__).resolve().parents[2] / "attnres_train"
    rooms = {path.parent.name for path in product.glob("*/rules.py") if "\ndef problems(" in path.read_text()}
    assert rooms == {room.__name__.split(".")[1] for room in check._ROOMS}


def test_one_micro_batch_less_than_the_pipeline_has_ranks_does_not_fill_it(tmp_path: Path) -> None:
    settings = {"parallel__pipeline": 4, "training__micro_batch_size": 1, "training__global_batch_size": 3}
    problem = broken_rules(tmp_path, *flags(**settings))["training.global_batch_size"]
    assert problem.message.endswith("= 3 micro-batches, fewer than parallel.pipeline = 4 stages")
    assert "nearest valid global sizes: 4;" in problem.remedy
    assert broken_rules(tmp_path, *flags(**settings | {"training__global_batch_size": 4})) == {}


def test_a_micro_batch_is_at_most_a_replica_s_share(tmp_path: Path) -> None:
    problem = broken_rules(tmp_path, *flags(training__micro_batch_size=9), world_size=2)["training.micro_batch_size"]
    assert problem.message == "9 is larger than training.global_batch_size = 8"
    assert problem.remedy.startswith("lower it to 4 or less, ")
    assert broken_rules(tmp_path, *flags(training__micro_batch_size=4), world_size=2) == {}
