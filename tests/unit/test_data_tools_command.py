"""What all tools share: help, exit codes, the report, and quick starts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from attnres_train.errors import refuse
from data_tools.command import Report, Tool, report_lines

ROOT = Path(__file__).parents[2]
TOOLS = ["preprocess", "train_tokenizer", "split", "inspect", "state_of_the_union"]


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_explains_itself_without_torch(tool: str) -> None:
    code = (
        f"import runpy, sys; sys.argv = ['x', '--help']\n"
        f"try: runpy.run_module('data_tools.{tool}', run_name='__main__')\n"
        f"except SystemExit as end: assert end.code == 0\n"
        f"assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert f"python -m data_tools.{tool}" in result.stdout and "--json" in result.stdout


def test_a_refusal_is_told_in_words_and_as_json_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def tool(_: object) -> Report:
        raise refuse("file:3", "is wrong", "mend it")

    assert Tool("test", "", lambda parser: None, tool)(["--json"]) == 2
    captured = capsys.readouterr()
    assert "file:3: is wrong\n    -> mend it" in captured.err
    assert json.loads(captured.out) == {
        "status": "refused",
        "problems": [{"key": "file:3", "message": "is wrong", "remedy": "mend it"}],
    }


@pytest.mark.parametrize(
    "names, told, place",
    [(("c.bin.partial",), ": 'c.bin.partial'", "there"), ((), "", "for c and temporary files (TMPDIR)")],
)
def test_a_failure_of_the_machine_is_told_with_its_remedy_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], names: tuple[str, ...], told: str, place: str
) -> None:
    def tool(_: object) -> Report:
        raise OSError(28, "No space left on device", *names)

    main = Tool("test", "", lambda parser: parser.add_argument("--output"), tool)
    assert main(["--output", "c"]) == 1
    assert capsys.readouterr().err == (
        f"failed: [Errno 28] No space left on device{told}\n    -> free space {place}, or write to another disk\n"
    )


def test_a_report_for_people_has_one_fact_a_line() -> None:
    report = {
        "status": "done",
        "tokens": 1234567,
        "keeps_text": True,
        "rate": 1.234,
        "skipped": [{"line": 3}],
    }
    assert list(report_lines(report)) == [
        "status: done",
        "tokens: 1,234,567",
        "keeps text: yes",
        "rate: 1.23",
        "skipped:",
        "  line 3",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_tool_is_interrupted_in_a_word_while_its_modules_are_read(tmp_path: Path, number: int) -> None:
    # The first thing that each tool imports stands for all of them.
    (tmp_path / "argparse.py").write_text(f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "data_tools.merge", "a"]
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    # A shell that starts these tests in the background has them ignore the first of the two.
    usual = partial(signal.signal, number, signal.SIG_DFL)
    done = subprocess.run(command, env=path, cwd=tmp_path, capture_output=True, text=True, timeout=50, preexec_fn=usual)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "interrupted\n")
