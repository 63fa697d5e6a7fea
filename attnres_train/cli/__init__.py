"""The console command `attnres`, one file a command.

    command.py      what a command is: a name, its options, one function from options to an answer
    run.py          the list of commands, and how an answer is printed

To add a command: a file with its `COMMAND`, and its line in `run.COMMANDS`.
"""

from attnres_train.cli.run import main

__all__ = ["main"]
