"""From a TOML file and dotted command-line overrides to one frozen, checked `RunConfig`.

    run_config.py  the sections, each declared by its owner
    load.py        file + overrides -> RunConfig, with where every value came from; all problems at once
    locate.py      TOML with line numbers, read on past errors
    overrides.py   `--section.key value`
    keys.py        every key with what it takes, read off the sections
    names.py       known keys from unknown ones; the nearest known name of a misspelt one, ours or another codebase's
    build.py       types and ranges
    give_way.py    what the command line leaves without meaning in the file
    check.py       the rules of all sections gathered; each lives in the rules.py of the section's room
    resolve.py     what follows from a configuration: vocabulary, split, micro-batches, run folder
    show.py        a configuration as TOML text

Of all texts `~` and `$NAME` are read as a shell reads them (attnres_train/paths.py).

A room's rules.py has `problems(config, world)`, pure, on what may be impossible still: a `Setup` is of a configuration
that these have passed. `file_problems` looks at what the configuration names. Nothing here needs torch.
"""
