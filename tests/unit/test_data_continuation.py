"""What other training data mean for each source of a run that goes on."""

from __future__ import annotations

from attnres_train.data.continuation import continuation


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
