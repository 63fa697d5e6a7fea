"""From a TOML file and dotted command-line overrides to one frozen, checked `RunConfig`. Nothing here needs torch.

    run_config.py  the sections, each declared by its owner
    load.py        file + overrides -> RunConfig, with where every value came from; all problems at once
    locate.py      TOML with line numbers, read on past errors (pure)
    overrides.py   `--section.key value` (pure)
    keys.py        every key with what it takes (pure, read off the sections)
    names.py       the nearest known name of a misspelt one; what this version does not have (pure)
    check.py       rules between keys (pure); check_batch.py the batch arithmetic; files.py what must exist
    resolve.py     what follows from a configuration: vocabulary, split, micro-batches, run folder
    show.py        a configuration as TOML text, with where every value came from
"""
