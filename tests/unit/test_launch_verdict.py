"""Which of several endings is told as the cause."""

from __future__ import annotations

import pytest

from attnres_train.errors import ExitCode
from attnres_train.launch.missing import heard_of_watchdog, missing_in_words, waited_in_vain
from attnres_train.launch.record import End, Record, newest
from attnres_train.launch.verdict import LauncherWords, is_own_word, judge, killed_in_words, silent_ends


def record(rank: int, end: End | None = None, time: float = 0.0, reason: str = "why", step: int | None = 3) -> Record:
    host = f"node-{rank // 2}"
    return Record(
        rank, host, 100 + rank, 0.0, time, "training", step, rank, end, reason, f"run/logs/rank-{rank:04d}.log"
    )


def judged(
    *records: Record,
    local: range = range(2),
    code: int = 1,
    asked: bool = False,
    elsewhere: bool = False,
    alone: bool = False,
) -> tuple[ExitCode, str]:
    verdict = judge({r.rank: r for r in records}, local, code, asked, elsewhere, alone)
    return verdict.code, "\n".join(verdict.lines)


def test_all_done_is_done_and_says_nothing() -> None:
    assert judged(record(0, "done"), record(1, "done"), code=0) == (ExitCode.DONE, "")


def test_a_run_that_is_done_is_done_whatever_became_of_its_launcher() -> None:
    """A stop signal that comes behind the last checkpoint ends torchrun with 1, DeepSpeed's launcher with -15."""
    for code in (1, -15):
        for asked in (True, False):
            assert judged(record(0, "done"), record(1, "done"), code=code, asked=asked) == (ExitCode.DONE, "")
    early = record(0, "done", step=None), record(1, "stopped", step=None)
    assert judged(*early, asked=True)[0] is ExitCode.STOPPED_ON_SIGNAL, "there was nothing to train"


def test_what_the_launcher_says_is_wanted_only_where_no_rank_says_why() -> None:
    assert judge({}, range(2), 1, asked=False).unexplained
    assert not judge({0: record(0, "failed")}, range(1), 1, asked=False).unexplained
    assert judge({}, range(2), 2, asked=False).code is ExitCode.REFUSED, "every rank refused before it had a folder"
    assert is_own_word("[2026-01-01 10:00:00,123] [ERROR] [launch.py:326:sigkill_handler] ['python'] exits with 1")
    assert is_own_word("node-b: [2026-01-01 10:00:00,123] [INFO] [runner.py:3:main] cmd") and not is_own_word("[1, 2]")


@pytest.mark.parametrize("other", ["lost", "timeout", "stopped"])
def test_the_rank_with_an_error_of_its_own_is_the_cause_however_late(other: End) -> None:
    code, told = judged(record(0, other, time=1.0), record(1, "failed", time=9.0, reason="ValueError: no"))
    assert code is ExitCode.FAILED
    assert "cause: rank 1 on node-0, at step 3 (training): ValueError: no" in told
    assert told.endswith("log:   run/logs/rank-0001.log") and "rank 0" not in told


def test_of_two_errors_the_earlier_counts_also_from_another_node() -> None:
    _, told = judged(record(0, "failed", 5.0), record(1, "lost", 1.0), record(3, "killed", 4.0, "killed by signal 9"))
    assert "cause: rank 3 on node-1" in told and "killed by signal 9" in told


def test_a_lost_connection_is_never_shown_and_the_silent_node_is() -> None:
    code, told = judged(record(0, "lost", reason="Connection closed by peer"), record(1, "lost"), record(2), record(3))
    assert code is ExitCode.FAILED and "Connection" not in told
    assert "another node (node-1) ended without a word" in told and "rank 2 on node-1, at step 3" in told
    _, alone = judged(record(0, "lost", reason="Connection closed by peer"), record(1, "stopped"))
    assert "Connection" not in alone and "another node, whose launcher's last lines name it" in alone


