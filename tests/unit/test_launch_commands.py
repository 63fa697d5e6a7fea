"""What pdsh's hosts make of the words and values that they are sent."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from attnres_train.launch.commands import Launch, command, forwarded, through_pdsh

ODD = [
    "a {b,c}",
    "{b,c}",
    "(d)",
    "'e f'",
    "'",
    '"f"',
    '"f" g',
    "$HOME",
    "$HOME x",
    "`id`",
    "`id` x",
    "$(id) \\ \\\\ x",
    "\\",
]
ODD += [
    "%n",
    "%h 100%",
    "%%",
    "*",
    "~",
    "~ x",
    ";&|<>#",
    "--a.b=c d",
    "",
    "[1, 2]",
    '["x y"]',
    "a\nb",
    "a b\nc",
    "plain",
]


def host(command: str) -> list[str]:
    """What the shell of a host takes from `command`, after pdsh has replaced its %."""
    expanded = command.replace("%%", "\0").replace("%n", "0").replace("%h", "host").replace("\0", "%")
    return subprocess.run(["sh", "-c", expanded], capture_output=True, text=True).stdout.split("\0")[:-1]


@pytest.mark.parametrize("word", ODD)
def test_a_word_comes_as_it_was_written(word: str) -> None:
    sent = through_pdsh(word)
    if " " in sent:  # as DeepSpeed 0.19.8 does
        sent = '"{}"'.format(sent.replace('"', '\\"'))
    assert host(f"printf '%%s\\0' {sent}") == [word]


@pytest.mark.parametrize("value", [word for word in ODD if "\n" not in word])
def test_a_variable_has_the_value_that_it_had(value: str) -> None:
    (line,) = forwarded({"NCCL_X": value, "ATTNRES_JOB": "here", "OTHER": "1"})
    sent = line.partition("=")[2]
    if set(sent) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"):  # as DeepSpeed does
        sent = f'"{sent}"'
    assert host(f"export NCCL_X={sent}; printf '%%s\\0' \"$NCCL_X\"") == [value]


def test_one_machine_needs_no_names() -> None:
    """torchrun would tell ranks the machine's own name, and itself meet at `localhost`: neither need resolve."""
    launch = Launch("torchrun", 2, 1, 0, None, None, False, ["c.toml"])
    assert "--standalone --nproc-per-node 2 --local-addr 127.0.0.1 " in " ".join(command(launch))
    told = " ".join(command(replace(launch, knows_localhost=False)))
    assert "--rdzv-endpoint 127.0.0.1:0 --nproc-per-node 2 --local-addr 127.0.0.1 " in told and "standalone" not in told
