"""The shape of the code: sizes, directions of imports, rooms that must stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*ROOT.glob("attnres_train/**/*.py"), *ROOT.glob("data_tools/*.py")])

# Lower rooms first; a room imports from itself and from those before it.
ROOMS = (
    "launch",
    "depth",
    "model",
    "parallel",
    "engine",
    "checkpoint",
    "exchange",
    "observe",
    "report",
    "ablate",
    "trainer",
    "doctor",
    "cli",
)
SECTIONS = "config"  # every room's own config.py is plain data and may be read from anywhere


@pytest.mark.parametrize("arguments", [["check"], ["format", "--check"]], ids=["lint", "format"])
def test_ruff_has_nothing_to_say(arguments: list[str]) -> None:
    rooms = ["attnres_train", "data_tools", "tests"]
    done = subprocess.run([sys.executable, "-m", "ruff", *arguments, *rooms], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short_and_typed(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 320, "split the file"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 <= 80, f"{node.name} is too long"
            assert node.returns is not None or node.name == "__init__", f"{node.name} has no return type"


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_down_only(room: str) -> None:
    above = ROOMS[ROOMS.index(room) + 1 :]
    for path in (ROOT / "attnres_train" / room).glob("*.py"):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "attnres_train" and len(parts) > 1 and parts[-1] != SECTIONS:
                assert parts[1] not in above, f"{path.name} imports {name}"
                assert parts[1] != "train", f"{path.name} imports {name}"


def test_the_depth_and_the_model_do_not_know_other_ranks() -> None:
    for room in ("depth", "model"):
        for path in (ROOT / "attnres_train" / room).glob("*.py"):
            assert not [name for name in imports(path) if name.startswith("torch.distributed")], path.name


def test_data_tools_import_only_what_lies_below_them() -> None:
    below = ("data", "tokenizer", "errors", "console_encoding", "strict_json", "launch.process", "launch.cores")
    allowed = tuple(f"attnres_train.{name}" for name in below)
    for path in (ROOT / "data_tools").glob("*.py"):
        for name in imports(path):
            assert not name.startswith("attnres_train") or name.startswith(allowed) or name == "attnres_train", name


_OF_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "barrier")


def test_objects_and_barriers_go_over_the_control_group() -> None:
    """Between GPUs every other group would carry them by way of the device, in line with what is computed."""
    for path in SOURCES:
        if path.parent.name == "doctor":  # its own processes
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_OBJECTS:
                groups = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "group"]
                assert groups and groups[0].endswith("control"), f"{path.name}:{node.lineno}"


def test_messages_between_two_ranks_go_over_the_lanes_alone() -> None:
    """NCCL opens a communicator for each two ranks that send singly: seconds and memory each."""
    singly = {"isend", "irecv", "send", "recv", "send_object_list", "recv_object_list"}
    for path in SOURCES:
        if path.parent.name == "doctor" or path.name in ("lane.py", "lanes.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in singly:
                assert ast.unparse(node.value) != "dist", f"{path.name}:{node.lineno}"