def test_a_rank_that_ends_early_with_code_0_is_a_failure() -> None:
    """The launcher takes it for done; the rank wrote no end."""
    gone = {0: record(0, "done"), 1: record(1)}
    (found,) = silent_ends(gone, range(2), alive=(), words=LauncherWords.none(), now=1.0)
    assert found.rank == 1
    code, told = judged(*gone.values(), code=0)
    assert code is ExitCode.FAILED and "cause: rank 1" in told and "ended without a word" in told
    code, told = judged(record(0, "done"), code=0)
    assert code is ExitCode.FAILED and "rank 1 never began" in told


def test_what_the_launchers_say_of_a_killed_rank_is_heard() -> None:
    words = LauncherWords.none()
    for line in (
        "E1130 api.py:1025] failed (exitcode: -11) local_rank: 0 (pid: 100) of binary: /usr/bin/python",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -9 (pid: 777)  (SIGKILL)",
    ):
        words.hear(line)
    assert (words.of(0, 100), words.of(1, None), words.of(2, 102)) == (-11, -9, None)
    words.hear("[ERROR] [launch.py:1:sigkill_handler] ['python'] exits with return code = -9")
    assert words.of(2, 102) == -9
    ends = silent_ends({0: record(0)}, range(2), (), words, now=2.0)
    assert [(r.rank, r.end) for r in ends] == [(0, "killed"), (1, "killed")]
    assert "signal 11 (SIGSEGV)" in ends[0].reason and "memory" not in ends[0].reason
    assert "signal 9 (SIGKILL): most often memory" in ends[1].reason
    assert "code 0 before" in killed_in_words(0) and "without a word" in killed_in_words(None)


def test_what_the_launcher_ended_before_it_could_say_so_is_not_the_cause() -> None:
    words = LauncherWords({}, {0: -15, 1: -9})
    ends = silent_ends({}, range(2), (), words, now=2.0)
    assert "cause: rank 1" in judged(*ends)[1] and "SIGKILL" in judged(*ends)[1]


def test_ranks_that_are_alive_or_said_how_they_ended_are_not_silent() -> None:
    assert silent_ends({0: record(0), 1: record(1, "done")}, range(2), {100}, LauncherWords.none(), 1.0) == []


def test_a_refusal_is_code_2_and_its_words_come_last_once() -> None:
    assert judged(record(0, "refused", step=None), record(1, "refused", step=None)) == (
        ExitCode.REFUSED, "refused:\nwhy\nrefused; nothing was trained (exit code 2)",
    )  # fmt: skip
    _, told = judged(record(2, "refused", reason="the reason"), record(3, "lost"), local=range(2, 4))
    assert told.startswith("refused:\nthe reason")
    assert judged(record(0, "refused"), record(1, "failed"))[0] is ExitCode.FAILED


def test_a_stop_is_code_3_only_if_every_rank_says_so() -> None:
    assert judged(record(0, "stopped"), record(1, "stopped"))[0] is ExitCode.STOPPED_ON_SIGNAL
    assert judged(record(0, "stopped"), record(1, "killed"))[0] is ExitCode.FAILED
    assert judged(record(0, "stopped"), record(1, "killed"), asked=True)[0] is ExitCode.FAILED
    assert judged(code=-15, asked=True)[0] is ExitCode.STOPPED_ON_SIGNAL
    assert judged(code=1)[0] is judged(record(0, "stopped", step=None))[0] is ExitCode.FAILED, "some said nothing"
    early = record(0, "stopped", step=None), record(1, "lost", step=None)
    assert judged(*early, asked=True)[0] is ExitCode.STOPPED_ON_SIGNAL
    assert judged(*early)[0] is ExitCode.FAILED


