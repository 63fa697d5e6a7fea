"""`python -m attnres_train.cli`."""

import sys

from attnres_train.entry import main

if __name__ == "__main__":
    sys.exit(main())
