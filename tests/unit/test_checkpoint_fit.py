"""Every way in which a checkpoint may not be this run's, and the word that accepts it."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import pytest

from attnres_train.checkpoint.config import CheckpointConfig
from attnres_train.checkpoint.fit import (
    FREE_TO_CHANGE,
    Difference,
    changed_settings,
    differences,
    nothing_to_train,
    told,
)
from attnres_train.checkpoint.manifest import Manifest, TensorRecord
from attnres_train.config.keys import all_keys
from tests.unit.checkpoint_folders import manifest

SHAPES = {"a": (3, 4), "b": (5,)}
KINDS = ("weight", "first_moment", "second_moment")
PARTS = {f"{kind}/{name}" for kind in KINDS for name in SHAPES}
FINGERPRINTS = {"tokenizer": "a" * 64, "train": "b" * 64}
SETTINGS: dict[str, Any] = {
    "model.num_attention_heads": 4,
    "residual.mode": "block",
    "optimizer.learning_rate": 6e-4,
    "parallel.layers_per_stage": [3, 4],
    **{key: 1 for key in FREE_TO_CHANGE},
}


def stored() -> Manifest:
    return manifest(fingerprints=FINGERPRINTS, settings=json.loads(json.dumps(SETTINGS)))


def found(**changes: Any) -> list[Difference]:
    """The differences to a run that is the stored one's but for `changes`."""
    arguments = {"stored_parts": PARTS, "mine": SHAPES, "fingerprints": FINGERPRINTS, "settings": SETTINGS}
    return differences(stored(), **(arguments | changes))


def words(differences_: list[Difference]) -> list[tuple[str, str | None, str | None]]:
    return [(difference.problem.key, difference.allowed_as, difference.tensor) for difference in differences_]


def test_the_same_run_differs_in_nothing() -> None:
    assert found() == []
    assert found(stored_parts=sorted(PARTS), settings=SETTINGS | {"parallel.layers_per_stage": (3, 4)}) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("residual.norm_of", "sum"), ("model.sliding_window", 8), ("model.rope_scaling.kind", "linear")],
)
def test_an_option_that_is_younger_than_the_checkpoint_had_its_default(key: str, value: Any) -> None:
    """Tensors do not tell: with a window, or other positions, each has the shape it had."""
    (difference,) = found(settings=SETTINGS | {key: value})
    assert words([difference]) == [(key, "settings", None)]
    assert found(settings=SETTINGS | {key: all_keys()[key].default}) == []


def test_a_tensor_that_the_checkpoint_lacks_is_missing() -> None:
    (difference,) = found(mine=SHAPES | {"c": (7, 2)})
    assert words([difference]) == [("c", "missing", "c")]
    assert difference.problem.message == "the model has it with shape (7, 2), the checkpoint lacks it"


def test_a_tensor_that_the_model_lacks_is_extra() -> None:
    (difference,) = found(mine={"b": (5,)})
    assert words([difference]) == [("a", "extra", "a")]
    assert difference.problem.message == "the checkpoint has it with shape (3, 4), the model lacks it"


@pytest.mark.parametrize("shape", [(4, 3), (12,), (3, 4, 1), (), (3, 5)])
def test_another_shape_is_accepted_by_nothing(shape: tuple[int, ...]) -> None:
    (difference,) = found(mine=SHAPES | {"a": shape})
    assert words([difference]) == [("a", None, "a")]
    assert difference.problem.message == f"has shape (3, 4) in the checkpoint, {shape} in the model"


@pytest.mark.parametrize("kind", ["first_moment", "second_moment"])
def test_each_moment_that_is_not_in_the_files_is_named(kind: str) -> None:
    (difference,) = found(stored_parts=PARTS - {f"{kind}/b"})
    assert words([difference]) == [("b", "moments", f"{kind}/b")]
    assert difference.problem.message == f"its {kind.replace('_', ' ')} is not in the checkpoint"


def test_a_weight_that_the_manifest_names_and_the_files_lack_is_accepted_by_nothing() -> None:
    assert words(found(stored_parts=PARTS - {"weight/b"})) == [("b", None, "b")]
    nothing_but_a = {f"{kind}/a" for kind in KINDS}
    by_word = [word for _, word, _ in words(found(stored_parts=nothing_but_a))]
    assert by_word == [None, "moments", "moments"]


