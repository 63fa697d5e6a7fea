"""The list of mutants keeps up with the code: every one applies, and names tests that are there."""

from __future__ import annotations

import pytest

from tests.mutants.all_rooms import ROOMS
from tests.mutants.mutant import ROOT, Mutant

ALL = [one for mutants in ROOMS.values() for one in mutants]


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.file}: {one.name}")
def test_a_mutant_applies_and_names_tests(one: Mutant) -> None:
    whole = (ROOT / one.file).read_text(encoding="utf-8")
    assert one.applied_to(whole) != whole
    assert one.tests
    for test in one.tests:
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name.partition('[')[0]}(" in text, test


def test_there_are_many_and_no_two_are_one() -> None:
    assert len(ALL) >= 100 and len({(one.file, one.old, one.new) for one in ALL}) == len(ALL)
    assert len({one.name for one in ALL}) == len(ALL)
