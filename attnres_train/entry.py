"""Where `attnres` begins: what its commands import takes long enough to be interrupted, too."""

from __future__ import annotations

import sys

from attnres_train.console_encoding import quietly


def main() -> int:
    """The console command."""

    def command() -> int:
        from attnres_train.cli.run import main as run

        return run()

    return quietly(command)


if __name__ == "__main__":
    sys.exit(main())