def test_parts_of_a_missing_or_extra_tensor_are_not_told_again() -> None:
    assert words(found(mine=SHAPES | {"c": (1,)}, stored_parts=PARTS)) == [("c", "missing", "c")]
    without_a = {part for part in PARTS if not part.endswith("/a")}
    assert words(found(mine={"b": (5,)}, stored_parts=without_a)) == [("a", "extra", "a")]


@pytest.mark.parametrize(("kind", "word"), [("tokenizer", "tokenizer"), ("train", "data")])
def test_another_tokenizer_or_corpus_is_named_by_its_fingerprint(kind: str, word: str) -> None:
    (difference,) = found(fingerprints=FINGERPRINTS | {kind: "c" * 64})
    assert words([difference]) == [(kind, word, None)]
    was = FINGERPRINTS[kind][:12]
    assert difference.problem.message == f"was trained with {kind} {was}, this run has cccccccccccc"


def test_a_fingerprint_that_one_side_does_not_know_is_not_compared() -> None:
    assert found(fingerprints={"train": "b" * 64}) == []
    assert found(fingerprints=FINGERPRINTS | {"valid": "d" * 64}) == []


@pytest.mark.parametrize(("key", "value"), [("model.num_attention_heads", 8), ("residual.mode", "full")])
def test_another_setting_of_the_model_is_named_with_both_values(key: str, value: Any) -> None:
    (difference,) = found(settings=SETTINGS | {key: value})
    assert words([difference]) == [(key, "settings", None)]
    assert difference.problem.message == f"was {SETTINGS[key]!r} in the checkpoint, is {value!r}: another model"
    assert difference.problem.remedy.startswith(f"write {key} = {json.dumps(SETTINGS[key])}")


def test_isolated_documents_are_data_and_an_older_checkpoint_had_none() -> None:
    key = "data.isolate_documents"
    (difference,) = found(settings=SETTINGS | {key: True})
    assert words([difference]) == [(key, "data", None)]
    assert difference.problem.message.startswith("was false in the checkpoint, is true: ")
    assert difference.problem.remedy.startswith("write data.isolate_documents = false; or accept it with")
    assert found(settings=SETTINGS | {key: False}) == []
    isolated = manifest(fingerprints=FINGERPRINTS, settings=SETTINGS | {key: True})
    arguments = {"stored_parts": PARTS, "mine": SHAPES, "fingerprints": FINGERPRINTS}
    assert words(differences(isolated, settings=SETTINGS | {key: False}, **arguments)) == [(key, "data", None)]
    assert differences(isolated, settings=SETTINGS | {key: True}, **arguments) == []


@pytest.mark.parametrize("key", [*FREE_TO_CHANGE, "optimizer.learning_rate", "parallel.layers_per_stage"])
def test_what_does_not_say_what_is_computed_is_free_to_change(key: str) -> None:
    assert found(settings=SETTINGS | {key: 2}) == []
    assert changed_settings(SETTINGS, SETTINGS | {key: 2}) == {key: (SETTINGS[key], 2)}


def test_free_keys_are_keys_of_the_configuration() -> None:
    from attnres_train.depth.config import ResidualConfig
    from attnres_train.model.config import ModelConfig

    sections = {"model": get_type_hints(ModelConfig), "residual": get_type_hints(ResidualConfig)}
    for section, key in (name.split(".") for name in FREE_TO_CHANGE):
        assert key in sections[section], key


def test_every_difference_is_told_at_once_and_names_the_word_that_accepts_it() -> None:
    everything = found(
        mine={"b": (6,), "c": (1,)},
        stored_parts=PARTS - {"first_moment/b", "weight/b"},
        fingerprints={"tokenizer": "c" * 64, "train": "d" * 64},
        settings=SETTINGS | {"residual.mode": "standard", "optimizer.learning_rate": 1.0},
        averages=True,
    )
    allowed = {difference.allowed_as for difference in everything}
    known = {word for part in get_args(get_type_hints(CheckpointConfig)["allow"]) for word in get_args(part)}
    assert known == {"missing", "extra", "moments", "settings", "data", "tokenizer", "average"}
    assert allowed == known | {None}
    for difference in everything:
        remedy = difference.problem.remedy
        if difference.allowed_as is None:
            assert "checkpoint.allow" not in remedy, "nothing accepts it"
        elif difference.allowed_as == "settings":
            assert remedy == 'write residual.mode = "block", or begin in another run folder', "b has another shape"
        else:
            assert remedy.endswith(f'; or accept it with "{difference.allowed_as}" in checkpoint.allow')


