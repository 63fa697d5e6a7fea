"""Mistakes put in by hand, one at a time, to see the quick suite notice them.

    python -m tests.mutants                       all of them; some 40 minutes on two cores
    python -m tests.mutants --room checkpoint     those of one room
    python -m tests.mutants --only "a ring"       those whose name holds these words

Each is tried in a copy of the tree with the tests that it names, which are of the quick suite. It ends with 1 if one
survives that is not known to be equivalent, or no longer applies: code that moves takes its mutants along
(tests/unit/test_mutants.py holds every one against the files). A mistake that slipped through belongs here, with the
test that was missing.

    mutant.py     what one is
    ROOM.py       those of a room or of some that belong together
    __main__.py   the runs
"""
