"""`torchrun ... -m attnres_train.evaluate RUN ...`: what `attnres evaluate` does, on many ranks; one tells."""

from __future__ import annotations

import contextlib
import os
import sys

from attnres_train.cli.run import main
from attnres_train.launch.gate import leave

if __name__ == "__main__":
    with open(os.devnull, "w") as nowhere, contextlib.ExitStack() as silence:
        if os.environ.get("RANK", "0") != "0":
            silence.enter_context(contextlib.redirect_stdout(nowhere))
            silence.enter_context(contextlib.redirect_stderr(nowhere))
        code = main(["evaluate", *sys.argv[1:]])
    leave(code)
