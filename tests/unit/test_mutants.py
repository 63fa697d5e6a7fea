"""The list of mutants is kept up with the code: every one applies, and its tests are there and quick."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutants.mutant import faults, mutants


@pytest.mark.parametrize("room", sorted({mutant.room for mutant in mutants()}))
def test_every_mutant_applies_and_has_quick_tests(room: str) -> None:
    stale = {mutant.name: faults(mutant) for mutant in mutants() if mutant.room == room}
    assert not {name: told for name, told in stale.items() if told}


def test_there_are_enough_mutants_each_with_a_name_of_its_own() -> None:
    names = Counter(mutant.name for mutant in mutants())
    assert len(names) >= 100
    assert not [name for name, count in names.items() if count > 1]
