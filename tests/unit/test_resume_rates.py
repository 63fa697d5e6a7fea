"""What a resume says of the learning rate when its settings changed."""

from __future__ import annotations

from attnres_train.trainer.resume import rate_lines

SETTINGS = {
    "training.steps": 20,
    "optimizer.learning_rate": 6e-4,
    "schedule.kind": "constant",
    "schedule.warmup_steps": 4,
    "schedule.decay_steps": None,
    "schedule.min_learning_rate": 0.0,
}


def told(**changes: object) -> list[str]:
    return list(rate_lines(SETTINGS, SETTINGS | {key.replace("__", "."): value for key, value in changes.items()}, 11))


def test_nothing_is_said_where_nothing_changed() -> None:
    assert told() == [] == told(training__steps=40)


def test_a_new_schedule_holds_from_the_first_step_on() -> None:
    (line,) = told(optimizer__learning_rate=3e-4, schedule__kind="cosine", schedule__min_learning_rate=3e-5)
    # cosine from 3e-4 to 3e-5 over steps 4 to 20, at step 11
    assert line == "learning rate of step 11: would have been 0.0006, is 0.000191337"


def test_more_steps_say_whether_the_decay_goes_along() -> None:
    cosine = SETTINGS | {"schedule.kind": "cosine"}
    stretched = list(rate_lines(cosine, cosine | {"training.steps": 40}, 11))
    assert stretched[1] == "the decay goes along: it ends at training.steps = 40"
    kept = cosine | {"schedule.decay_steps": 20}
    zero = ", and the rate is 0 from step 21 on: nothing is learnt there unless you raise it"
    ends = "the decay is kept: it ends at schedule.decay_steps = 20"
    assert list(rate_lines(kept, kept | {"training.steps": 40}, 11)) == [ends + zero], "mosaicml/composer#1384"
    floored = kept | {"schedule.min_learning_rate": 1e-5}
    assert list(rate_lines(floored, floored | {"training.steps": 40}, 11)) == [ends]
