"""The worker pool: order, bounded look-ahead, and deaths that are told at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from attnres_train.errors import Refused, refuse
from data_tools.pool import IN_HAND, Advance, WorkerPool


def sleepy_square(number: int, advance: Advance) -> int:
    time.sleep(0.01 * (number % 3 == 0))
    return number * number


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_results_come_in_the_order_of_the_items(workers: int, count: int) -> None:
    with WorkerPool(sleepy_square, workers) as pool:
        assert list(pool.map(range(count))) == [number * number for number in range(count)]


def test_results_larger_than_a_pipe_holds_come_through() -> None:
    def work(size: int, advance: Advance) -> bytes:
        return b"x" * size

    with WorkerPool(work, 2) as pool:
        sizes = [3_000_000, 1, 5_000_000, 2, 3]
        assert [len(result) for result in pool.map(sizes)] == sizes


def test_no_worker_is_handed_more_than_it_works_on_next() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield number

    with WorkerPool(sleepy_square, 2) as pool:
        for _ in pool.map(items()):
            finished = sum(1 for worker in pool._workers for _ in worker.items)
            assert finished <= 2 * IN_HAND
    assert taken == 100


@pytest.mark.parametrize("workers", [1, 3])
def test_progress_is_the_sum_over_the_workers(workers: int) -> None:
    def work(number: int, advance: Advance) -> int:
        advance(10)
        advance(1, tokens=number)
        return number

    told: list[tuple[int, int]] = []
    with WorkerPool(work, workers, lambda read_bytes, tokens: told.append((read_bytes, tokens))) as pool:
        list(pool.map(range(20)))
    assert told[-1] == (220, 190)
    assert told == sorted(told)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("error", [refuse("a.jsonl:3", "is wrong", "mend it"), OSError(28, "No space left", "c.bin")])
def test_what_speaks_for_itself_comes_through_as_it_is(workers: int, error: Exception) -> None:
    def work(number: int, advance: Advance) -> int:
        if number == 4:
            raise error
        return number

    with pytest.raises(type(error)) as raised, WorkerPool(work, workers) as pool:
        list(pool.map(range(10)))
    assert str(raised.value) == str(error)
    assert getattr(raised.value, "problems", None) == getattr(error, "problems", None)


@pytest.mark.parametrize("after_seconds", [0.0, 0.2])
def test_a_killed_worker_is_refused_naming_the_signal(after_seconds: float) -> None:
    def work(number: int, advance: Advance) -> int:
        if number == 7:
            time.sleep(after_seconds)
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    started = time.monotonic()
    with pytest.raises(Refused, match="killed by signal 9.*\n.*memory"), WorkerPool(work, 2) as pool:
        list(pool.map(range(1000)))
    assert time.monotonic() - started < 20, "nobody waits for the dead one"


def test_a_worker_that_exits_is_refused_with_its_exit_code() -> None:
    def work(number: int, advance: Advance) -> int:
        os._exit(4)

    with pytest.raises(Refused, match="ended with exit code 4"), WorkerPool(work, 2) as pool:
        list(pool.map(range(10)))


def test_an_error_in_a_worker_is_raised_with_its_traceback() -> None:
    def work(number: int, advance: Advance) -> float:
        return 1 / (number - 3)

    with pytest.raises(RuntimeError, match="ZeroDivisionError"), WorkerPool(work, 2) as pool:
        list(pool.map(range(10)))


def test_a_single_worker_of_its_own_ends_with_the_block_and_progress_is_told_until_then() -> None:
    told: list[int] = []

    def tell(read_bytes: int, tokens: int) -> None:
        told.append(read_bytes)
        if len(told) == 2:
            raise KeyboardInterrupt

    def work(number: int, advance: Advance) -> int:
        assert os.getpid() != this
        time.sleep(60)
        return number

    this = os.getpid()
    with pytest.raises(KeyboardInterrupt), WorkerPool(work, 1, tell, fork=True) as pool:
        (worker,) = pool._workers
        list(pool.map([1]))
    assert told == [0, 0] and not worker.process.is_alive()


def test_no_worker_is_left_after_an_error_of_the_items() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise LookupError

    with pytest.raises(LookupError), WorkerPool(sleepy_square, 3) as pool:
        processes = [worker.process for worker in pool._workers]
        list(pool.map(items()))
    assert not any(process.is_alive() for process in processes)
