"""The next step is read while this one runs. Order is told by events; times only keep a failure from hanging."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from attnres_train.data.ahead import ReadAhead
from attnres_train.data.corpus import Sample
from attnres_train.data.loader import Batch, collate
from attnres_train.errors import Refused, refuse

SAMPLES_A_STEP = 4
PATIENCE_SECONDS = 60


class SlowLoader:
    """Reads of positions in `held` do not end until they are released; those in `broken` fail."""

    def __init__(self, held: tuple[int, ...] = (), broken: tuple[int, ...] = ()):
        self.begun: list[int] = []
        self.begins = {position: threading.Event() for position in held}
        self.released = {position: threading.Event() for position in held}
        self.broken = broken
        self._alone = threading.Lock()

    def step(self, consumed_samples: int) -> list[Batch]:
        assert self._alone.acquire(blocking=False), "two reads at once"
        self.begun.append(consumed_samples)
        if consumed_samples in self.begins:
            self.begins[consumed_samples].set()
            assert self.released[consumed_samples].wait(PATIENCE_SECONDS), "never released"
        self._alone.release()
        if consumed_samples in self.broken:
            raise refuse("corpus/train: sample 7", "holds id 9", "copy the pair again")
        return [collate([Sample(str(consumed_samples), np.arange(3))])]


def ids(batches: list[Batch]) -> list[str]:
    return [name for batch in batches for name in batch.sample_ids]


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


def test_a_step_runs_while_the_next_one_is_read() -> None:
    loader = SlowLoader(held=(4,))
    with ReadAhead(loader, SAMPLES_A_STEP) as ahead:
        assert ids(ahead.step(0)) == ["0"]
        # The step is under way here, and the read of the next one is, too: begun, and not yet released.
        assert loader.begins[4].wait(PATIENCE_SECONDS)
        assert loader.begun == [0, 4]
        loader.released[4].set()
        assert ids(ahead.step(4)) == ["4"]
        assert ids(ahead.step(8)) == ["8"]
    assert loader.begun == [0, 4, 8, 12], "nothing is read twice"


def test_an_error_is_raised_at_its_own_step_with_its_words_and_a_new_try_reads_again() -> None:
    loader = SlowLoader(broken=(4,))
    with ReadAhead(loader, SAMPLES_A_STEP) as ahead:
        assert ids(ahead.step(0)) == ["0"]
        with pytest.raises(Refused, match="corpus/train: sample 7: holds id 9") as raised:
            ahead.step(4)
        assert any(entry.name == "step" and "test_data_ahead" in str(entry.path) for entry in raised.traceback)
        loader.broken = ()
        assert ids(ahead.step(4)) == ["4"]


def test_another_position_is_read_anew_after_the_read_under_way() -> None:
    loader = SlowLoader(held=(4,), broken=(4,))
    with ReadAhead(loader, SAMPLES_A_STEP) as ahead:
        ahead.step(0)
        threading.Timer(0.05, loader.released[4].set).start()
        assert ids(ahead.step(40)) == ["40"], "the error of a step nobody asks for is nobody's"
        assert ids(ahead.step(40)) == ["40"]
    assert loader.begun == [0, 4, 40, 44, 40, 44]


def test_leaving_waits_for_the_read_under_way_unless_something_failed() -> None:
    loader = SlowLoader(held=(4, 8))
    with ReadAhead(loader, SAMPLES_A_STEP) as ahead:
        ahead.step(0)
        loader.begins[4].wait(PATIENCE_SECONDS)
        (thread,) = reading_threads()
        threading.Timer(0.05, loader.released[4].set).start()
    assert loader.released[4].is_set(), "left before the read had ended"
    thread.join(PATIENCE_SECONDS)
    assert reading_threads() == []
    with pytest.raises(ZeroDivisionError), ReadAhead(loader, SAMPLES_A_STEP) as ahead:
        ahead.step(4)
        loader.begins[8].wait(PATIENCE_SECONDS)
        raise ZeroDivisionError
    (thread,) = reading_threads()
    assert thread.daemon, "the process may end without it"
    loader.released[8].set()
    thread.join(PATIENCE_SECONDS)