@pytest.mark.parametrize("other", ["lost", "stopped"])
def test_a_stop_of_one_rank_before_the_first_step_is_one_where_there_is_no_other_node(other: End) -> None:
    """The others lose that rank, or are ended by their launcher; a rank that was lost leaves a sign of failure."""
    stop, lost = record(1, "stopped", 1.0, step=None), record(0, other, 2.0, step=None)
    assert judged(stop, lost, alone=True, elsewhere=other == "lost")[0] is ExitCode.STOPPED_ON_SIGNAL
    assert judged(stop, lost, alone=True, code=-9)[0] is ExitCode.FAILED, "the launcher was killed"
    for end in ("failed", "killed", "timeout", None):
        assert judged(stop, lost, record(2, end, 3.0, step=None), local=range(3), alone=True)[0] is ExitCode.FAILED
    assert judged(stop, alone=True)[0] is ExitCode.FAILED, "one said nothing"


def test_a_lost_rank_is_no_stop_where_it_was_lost_first_or_trained_or_has_other_nodes() -> None:
    stop, lost = record(1, "stopped", 1.0, step=None), record(0, "lost", 2.0, step=None)
    assert judged(stop, lost)[0] is ExitCode.FAILED, "another node may have failed"
    assert judged(stop, record(0, "lost", 0.5, step=None), alone=True)[0] is ExitCode.FAILED, "ended by the launcher"
    assert judged(stop, record(0, "lost", 2.0, step=1), alone=True)[0] is ExitCode.FAILED


def test_a_killed_launcher_is_named() -> None:
    code, told = judged(record(0, "done"), record(1, "stopped"), code=-9)
    assert code is ExitCode.FAILED and "the launcher itself was killed by signal 9 (SIGKILL)" in told


def test_a_rank_that_its_launcher_ended_before_it_listened_is_no_cause_where_another_was_stopped() -> None:
    """By the launcher's SIGTERM, for which it had no handler yet."""
    stopped = record(1, "stopped", time=2.0, step=None)
    ended = record(0, "killed", time=3.0, reason=killed_in_words(-15), step=None)
    assert judged(ended, stopped, alone=True)[0] is ExitCode.STOPPED_ON_SIGNAL
    first = record(0, "killed", time=1.0, reason=killed_in_words(-15), step=None)
    assert judged(first, stopped, alone=True)[0] is ExitCode.FAILED
    crashed = record(0, "killed", time=3.0, reason=killed_in_words(-11), step=None)
    assert judged(crashed, stopped, alone=True)[0] is ExitCode.FAILED


def test_the_newest_record_of_a_rank_counts() -> None:
    assert newest([record(0, "failed", 2.0), record(0, None, 1.0)])[0].end == "failed"


def point(rank: int, time: float, moves: int, stuck: str | None = None, waits: bool = False) -> Record:
    return Record(rank, f"node-{rank}", 1, 0.0, time, "training", 4, moves, stuck=stuck, waits=waits)


def test_who_is_missing_when_a_wait_ends() -> None:
    mine = point(0, 9, 7)
    waiting = {1: point(1, 9, 7, "torch all_reduce", waits=True)}
    then = {1: point(1, 5, 7)}
    busy = missing_in_words(
        mine, then | {2: point(2, 5, 7)}, waiting | {2: point(2, 9, 7, "loader.py:3 read")}, range(3)
    )
    assert busy == "missing: rank 2 on node-2, at step 4 (training), stack: loader.py:3 read"
    behind = missing_in_words(
        mine, then | {2: point(2, 5, 6)}, waiting | {2: point(2, 9, 6, "disk.py:1 wait", True)}, range(3)
    )
    assert behind == "missing: rank 2 on node-2, at step 4 (training), stack: disk.py:1 wait"
    silent = missing_in_words(mine, then | {2: point(2, 5, 7)}, waiting | {2: point(2, 5, 7)}, range(3))
    assert "rank 2 on node-2" in silent and "does not answer" in silent and "rank 1" not in silent
    assert "rank 2, which never said" in missing_in_words(mine, then, waiting, range(3))
    ended = point(2, 9, 7)
    ended.end, ended.reason = "failed", "KeyError: 1"
    assert "ended (failed: KeyError: 1)" in missing_in_words(mine, then, waiting | {2: ended}, range(3))
    assert "every rank answers" in missing_in_words(mine, then, waiting, range(2))


WATCHDOG = (
    "[rank0]:[E1201 10:01:02.345 ProcessGroupNCCL.cpp:688] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=10000) ran for 10051 milliseconds before "
    "timing out."
)


