"""Every kind of line of a hostfile, accepted or refused with its place and text."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres_train.errors import Refused
from attnres_train.launch.hostfile import Host, parse_hostfile, read_hostfile

GOOD = {
    "plain": "node-a slots=2\nnode-b slots=4\n",
    "blank lines and comments": "# two nodes\n\nnode-a slots=2   # the first\n   \nnode-b\tslots=4",
    "CR LF": "node-a slots=2\r\n\r\nnode-b slots=4\r\n",
    "indented": "   node-a   slots=02\n node-b slots=4",
}
BAD = {
    "misspelt": ("node-a slot=2", "'slot=2'"),
    "misspelt key, right number": ("node-a Slots=2", "'Slots=2'"),
    "no slots": ("node-a", "how many slots"),
    "no number": ("node-a slots=", "number"),
    "not a number": ("node-a slots=two", "'two'"),
    "negative": ("node-a slots=-1", "'-1'"),
    "other digits": ("node-a slots=٣", "'٣'"),
    "zero": ("node-a slots=0", "0 slots"),
    "zeros": ("node-a slots=00", "0 slots"),
    "spaces": ("node-a slots = 2", "spaces round `=`"),
    "a space": ("node-a slots= 2", "spaces round `=`"),
    "user": ("me@node-a slots=2", "a user"),
    "more": ("node-a slots=2 max_slots=4", "'max_slots=4'"),
    "glued": ("node-a slots=2#four", "'2#four'"),
    "name": ("nöde slots=2", "not a host name"),
    "mark": ("\ufeffnode-a slots=2", "not a host name"),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_what_is_meant_is_read(text: str) -> None:
    assert parse_hostfile(text, "hosts") == [Host("node-a", 2), Host("node-b", 4)]


def test_addresses_are_hosts() -> None:
    assert parse_hostfile("10.0.0.1 slots=1\nfe80::1 slots=1", "hosts") == [Host("10.0.0.1", 1), Host("fe80::1", 1)]


@pytest.mark.parametrize(("line", "told"), BAD.values(), ids=BAD)
def test_what_is_not_is_refused_with_file_line_and_text(line: str, told: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_hostfile(f"# hosts\r\n\r\nnode-z slots=1\r\n{line}\r\n", "etc/hosts.txt")
    (problem,) = refused.value.problems
    assert problem.key == "etc/hosts.txt:4" and told in problem.message and repr(line.strip()) in problem.message
    assert problem.remedy


def test_a_host_twice_names_both_lines_and_all_faults_come_at_once() -> None:
    with pytest.raises(Refused) as refused:
        parse_hostfile("node-a slots=1\nnode-b slots=0\nNODE-A slots=2\n", "hosts")
    first, second = refused.value.problems
    assert first.key == "hosts:2" and second.key == "hosts:3" and "on line 1 already" in second.message


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_a_file_without_hosts_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="names no host"):
        parse_hostfile(text, "hosts")


def test_a_missing_file_is_never_this_machine_alone(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="No such file"):
        read_hostfile(tmp_path / "hosts")
    with pytest.raises(Refused, match="Is a directory"):
        read_hostfile(tmp_path)
    (tmp_path / "hosts").write_bytes(b"\xff\xfe")
    with pytest.raises(Refused, match="not text: byte 0xff"):
        read_hostfile(tmp_path / "hosts")
