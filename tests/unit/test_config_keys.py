"""What is known of every key, and the nearest name of an unknown one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.config.keys import all_keys
from attnres_train.config.names import foreign_names, nearest_key

KEYS = all_keys()


def test_every_key_has_help() -> None:
    assert [key.dotted for key in KEYS.values() if not key.help] == []


def test_every_name_of_another_codebase_leads_to_a_key_there_is() -> None:
    assert set(foreign_names()) <= set(KEYS)
    last_names = {key.name for key in KEYS.values()}
    assert not last_names & set(" ".join(foreign_names().values()).split()), "one of our own names needs no translation"


@pytest.mark.parametrize(
    ("dotted", "takes"),
    [
        ("model.num_layers", "an integer of at least 1"),
        ("model.num_query_groups", 'an integer of at least 1, or "none"'),
        ("optimizer.learning_rate", "a number above 0 and of at most 1e+30"),
        ("optimizer.beta2", "a number of at least 0 and below 1"),
        ("parallel.sequence", "true or false"),
        ("parallel.layers_per_stage", 'a list of integers, or "none"'),
        ("schedule.kind", 'one of "cosine", "wsd", "constant"'),
        ("engine.kind", 'one of "megatron", "deepspeed"'),
        ("data.train", 'a text, or a table {"prefix" = weight}, or "none"'),
        ("checkpoint.resume", "a text"),
    ],
)
def test_what_a_key_takes_is_said_in_words(dotted: str, takes: str) -> None:
    assert KEYS[dotted].takes == takes


def test_required_keys_are_those_without_a_default() -> None:
    assert {key.dotted for key in KEYS.values() if key.required} == {
        "model.num_layers",
        "model.hidden_size",
        "model.ffn_hidden_size",
        "model.num_attention_heads",
        "training.global_batch_size",
        "training.micro_batch_size",
        "training.sequence_length",
        "training.steps",
    }


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ("optimizer.learing_rate", "optimizer.learning_rate"),
        ("training.learing_rate", "optimizer.learning_rate"),
        ("lr", "optimizer.learning_rate"),
        ("training.batch_size", "training.global_batch_size"),
        ("training.seq_length", "training.sequence_length"),
        ("model.hidden_dim", "model.hidden_size"),
        ("gradient_accumulation_steps", "training.accumulation"),
        ("engine.deepspeed.gradient_acumulation_steps", "training.accumulation"),
        ("engine.deepspeed.train_micro_batch_size_per_gpu", "training.micro_batch_size"),
        ("model.block_size", "residual.block_size"),
        ("schedule.knd", "schedule.kind"),
        ("engine.knd", "engine.kind"),
        ("model.Hidden-Size", "model.hidden_size"),
        ("zzzz.qqqq", None),
    ],
)
def test_the_nearest_key_is_the_one_that_was_meant(written: str, nearest: str | None) -> None:
    assert nearest_key(written, KEYS) == nearest


@settings(deadline=None)
@given(st.sampled_from(sorted(KEYS)), st.data())
def test_a_key_with_one_letter_missing_is_found_again(dotted: str, data: st.DataObject) -> None:
    section, _, name = dotted.rpartition(".")
    if len(name) < 6:
        return
    gap = data.draw(st.integers(0, len(name) - 1))
    misspelt = f"{section}.{name[:gap]}{name[gap + 1 :]}"
    assert nearest_key(misspelt, KEYS) == dotted
