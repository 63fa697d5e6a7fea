"""Reading TOML with line numbers, past errors."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres_train.config.locate import read_located

names = st.text("abcdefgh_", min_size=1, max_size=6)
values = st.sampled_from(
    [
        "1",
        "-3.5e-4",
        "true",
        '"plain"',
        '"a # no comment, = no key, [ no bracket"',
        r'"an escaped \" quote"',
        "'literal \\ text with \"'",
        '"""one\n[not.a.table]\nkey = 3 \\" """',
        "'''two\n# lines\n'''",
        '""" ends in a quote"""" # "[',
        '"""\\""" [ """',
        "[1, 2, 3]",
        "[\n  1, # first\n  2,\n]",
        '{ "a.b/c" = 0.5, d = 0.5 }',
        '["]", "[", """\n]\n"""]',
        "1979-05-27",
    ]
)
keys = st.one_of(names, names.map(lambda n: f'"{n} = #"'), st.tuples(names, names).map(lambda p: f"x{p[0]} . {p[1]}"))


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[tuple[str, ...], int]]:
    """A TOML text and the line of every key in it."""
    lines: list[str] = []
    where = {}
    for table in draw(st.lists(names, max_size=4, unique=True)):
        lines += draw(st.sampled_from([[], [""], ["# [comment]", "   # a = 1"]]))
        lines.append(draw(st.sampled_from([f"[{table}]", f"  [ {table} ] # why"])))
        for key in draw(st.lists(keys, max_size=4, unique=True)):
            text = f"{key} = {draw(values)}{draw(st.sampled_from(['', '  # note', ' ']))}"
            path = (table, *_path(key))
            where[path] = len(lines) + 1
            lines += text.split("\n")
    return "\n".join(lines) + draw(st.sampled_from(["", "\n"])), where


def _path(key: str) -> tuple[str, ...]:
    path, tree = [], tomllib.loads(f"{key} = 0")
    while isinstance(tree, dict):
        ((name, tree),) = tree.items()
        path.append(name)
    return tuple(path)


@settings(deadline=None)
@given(documents(), st.sampled_from(["\n", "\r\n"]))
def test_a_valid_file_reads_as_tomllib_reads_it_and_every_key_has_its_line(
    case: tuple[str, dict[tuple[str, ...], int]], newline: str
) -> None:
    text, where = case
    try:
        wanted = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # two dotted keys that contradict each other
    document = read_located(text.replace("\n", newline))
    assert document.faults == []
    assert document.data == wanted
    assert {path: document.line_of(path) for path in where} == where


@settings(deadline=None)
@given(documents())
def test_statement_by_statement_gives_the_same_values_as_tomllib(case: tuple[str, dict]) -> None:
    """A fault in the first line forces the slow way; it must not change the rest."""
    text, _ = case
    try:
        wanted = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    document = read_located("oops\n" + text)
    assert document.data == wanted
    assert [fault.line for fault in document.faults] == [1]


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_without_an_exception_and_has_a_fault_exactly_if_it_is_not_toml(text: str) -> None:
    document = read_located(text)
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert document.faults
    else:
        assert not document.faults


def faults(text: str) -> list[tuple[int, str]]:
    return [(fault.line, fault.message) for fault in read_located(text).faults]


def test_the_same_key_twice_names_both_lines_and_keeps_the_first() -> None:
    text = "[model]\na = 1\nb = 2\na = 3\n"
    assert faults(text) == [(4, "model.a stands twice, on line 2 and on line 4")]
    assert read_located(text).data == {"model": {"a": 1, "b": 2}}


def test_the_same_section_twice_names_both_lines_and_keeps_the_keys_of_both() -> None:
    text = "[model]\na = 1\n[other]\n[model]\nb = 2\na = 5\n"
    assert faults(text) == [
        (4, "[model] stands twice, on line 1 and on line 4"),
        (6, "model.a stands twice, on line 2 and on line 6"),
    ]
    assert read_located(text).data == {"model": {"a": 1, "b": 2}, "other": {}}


def test_every_broken_line_is_reported_and_the_others_are_read() -> None:
    text = "[model]\nsize = 64k\nlayers = 4\nname = \"open\nheads 4\nflag = True\nlast = 'here'\n"
    document = read_located(text)
    assert document.data == {"model": {"layers": 4, "last": "here"}}
    assert [(fault.line, fault.key) for fault in document.faults] == [
        (2, "model.size"),
        (4, "model.name"),
        (5, None),
        (6, "model.flag"),
    ]
    assert document.faults[0].message == "64k is not TOML"


def test_a_bracket_that_never_closes_does_not_swallow_the_rest() -> None:
    document = read_located("[a]\nlist = [1, 2\n[b]\nc = 3\n")
    assert [(fault.line, fault.message) for fault in document.faults] == [
        (2, "a bracket or quote that opens here is never closed")
    ]
    assert document.data == {"a": {}, "b": {"c": 3}}


def test_a_fault_inside_a_long_value_has_the_line_of_the_fault() -> None:
    assert [line for line, _ in faults("a = [\n  1,\n  x,\n]\nb = 2\n")] == [3], "the lines around it belong to it"
    assert read_located("a = [\n  1,\n  x,\n]\nb = 2\n").data == {"b": 2}


def test_a_value_and_a_table_of_the_same_name_contradict_each_other() -> None:
    assert faults("a = 1\n[a.b]\nc = 2\n")[0] == (2, "a is a value (line 1), so nothing can stand below it")


@pytest.mark.parametrize(
    ("path", "line"), [(("a",), 1), (("a", "k"), 2), (("a", "k", "inner"), 2), (("d",), 4), (("z",), None)]
)
def test_what_has_no_line_of_its_own_gets_that_of_the_thing_around_or_below_it(
    path: tuple[str, ...], line: int | None
) -> None:
    assert read_located("[a]\nk = {inner = 1}\n\n[d.e]\n").line_of(path) == line


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 3000 + "]" * 3000], ids=["digits", "brackets"])
def test_what_python_cannot_read_is_a_fault_of_its_line(value: str) -> None:
    document = read_located(f"a = 1\nb = {value}\nc = 2\n")
    (fault,) = document.faults
    assert (fault.line, fault.key) == (2, "b") and len(fault.message) < 80 and document.data == {"a": 1, "c": 2}
