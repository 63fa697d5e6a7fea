"""Many runs that differ in few keys, and what can be said of their differences: `attnres ablate`.

grid.py        a grid file as runs, each a list of overrides
state.py       which of them are done, begun, or not begun
runner.py      the rest, launched in turn
statistics.py  means with intervals, and compute at equal loss
results.py     what they found, by case and setting
tables.py      that as tables
write.py       all of it as a page, Markdown and JSON
"""
