"""The residual modes, one file each, behind one interface (`mode.py`).

    standard.py     h + f(x)
    gated.py        h + g f(x), or (1 - g) h + g f(x)
    denseformer.py  static weights over every earlier output
    attention.py    full and block: attention over depth as published
    options.py      full and block with another query, key, weighting or head count

To add a mode: write its class, which says all of it, give it a line in `MODES` (choose.py) and a name in
`ResidualMode` (../config.py), and add it to the table of cases in tests/cases.py.
"""