def test_another_width_leads_with_the_setting_and_is_told_on_a_screen() -> None:
    """Two hundred tensors follow from one key, and no word in checkpoint.allow could help."""
    names = [f"layers.{number}.mlp" for number in range(200)]
    stored_ = manifest(
        tensors={name: TensorRecord((192,), "float32") for name in names},
        fingerprints=FINGERPRINTS,
        settings={"model.hidden_size": 192},
    )
    parts = {f"{kind}/{name}" for kind in KINDS for name in names}
    wider = dict.fromkeys(names, (256,)) | {"head": (256,)}
    problems = told(differences(stored_, parts, wider, FINGERPRINTS, {"model.hidden_size": 256}))
    assert problems[0].key == "model.hidden_size"
    assert problems[0].message == "was 192 in the checkpoint, is 256: another model"
    assert problems[0].remedy == "write model.hidden_size = 192, or begin in another run folder"
    assert [p.key for p in problems[1:]] == ["head", *sorted(names)[:3], "197 more"]
    assert problems[-1].message == "likewise, the last of them layers.99.mlp"
    helped = [problem.key for problem in problems if "checkpoint.allow" in problem.remedy]
    assert helped == ["head"], "what no word accepts is not told to be accepted"


def test_few_tensors_are_all_named() -> None:
    everything = found(mine={f"{name}{number}": (3, 4) for number in range(4) for name in "ab"})
    assert sorted(problem.key for problem in told(everything)) == [
        "a",
        *(f"a{n}" for n in range(4)),
        "b",
        *(f"b{n}" for n in range(4)),
    ]


def test_changed_settings_are_told_and_equal_ones_are_not() -> None:
    was = json.loads(json.dumps({"optimizer.learning_rate": 6e-4, "parallel.layers_per_stage": (3, 4), "gone": 1}))
    now = {"optimizer.learning_rate": 3e-4, "parallel.layers_per_stage": (3, 4), "new": 2}
    assert changed_settings(was, now) == {"optimizer.learning_rate": (6e-4, 3e-4)}


def test_a_stop_before_the_last_step_is_the_end_that_counts() -> None:
    was = stored()
    settings = {"training.steps": was.step + 100, "training.stop_after_steps": was.step - 1}
    (problem,) = nothing_to_train(was, settings)
    assert problem.key == "training.stop_after_steps"
    assert problem.message.startswith(f"{was.step - 1}, but the checkpoint is at step {was.step} already")
    assert nothing_to_train(was, settings | {"training.stop_after_steps": was.step + 1}) == []


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("optimizer.learning_rate", True),
        ("schedule.kind", True),
        ("data.train", True),
        ("data.isolate_documents", True),
        ("training.global_batch_size", True),
        ("training.sequence_length", True),
        ("training.seed", True),
        ("training.precision", True),
        ("training.micro_batch_size", False),
        ("data.valid", False),
        ("parallel.tensor", False),
    ],
)
def test_what_says_how_a_step_trains_needs_a_step_to_train(key: str, told: bool) -> None:
    """A run at its last step with another setting: told of those that would never be used."""
    was = manifest(settings={key: 1})
    settings = {"training.steps": was.step, "training.stop_after_steps": None, key: 2}
    problems = nothing_to_train(was, settings)
    assert [problem.key for problem in problems] == ([key] if told else [])
    assert all(problem.message.startswith("was 1, is 2, ") for problem in problems)
    assert nothing_to_train(was, settings | {"training.steps": was.step + 1}) == []


@pytest.mark.parametrize(("steps", "key"), [(-1, "training.steps"), (0, None), (1, None)])
def test_a_run_that_is_complete_is_no_problem_and_one_that_is_past_its_end_is(steps: int, key: str | None) -> None:
    was = stored()
    settings = {"training.steps": was.step + steps, "training.stop_after_steps": None}
    assert [problem.key for problem in nothing_to_train(was, settings)] == ([] if key is None else [key])
