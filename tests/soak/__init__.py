"""Long trials of whole runs. `python -m tests.soak.NAME --help`.

kill.py      a run that is killed again and again, and what it ends with
launched.py  one launch: its processes, what it says, how far it is, how it is killed
outcome.py   whether a run ended as an undisturbed one did
"""
