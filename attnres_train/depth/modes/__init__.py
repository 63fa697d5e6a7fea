"""The residual modes, one file each, behind one interface (`mode.py`).

    standard.py     h + f(x)
    gated.py        h + g f(x), or (1 - g) h + g f(x)
    denseformer.py  static weights over every earlier output
    attention.py    full and block: attention over depth as published
    options.py      full and block with another query, key, weighting or head count

To add a mode: write its class, give it a line in `mode_of` and a name in `ResidualMode` (../config.py), say in
`DepthLayout.of` whether it has blocks, and add it to the table of cases in tests/cases.py.
"""
