"""What other training data mean for each source of a run that goes on."""

from __future__ import annotations

from attnres_train.data.continuation import continuation, other_bytes, other_validation


def test_the_same_blend_says_where_each_source_goes_on() -> None:
    same = {"a": 3.0, "b": 1.0}
    assert continuation(400, same, same, {"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == [
        "a: goes on at its draw 300",
        "b: goes on at its draw 100",
    ]


def test_other_weights_say_what_comes_again_and_what_is_passed_over() -> None:
    assert continuation(400, {"a": 3.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, {}, {}) == [
        "a: 300 drawn so far, goes on at its draw 200: 100 come again",
        "b: 100 drawn so far, goes on at its draw 200: 100 are passed over",
    ]


def test_new_changed_and_dropped_sources_are_named() -> None:
    told = continuation(100, {"a": 1.0, "b": 1.0}, {"a": 1.0, "c": 1.0, "b": 0.0}, {"a": "1"}, {"a": "2", "c": "3"})
    assert told == [
        "a: goes on at its draw 50",
        "c: new; begins at its draw 50, as if it had been there from the start",
        "a: another corpus, so its samples are in another order: some come again",
        "b: no longer drawn from, after 50 samples",
    ]


def test_a_validation_set_that_is_new_or_gone_is_other_data() -> None:
    settings = {"data.valid": {"web": {"a": 1.0}}}
    assert not other_validation({"valid": "1"}, settings, {"valid": "1"})
    assert other_validation({"valid": "1"}, settings, {"valid": "2"})
    assert other_validation({}, settings, {"valid": "1"}), "it is new"
    assert other_validation({"valid": "1"}, settings, {}), "it is gone"
    assert other_validation({"valid": "1"}, settings, {"valid": "1", "valid/books": "2"})


def test_another_token_anywhere_is_told_where_all_were_read() -> None:
    """Of a mark DRAW:INDEX:BLOCKS:ALL the last part, which neither of the others shows."""
    settings = {"data.train": {"a": 1.0}}

    def told(was: str, now: str) -> dict[str, str]:
        return other_bytes(settings, {"bytes a": was}, settings, {"bytes a": now})

    assert told("1:i:b:x", "1:i:b:x") == told("1:i:b:", "1:i:b:x") == told("1:i:b:x", "2:j:c:y") == {}
    assert told("1:i:b:x", "1:i:b:y") == {"a": "a token anywhere differ"}
    assert told("1:i:b:x", "1:j:c:y") == {
        "a": "the lengths of its documents and tokens at places that were drawn differ"
    }