@pytest.mark.parametrize(("heard", "codes"), [(True, {100: -6, 101: -6}), (False, {100: -6, 101: -6}), (True, {})])
def test_a_rank_that_hangs_is_named_and_not_those_whose_watchdog_aborted(heard: bool, codes: dict[int, int]) -> None:
    """Under NCCL who waits is aborted, and who is waited for lives on until the launcher ends it."""
    words = LauncherWords(codes, {})
    if heard:
        words.hear(WATCHDOG)
    stack = "pipeline.py:130 _totals"
    records = {0: point(0, 9, 7, stack, True), 1: point(1, 9, 7, stack, True), 2: point(2, 9, 7, "files.py:3 read")}
    for rank, each in records.items():
        each.pid = 100 + rank
    ended = silent_ends(records, range(2), alive={102}, words=words, now=10.0)
    operations = {r.rank: name for r in ended if (name := words.waited(r)) is not None}
    waited_in_vain(ended, operations, {}, records)
    code, told = judged(*records.values(), local=range(3), code=1)
    assert code is ExitCode.FAILED
    assert "missing: rank 2 on node-2, at step 4 (training), stack: files.py:3 read" in told
    assert ("WorkNCCL(SeqNum=12, OpType=ALLREDUCE" in told) is heard
    assert "SIGABRT" not in told


def test_the_watchdog_of_a_group_is_told_by_the_rank_of_the_world() -> None:
    """Inside its group a rank has another number (the line of vipshop/cache-dit#761)."""
    found = "WorkNCCL(SeqNum=472025, OpType=ALLTOALL_BASE, Timeout(ms)=1800000) ran for 1800077 milliseconds"
    where = "[default3]:[rank3]:[E1201 10:00:01 ProcessGroupNCCL.cpp:688] [PG ID 2 PG GUID 5(mesh_ulysses) Rank 0]"
    heard = heard_of_watchdog(f"{where} Watchdog caught collective operation timeout: {found} before timing out.")
    assert heard == (3, f"{found} before timing out")
    assert heard_of_watchdog("terminate called after throwing an instance of 'c10::DistBackendError'") is None


def test_a_rank_that_aborts_where_it_does_not_wait_is_its_own_cause() -> None:
    words, aborted = LauncherWords({1: -6}, {}), point(0, 9, 7, "ops.py:3 launch")
    (ended,) = silent_ends({0: aborted}, range(1), (), words, 10.0)
    assert words.waited(ended) is None
    assert "SIGABRT" in judged(ended, local=range(1), code=1)[1]


@pytest.mark.parametrize("code", [-9, 247, 137, -11])
def test_a_launcher_that_was_killed_is_a_failure_though_its_ranks_saved(code: int) -> None:
    saved = (record(0, "stopped", step=7), record(1, "stopped", step=7))
    ended, told = judged(*saved, code=code)
    assert ended is ExitCode.FAILED
    assert "cause: the launcher itself was killed by signal" in told and "saved and ended in step 7" in told
    assert judged(*saved, code=code, asked=True)[0] is ExitCode.STOPPED_ON_SIGNAL, "somebody wanted an end"


@pytest.mark.parametrize("code", [1, 3, -15, 143, -2])
def test_a_launcher_that_was_asked_to_stop_is_none(code: int) -> None:
    saved = (record(0, "stopped"), record(1, "stopped"))
    assert judged(*saved, code=code)[0] is ExitCode.STOPPED_ON_SIGNAL
    ended, told = judged(*saved, code=code, elsewhere=True)
    assert ended is ExitCode.FAILED and "cause: a launcher of another node is gone" in told


def test_a_wait_in_vain_says_more_than_a_lost_connection() -> None:
    """It names who was missing, however late the limit came."""
    _, told = judged(record(0, "lost", 1.0), record(1, "timeout", 9.0, "rank 3 did not come"))
    assert "cause: rank 1 on node-0" in told and "rank 3 did not come" in told
