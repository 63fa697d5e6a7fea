"""Mistakes put into the code by hand, one at a time, to see that the quick tests notice them.

    python -m tests.mutants                     all of them, in copies of the tree
    python -m tests.mutants --room checkpoint   those of one room
    python -m tests.mutants --only NAME         one

A room is a TOML file here, a mutant a table of it:

    [name-of-it]
    file = "attnres_train/progress.py"          what is changed
    old = 'self.step + 1'                       found in it exactly once
    new = 'self.step'
    breaks = "the step does not count"
    tests = ["tests/unit/test_x.py::test_y"]    quick tests, of which one must fail
    equivalent = "why no test can fail"         instead of `tests`, where nothing observable changes

Who moves code moves its mutants along (`tests/unit/test_mutants.py` says which no longer apply); who writes a module
adds the mistakes that a tired colleague would make in it. A mutant that survives asks for a test, or for its reason.
"""
