"""The variables that name network interfaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres_train.doctor.look import _checks
from attnres_train.errors import Refused
from attnres_train.launch.interfaces import interfaces, nccl_settings, refuse_wrong_interfaces

HERE = {"lo": "127.0.0.1", "eth0": "192.0.2.2", "eth1": None, "ib0": "fe80::1"}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("GLOO_SOCKET_IFNAME", "eth9", "there is no interface 'eth9'"),
        ("GLOO_SOCKET_IFNAME", "eth0,eth9", "there is no interface 'eth9'"),
        ("GLOO_SOCKET_IFNAME", "eth", "there is no interface 'eth'"),
        ("GLOO_SOCKET_IFNAME", "^lo", "are NCCL's; here stand exact names"),
        ("GLOO_SOCKET_IFNAME", "=eth0", "are NCCL's; here stand exact names"),
        ("GLOO_SOCKET_IFNAME", "eth1", "eth1 has no address"),
        ("TP_SOCKET_IFNAME", "eth9", "there is no interface 'eth9'"),
        ("NCCL_SOCKET_IFNAME", "en,wl", "no interface begins with 'en' or 'wl'"),
        ("NCCL_SOCKET_IFNAME", "=eth", "no interface is called 'eth'"),
        ("NCCL_SOCKET_IFNAME", "^lo,eth,ib", "leaves no interface"),
        ("NCCL_SOCKET_IFNAME", "eth1", "eth1 has no address"),
    ],
)
def test_one_that_leads_nowhere_is_refused_with_those_that_there_are(name: str, value: str, told: str) -> None:
    with pytest.raises(Refused) as refused:
        refuse_wrong_interfaces({name: value}, HERE)
    (problem,) = refused.value.problems
    assert problem.key == name and repr(value) in problem.message and told in problem.message
    assert "here are lo (127.0.0.1), eth0 (192.0.2.2), eth1 (no address), ib0 (fe80::1)" in problem.message
    assert f"export {name}=eth0" in problem.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [("GLOO_SOCKET_IFNAME", one) for one in ("lo", "eth0", "lo,eth0", "ib0", "")]
    + [("NCCL_SOCKET_IFNAME", one) for one in ("eth", "=eth0", "^lo", "^=eth0", "eth0:5000", "wl,ib", "")],
)
def test_what_gloo_and_nccl_read_themselves_is_let_through(name: str, value: str) -> None:
    refuse_wrong_interfaces({name: value}, HERE)


def test_the_loopback_joins_no_two_machines() -> None:
    for name, value in (("GLOO_SOCKET_IFNAME", "lo"), ("NCCL_SOCKET_IFNAME", "=lo")):
        with pytest.raises(Refused, match="lo leads to this machine alone"):
            refuse_wrong_interfaces({name: value}, HERE, several_nodes=True)
    refuse_wrong_interfaces({"GLOO_SOCKET_IFNAME": "lo,eth0"}, HERE, several_nodes=True)


def test_the_interfaces_of_this_machine() -> None:
    assert interfaces()["lo"] == "127.0.0.1"


def test_the_doctor_tells_of_them_and_of_an_own_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such")
    monkeypatch.setattr("socket.gethostname", lambda: "no.such.host.invalid")
    told = "\n".join(_checks(None))
    assert "own name 'no.such.host.invalid' does not resolve: the launch scripts do without it on one machine" in told
    assert "PROBLEM: GLOO_SOCKET_IFNAME: 'no-such': there is no interface 'no-such'; here are lo (127.0.0.1)" in told


def test_what_nccl_reads_in_its_files_is_not_overruled(tmp_path: Path) -> None:
    """The environment has the last word with NCCL, so what a script adds there would overrule the machine's file."""
    home = {"HOME": "/home/me"}
    assert nccl_settings(home, tmp_path) == nccl_settings({}, tmp_path) == {}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("# of this machine\nNCCL_SOCKET_IFNAME=ib0\nNCCL_DEBUG=WARN\nPATH=/bin\n")
    assert nccl_settings(home, tmp_path) == {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_DEBUG": "WARN"}
    (tmp_path / "home/me").mkdir(parents=True)
    (tmp_path / "home/me/.nccl.conf").write_text("NCCL_SOCKET_IFNAME=eth1\n")
    assert nccl_settings(home, tmp_path)["NCCL_SOCKET_IFNAME"] == "eth1"
    named = tmp_path / "named.conf"
    named.write_text("NCCL_SOCKET_IFNAME=eth2\n")
    assert nccl_settings(home | {"NCCL_CONF_FILE": str(named)}, tmp_path)["NCCL_SOCKET_IFNAME"] == "eth2"
